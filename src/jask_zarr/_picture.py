"""Passes drawn as SVG: from top to bottom, with what each reads at its left and what it yields at its right."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH, _GAP, _LINE, _MARGIN = 300, 60, 18, 12
_LEFT, _MIDDLE, _RIGHT = (_MARGIN + column * (_WIDTH + _GAP) for column in range(3))


@dataclass(frozen=True)
class Block:
    """One pass: lines of text about it, and two lines each (what, how) about what it reads and yields."""

    about: tuple[str, ...]
    reads: tuple[tuple[str, str], ...]
    yields: tuple[tuple[str, str], ...]

    @property
    def height(self) -> int:
        lines = max(len(self.about), 3 * len(self.reads), 3 * len(self.yields))
        return lines * _LINE + _MARGIN


def svg(blocks: Sequence[Block]) -> str:
    """The picture, as a document of its own."""
    parts, top = [], _MARGIN
    for block in blocks:
        parts.extend(_draw(block, top))
        top += block.height + _GAP // 2
    width = _RIGHT + _WIDTH + _MARGIN
    style = "font-family: sans-serif; font-size: 12px"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" style="{style}">'
    return "\n".join([head, f'<rect width="{width}" height="{top}" fill="white"/>', *parts, "</svg>"])


def _draw(block: Block, top: int) -> Iterator[str]:
    yield from _box(_MIDDLE, top, block.height, block.about, "#dbe9f6")
    for number, lines in enumerate(block.reads):
        middle = yield from _small_box(_LEFT, top, number, lines, "#eeeeee")
        yield _arrow(_LEFT + _WIDTH, _MIDDLE, middle)
    for number, lines in enumerate(block.yields):
        middle = yield from _small_box(_RIGHT, top, number, lines, "#e3f1dc")
        yield _arrow(_MIDDLE + _WIDTH, _RIGHT, middle)


def _small_box(left: int, top: int, number: int, lines: Sequence[str], fill: str) -> Iterator[str]:
    top += 3 * _LINE * number
    height = 2 * _LINE + _MARGIN
    yield from _box(left, top, height, lines, fill)
    return top + height // 2


def _box(left: int, top: int, height: int, lines: Sequence[str], fill: str) -> Iterator[str]:
    yield f'<rect x="{left}" y="{top}" width="{_WIDTH}" height="{height}" rx="4" fill="{fill}" stroke="#888888"/>'
    for number, line in enumerate(lines):
        yield f'<text x="{left + 8}" y="{top + _LINE * (number + 1)}">{escape(line)}</text>'


def _arrow(left: int, right: int, y: int) -> str:
    head = f"{right - 7},{y - 4} {right},{y} {right - 7},{y + 4}"
    return f'<path d="M{left},{y} H{right}" stroke="#555555"/><polygon points="{head}" fill="#555555"/>'
