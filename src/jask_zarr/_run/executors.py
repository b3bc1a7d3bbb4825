"""Where tile tasks run, and in which order their results come back."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import chain, islice
from typing import Any, TypeVar

from jask_zarr import _config

Job = TypeVar("Job", bound=tuple[Any, ...])
Answer = TypeVar("Answer")

_pool: ThreadPoolExecutor | None = None


def pool() -> ThreadPoolExecutor:
    """The threads that run tile tasks, started at first use."""
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(_config.threads() + 1, thread_name_prefix="jask_zarr-tile")
    return _pool


def _forget_pool() -> None:
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget_pool)


def in_order(task: Callable[..., Answer], jobs: Iterable[Job], workers: int) -> Iterator[Answer]:
    """Run ``task(*job)`` for every job, `workers` at a time; yield the answers in the order of the jobs.

    On the first error, or Ctrl-C, no further job begins, those that run are waited for, and the error is raised.
    """
    jobs = iter(jobs)
    first = list(islice(jobs, 2 if workers > 1 else 1))
    if len(first) < 2:
        yield from (task(*job) for job in chain(first, jobs))
        return
    running: deque[Future[Answer]] = deque()
    try:
        for job in (*first, *islice(jobs, workers - 2)):
            running.append(pool().submit(task, *job))
        while running:
            answer = running[0].result()
            running.popleft()
            for job in islice(jobs, 1):
                running.append(pool().submit(task, *job))
            yield answer
    finally:
        for future in running:
            future.cancel()
        wait(running)
