"""Where tile tasks run, and in which order their results come back."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import islice
from typing import Any

import jax

from jask_zarr import _compat, _config
from jask_zarr.errors import ForkedProcessError

_pool: ThreadPoolExecutor | None = None
_leaves: ThreadPoolExecutor | None = None
_lost_jax = False


def here() -> Executor:
    """The threads that run tile tasks: the user's, or those of the library, started at first use."""
    global _pool
    chosen = _config.executor()
    if isinstance(chosen, ThreadPoolExecutor):
        return chosen
    if _pool is None:
        _pool = ThreadPoolExecutor(_threads(), thread_name_prefix="jask_zarr-tile")
    return _pool


def elsewhere() -> Any:
    """The user's executor, if it may run tasks in other processes; else None."""
    chosen = _config.executor()
    return None if isinstance(chosen, ThreadPoolExecutor) else chosen


def in_leaves(function: Callable[..., Any], calls: Iterable[tuple[Any, ...]]) -> None:
    """Make all calls, in threads that wait for no others: a tile's task may use them."""
    global _leaves
    if _leaves is None:
        _leaves = ThreadPoolExecutor(_config.threads(), thread_name_prefix="jask_zarr-leaf")
    running = [_leaves.submit(copy_context().run, function, *arguments) for arguments in calls]
    try:
        for future in running:
            future.result()
    finally:
        _end(running)


def _end(running: Sequence[Future]) -> None:
    """Cancel what has not begun and wait for the rest: after an error, or Ctrl-C, nothing goes on by itself."""
    for future in running:
        future.cancel()
    for future in running:
        if not future.cancelled():
            future.exception()


def _forked() -> None:
    global _pool, _leaves, _lost_jax
    _pool = _leaves = None
    _lost_jax = _lost_jax or _compat.has_started()


os.register_at_fork(after_in_child=_forked)


def check_process() -> None:
    """Refuse to compute in a child that was forked from a process in which JAX had threads."""
    if _lost_jax:
        raise ForkedProcessError(
            "This process was forked after JAX had started, and has not got JAX's threads: to compute here would wait "
            'for ever. Start processes by multiprocessing.get_context("spawn"), or fork before the first computation. '
            "Stored arrays can be read (a.to_numpy())."
        )


def wanted_workers() -> int:
    """Tiles to have under way: one for each worker, and one more that waits for the first that is free."""
    chosen = _config.executor()
    return 1 + (_config.workers() or getattr(chosen, "_max_workers", None) or _threads())


def _threads() -> int:
    """One for each processor, and for each device, which may be another kind of processor; one reads meanwhile."""
    return max(2, _config.threads(), len(devices()))


def devices() -> tuple[Any, ...]:
    """The devices that take the tiles of a pass in turn: this process's, or the one that the user chose for JAX."""
    chosen: Any = jax.config.jax_default_device  # type: ignore[attr-defined]
    if chosen is None:
        return tuple(jax.local_devices())
    return tuple(jax.local_devices(backend=chosen)[:1]) if isinstance(chosen, str) else (chosen,)


def in_order(submit: Callable[[Any], Any], tasks: Iterable[Any], workers: int) -> Generator[tuple[Any, Any]]:
    """Submit every task, `workers` at a time; yield each with its answer, in the order of the tasks.

    On the first error, or Ctrl-C, no further task begins, those that run are waited for, and the error is raised.
    """
    tasks = iter(tasks)
    running: deque[tuple[Any, Any]] = deque()
    try:
        running.extend((task, submit(task)) for task in islice(tasks, workers))
        while running:
            task, future = running[0]
            answer = future.result()
            running.popleft()
            running.extend((task, submit(task)) for task in islice(tasks, 1))
            yield task, answer
    finally:
        _end([future for _, future in running])
