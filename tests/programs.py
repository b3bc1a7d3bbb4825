"""Random programs: compositions of operations that are right in `jax.numpy`, drawn by hypothesis.

A program is a list of calls on numbered values: first the inputs, then the result of each call. It is run with any
namespace: `jask_zarr` on arrays on disk, `jax.numpy` in memory.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from hypothesis import strategies as st

from helpers import REFERENCE

LENGTHS = {1: [40, 36, 25], 2: [12, 9, 7, 16, 1], 3: [6, 7, 4, 9, 2, 1]}
"""Of the dims of the first input, by its rank."""
LARGEST = 2000
"""Elements of a value."""


@dataclass(frozen=True)
class Call:
    """One operation on earlier values."""

    text: str
    apply: Callable[..., Any]
    operands: tuple[int, ...]

    def __repr__(self) -> str:
        return f"{self.text}{self.operands}"


@dataclass(frozen=True)
class Program:
    """Inputs by shape and chunks, calls, and how many of the last values are the results."""

    shapes: tuple[tuple[int, ...], ...]
    chunks: tuple[tuple[int, ...], ...]
    calls: tuple[Call, ...]
    results: int

    def inputs(self) -> list[np.ndarray]:
        rng = np.random.default_rng(len(self.calls))
        return [rng.normal(size=shape).astype("float32") for shape in self.shapes]

    def __call__(self, xp: Any, *inputs: Any) -> list[Any]:
        values = list(inputs)
        for call in self.calls:
            values.append(call.apply(xp, *(values[n] for n in call.operands)))
        return values[-self.results :]


# ------------------------------------------------------------------ what may come next
Shape = tuple[int, ...]
Drawn = tuple[str, Callable[..., Any], tuple[int, ...]]
"""Text, function of a namespace and operands, and the operands."""


def _named(name: str, *operands: int, **kwargs: Any) -> Drawn:
    text = name + "".join(f" {key}={value}" for key, value in kwargs.items())
    return text, lambda xp, *values: getattr(xp, name)(*values, **kwargs), operands


def unary(draw: Any, shapes: Sequence[Shape], x: int) -> Drawn:
    return _named(draw(st.sampled_from("tanh sin cos abs relu sigmoid negative softplus gelu exp2".split())), x)


def binary(draw: Any, shapes: Sequence[Shape], x: int) -> Drawn:
    others = [n for n, shape in enumerate(shapes) if _broadcasts(shape, shapes[x])]
    names = "add subtract multiply maximum minimum logaddexp arctan2".split()
    return _named(draw(st.sampled_from(names)), x, draw(st.sampled_from(others)))


def _broadcasts(a: Shape, b: Shape) -> bool:
    return all(1 in pair or pair[0] == pair[1] for pair in zip(a[::-1], b[::-1], strict=False))


def divide(draw: Any, shapes: Sequence[Shape], x: int) -> Drawn:
    others = [n for n, shape in enumerate(shapes) if _broadcasts(shape, shapes[x])]
    return "a / (1 + b²)", lambda xp, a, b: a / (1 + b * b), (x, draw(st.sampled_from(others)))


def where(draw: Any, shapes: Sequence[Shape], x: int) -> Drawn:
    others = [n for n, shape in enumerate(shapes) if _broadcasts(shape, shapes[x])]
    return "where a > 0.1", lambda xp, a, b: xp.where(a > 0.1, b, a), (x, draw(st.sampled_from(others)))


def scalar(draw: Any, shapes: Sequence[Shape], x: int) -> Drawn:
    number = draw(st.sampled_from([-2, 0.5, 3]))
    return f"{number} * a - 1", lambda xp, a: number * a - 1, (x,)


def _axes(draw: Any, rank: int) -> tuple[int, ...]:
    return tuple(draw(st.permutations(range(rank)))[: draw(st.integers(1, rank))])


def reduce(draw: Any, shapes: Sequence[Shape], x: int) -> Drawn:
    name = draw(st.sampled_from("sum mean max min var logsumexp".split()))
    return _named(name, x, axis=_axes(draw, len(shapes[x])), keepdims=draw(st.booleans()))


def centre(draw: Any, shapes: Sequence[Shape], x: int) -> Drawn:
    axis = _axes(draw, len(shapes[x]))
    return f"a - mean {axis}", lambda xp, a: a - xp.mean(a, axis=axis, keepdims=True), (x,)


def along(draw: Any, shapes: Sequence[Shape], x: int) -> Drawn:
    name = draw(st.sampled_from("softmax log_softmax cumsum sort flip diff".split()))
    return _named(name, x, axis=draw(st.integers(-1, len(shapes[x]) - 1)))


def transpose(draw: Any, shapes: Sequence[Shape], x: int) -> Drawn:
    return _named("transpose", x, axes=tuple(draw(st.permutations(range(len(shapes[x]))))))


def reshape(draw: Any, shapes: Sequence[Shape], x: int) -> Drawn:
    size = math.prod(shapes[x])
    first = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
    second = draw(st.sampled_from([n for n in range(1, size // first + 1) if size // first % n == 0]))
    shape = (first, second, size // first // second)
    return _named("reshape", x, shape=draw(st.sampled_from([(size,), (first, size // first), shape])))


def take_slice(draw: Any, shapes: Sequence[Shape], x: int) -> Drawn:
    cuts = tuple(_slice(draw, n) for n in shapes[x])
    return f"a[{cuts}]", lambda xp, a: a[cuts], (x,)


def _slice(draw: Any, n: int) -> slice:
    start = draw(st.integers(0, n - 1))
    return slice(start, draw(st.integers(start + 1, n)), draw(st.sampled_from([1, 1, 1, 2, 3])))


def take_rows(draw: Any, shapes: Sequence[Shape], x: int) -> Drawn:
    axis = draw(st.integers(0, len(shapes[x]) - 1))
    rows = np.array(draw(st.lists(st.integers(0, shapes[x][axis] - 1), min_size=1, max_size=6)), "int32")
    return f"take {rows.tolist()} axis={axis}", lambda xp, a: xp.take(a, rows, axis=axis), (x,)


def matmul(draw: Any, shapes: Sequence[Shape], x: int) -> Drawn:
    fits = [n for n, s in enumerate(shapes) if len(s) == 2 and s[0] == shapes[x][-1]]
    if not fits or draw(st.booleans()):
        return "a @ a.mT", lambda xp, a: a @ xp.swapaxes(a, -1, -2) / 4 if a.ndim > 1 else a @ a, (x,)
    return "a @ b", lambda xp, a, b: a @ b / 2, (x, draw(st.sampled_from(fits)))


def outer(draw: Any, shapes: Sequence[Shape], x: int) -> Drawn:
    return "einsum ...i,...j", lambda xp, a: xp.einsum("...i,...j->...ij", a, xp.sin(a)), (x,)


def join(draw: Any, shapes: Sequence[Shape], x: int) -> Drawn:
    axis = draw(st.integers(0, len(shapes[x]) - 1))
    rest = [s[:axis] + s[axis + 1 :] if len(s) > axis else None for s in shapes]
    other = draw(st.sampled_from([n for n, r in enumerate(rest) if r == rest[x]]))
    return f"concatenate axis={axis}", lambda xp, a, b: xp.concatenate([a, b], axis=axis), (x, other)


def stack(draw: Any, shapes: Sequence[Shape], x: int) -> Drawn:
    axis = draw(st.integers(0, len(shapes[x])))
    other = draw(st.sampled_from([n for n, s in enumerate(shapes) if s == shapes[x]]))
    return f"stack axis={axis}", lambda xp, a, b: xp.stack([a, b], axis=axis), (x, other)


def widen(draw: Any, shapes: Sequence[Shape], x: int) -> Drawn:
    axis = draw(st.integers(0, len(shapes[x]) - 1))
    width = [(0, 0)] * len(shapes[x])
    width[axis] = draw(st.sampled_from([(1, 0), (0, 2), (2, 1)]))
    return draw(
        st.sampled_from(
            [
                _named("pad", x, pad_width=tuple(width)),
                _named("roll", x, shift=draw(st.integers(-3, 3)), axis=axis),
                _named("repeat", x, repeats=2, axis=axis),
                _named("expand_dims", x, axis=axis),
                _named("tril", x) if len(shapes[x]) > 1 else _named("square", x),
            ]
        )
    )


STEPS = (unary, binary, divide, where, scalar, reduce, centre, along, transpose, reshape, take_slice, take_rows, matmul,
         outer, join, stack, widen)  # fmt: skip


# ------------------------------------------------------------------ programs
def _result_shape(apply: Callable[..., Any], shapes: Sequence[Shape]) -> Shape:
    structs = [jax.ShapeDtypeStruct(s, "float32") for s in shapes]
    return jax.eval_shape(lambda *a: apply(REFERENCE, *a), *structs).shape


@st.composite
def programs(draw: Any) -> Program:
    """Programs of one to three inputs and one to seven calls."""
    count = draw(st.integers(1, 3))
    rank = draw(st.sampled_from([2, 3, 2, 1]))
    first = tuple(draw(st.sampled_from(LENGTHS[rank])) for _ in range(rank))
    inputs = [first, *(_related(draw, first) for _ in range(count - 1))]
    shapes, calls = list(inputs), []
    for _ in range(draw(st.integers(2, 7))):
        ranked = [n for n, shape in enumerate(shapes) if shape and 0 not in shape]
        x = draw(st.sampled_from(ranked[-3:]))
        text, apply, operands = draw(st.sampled_from(STEPS))(draw, shapes, x)
        shape = _result_shape(apply, [shapes[n] for n in operands])
        if len(shape) <= 4 and math.prod(shape) <= LARGEST:
            calls.append(Call(text, apply, operands))
            shapes.append(shape)
    chunks = tuple(tuple(draw(st.sampled_from(_cuts(n))) for n in shape) for shape in inputs)
    return Program(tuple(inputs), chunks, tuple(calls), draw(st.integers(1, min(2, max(len(calls), 1)))))


def _related(draw: Any, shape: Shape) -> Shape:
    """A shape that fits another in a broadcast, or in a product from the right."""
    stretched = tuple(draw(st.sampled_from([n, n, 1])) for n in shape)
    return draw(st.sampled_from([shape, stretched, stretched[1:] or stretched, (shape[-1], draw(st.integers(1, 5)))]))


def _cuts(n: int) -> list[int]:
    return list(dict.fromkeys([-(-n // 2), -(-n // 3), max(1, n - 2), n, 1]))
