"""`explain`: the passes that a computation takes, as text and as a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jask_zarr import _picture
from jask_zarr._plan import Plan
from jask_zarr._plan.chains import Chain, chains
from jask_zarr._plan.labels import Index
from jask_zarr._plan.plan import Destination, Pass, Result
from jask_zarr._plan.tiles import Stream
from jask_zarr._tracing import force
from jask_zarr._tracing.hitype import DiskArray
from jask_zarr._tracing.jit import planned_outputs


def explain(x: DiskArray | Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Show the passes that an array, or a call of a function, would take; nothing is computed.

    Parameters
    ----------
    x : DiskArray or callable
        A recorded array; or a function as `jask_zarr.jit` takes it, followed by its arguments.
    *args, **kwargs
        The function's arguments.

    Returns
    -------
    Explanation
        Prints as text: for each pass its loops and tiles, what it reads, yields and keeps, the bytes moved, the
        projected peak memory in bytes, and why a value had to be kept between passes. A notebook draws it; ``svg()``
        gives that picture. Its ``plan`` is the frozen plan.

    Examples
    --------
    >>> import numpy as np, jask_zarr as jz
    >>> a = jz.DiskArray.from_numpy(np.ones((512, 64), "float32"), chunks=(64, 64))
    >>> print(jz.explain(lambda a: (a - a.mean(0)) ** 2, a))  # doctest: +ELLIPSIS
    1 pass, reads 131.1 kB...
    """
    if isinstance(x, DiskArray):
        return Explanation(force.plan_for([x._value], [force.CHOOSE]))
    values, targets = planned_outputs(x, args, kwargs)
    return Explanation(force.plan_for(values, targets))


@dataclass(frozen=True)
class Explanation:
    """What `explain` found; its text is ``str(explanation)``."""

    plan: Plan

    def __str__(self) -> str:
        return "\n".join(_describe(self.plan))

    __repr__ = __str__

    def svg(self) -> str:
        """The same as a picture: passes from top to bottom, between what they read and what they yield.

        Examples
        --------
        >>> import jask_zarr as jz
        >>> jz.explain(jz.ones((4, 4)) + 1).svg()[:4]
        '<svg'
        """
        return _picture.svg([_block(self.plan, number, p) for number, p in enumerate(self.plan.passes, 1)])

    _repr_svg_ = svg


def _block(plan: Plan, number: int, p: Pass) -> _picture.Block:
    computed = [f"{name} {times}×" if times > 1 else name for name, times in _operations(p).items()]
    loops = [f"{loop.size} by {loop.tile}: {loop.count} tiles" for loop in p.loops]
    memory = f"{size(p.tiling.traffic)} in, peak {size(p.tiling.resident)}"
    title = f"pass {number}: {p.tiles} tiles, {p.tiling.workers} at a time"
    return _picture.Block(
        (title, *loops, *computed, memory),
        tuple((_source(plan, stream), _stream(plan, stream)) for stream in p.streams),
        tuple(_yielded(plan, result, d) for result in p.results for d in result.destinations),
    )


def _yielded(plan: Plan, result: Result, destination: Destination) -> tuple[str, str]:
    place = "on disk" if destination.on_disk else "in memory"
    what = "output" if destination.kind == "output" else "kept value"
    how = f", by {result.combine}" if result.combine is not None else ""
    return f"{what} {destination.number} {place}{how}", _aval(plan, result.version[0])


def _describe(plan: Plan) -> Iterator[str]:
    count = len(plan.passes)
    reads = sum(p.tiling.traffic for p in plan.passes)
    peak = max((p.tiling.resident for p in plan.passes), default=0)
    plural = "pass" if count == 1 else "passes"
    yield (f"{count} {plural}, reads {size(reads)}, projected peak {size(peak)} of a budget of {size(plan.budget)}")
    for number, p in enumerate(plan.passes, 1):
        yield ""
        yield f"pass {number} of {count}: {p.tiles} {'tile' if p.tiles == 1 else 'tiles'}, {p.tiling.workers} at a time"
        yield from (f"  {line}" for line in _describe_pass(plan, p))
    for chain in chains(plan.program):
        yield ""
        yield _describe_chain(plan, chain)


def _describe_chain(plan: Plan, chain: Chain) -> str:
    first, second, last = (_operand(plan, value) for value in chain.operands)
    one, other = (_operand(plan, value) for value in chain.other_first)
    return (
        f"chain of contractions, {first} with {second} and then with {last}: {size(chain.flops, 'FLOP')} as written; "
        f"{size(chain.other_flops, 'FLOP')} with {one} and {other} contracted first"
    )


def _operand(plan: Plan, value: int) -> str:
    inputs = plan.program.inputs
    name = f"input {inputs.index(value)}" if value in inputs else f"value {value}"
    return f"{name} ({_aval(plan, value)})"


def _describe_pass(plan: Plan, p: Pass) -> Iterator[str]:
    names = {loop.label: chr(ord("i") + n) for n, loop in enumerate(p.loops)}
    for loop in p.loops:
        each = f" for a tile of {names.get(loop.group.axis.label, ':')}, on average" if loop.group else ""
        yield f"loop {names[loop.label]}: {loop.size} by {loop.tile}, {loop.count} tiles{each}"
    for stream, is_part in zip(p.streams, p.tiling.parts, strict=True):
        once = ", each decoded once for several tiles" if is_part else ""
        yield f"read {_source(plan, stream)}: {_stream(plan, stream)}{once}, {size(stream.nbytes)}"
    for operation, times in _operations(p).items():
        yield f"compute {operation}" + (f" {times} times" if times > 1 else "")
    for result in p.results:
        yield from _describe_result(plan, result, names)
    yield f"moves {size(p.tiling.traffic)} in, peak {size(p.tiling.resident)}"


def _source(plan: Plan, stream: Stream) -> str:
    value, inputs = stream.version[0], plan.program.inputs
    return f"input {inputs.index(value)}" if value in inputs else f"kept value {value}"


def _stream(plan: Plan, stream: Stream) -> str:
    return f"{_aval(plan, stream.version[0])} in chunks of {_shape(stream.chunks)}"


def _operations(p: Pass) -> dict[str, int]:
    """The costly operations; elementwise ones fuse."""
    names: dict[str, int] = {}
    for step in p.sweep.steps:
        if not step.rule.fuses:
            names[step.equation.name] = names.get(step.equation.name, 0) + 1
    return names


def _describe_result(plan: Plan, result: Result, names: dict[int, str]) -> Iterator[str]:
    how = f", combined by {result.combine}" if result.combine is not None else ""
    index = _index(result.index, names)
    for destination in result.destinations:
        yield f"{_destination(plan, destination)}: {_aval(plan, result.version[0])}{index}{how}"


def _destination(plan: Plan, destination: Destination) -> str:
    place = "on disk" if destination.on_disk else "in memory"
    if destination.kind == "output":
        return f"output {destination.number} {place}"
    return f"keep value {destination.number} {place}, because of {plan.kept[destination.number].reason}"


def _index(index: Index, names: dict[int, str]) -> str:
    if not any(axis is not None and axis.label in names for axis in index):
        return ""
    return " at [" + ", ".join(names.get(axis.label, ":") if axis is not None else ":" for axis in index) + "]"


def _aval(plan: Plan, value: int) -> str:
    aval = plan.program.avals[value]
    return f"{aval.dtype.name}[{','.join(map(str, aval.shape))}]"


def _shape(shape: Sequence[int]) -> str:
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


def size(number: int, unit: str = "B") -> str:
    """Bytes in decimal units, as `set_memory_budget` takes them; or a number of something else."""
    if number < 1000:
        return f"{number} {unit}"
    power = min(int(math.log10(number) // 3), 5)
    return f"{number / 1000**power:.1f} {'kMGTP'[power - 1]}{unit}"
