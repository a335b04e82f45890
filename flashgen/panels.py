"""Which bench rows a picture draws as lines over sequence length, and which as bars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flashgen.bench_grid import Shape

FEWEST_LENGTHS = 3  # for a panel

Series = dict[str, dict[int, float]]  # implementation -> length -> TFLOP/s


@dataclass
class Panel:
    """Lines: one head dim, mask, head count and direction over several lengths, queries and keys of one length."""

    dims: str
    mask: str
    heads: str
    direction: str
    series: Series = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Such as ``d128 causal, 16 heads``."""
        return f"{self.dims} {self.mask}, {self.heads} heads"

    @property
    def lengths(self) -> list[int]:
        """Of all lines."""
        return sorted({length for points in self.series.values() for length in points})


@dataclass
class Bars:
    """A group of bars: one shape."""

    shape: Shape
    values: dict[str, float] = field(default_factory=dict)  # implementation -> TFLOP/s


def arrange(rows: Iterable[Mapping[str, Any]]) -> tuple[list[Panel], list[Bars]]:
    """Which rows make panels and which make bars, both in the order of the rows."""
    panels: dict[tuple[str, str, str, str], Panel] = {}
    shapes: dict[str, tuple[Panel | None, Bars]] = {}
    for row in rows:
        name, implementation, tflops = row["shape"], row["implementation"], row["tflops"]
        shape = Shape.from_name(name)
        panel = None
        if shape.seqlen_q == shape.seqlen_k:
            key = (_dims(shape), shape.mask, shape.heads, shape.direction)
            panel = panels.setdefault(key, Panel(*key))
            panel.series.setdefault(implementation, {})[shape.seqlen_q] = tflops
        shapes.setdefault(name, (panel, Bars(shape)))[1].values[implementation] = tflops
    kept = [panel for panel in panels.values() if len(panel.lengths) >= FEWEST_LENGTHS]
    return kept, [bars for panel, bars in shapes.values() if not any(panel is other for other in kept)]


def bar_labels(bars: Iterable[Bars]) -> tuple[str, list[str]]:
    """What most of the shapes share, for the title, and a label for each that says where it is another."""
    shapes = [each.shape for each in bars]
    (heads, length), _ = Counter((shape.heads, shape.length) for shape in shapes).most_common(1)[0]
    mixed = len({shape.direction for shape in shapes}) > 1
    labels = []
    for shape in shapes:
        apart = " " if shape.d_v == shape.head_dim else "\n"  # two head dims are as wide as a group of bars
        lines = [f"{shape.direction} " * mixed + f"{_dims(shape)}{apart}{shape.mask}"]
        lines += [f"{shape.heads} heads"] if shape.heads != heads else []
        lines += [shape.length] if shape.length != length else []
        labels.append("\n".join(lines))
    return f"One length: {length}, {heads} heads unless said otherwise", labels


def _dims(shape: Shape) -> str:
    return shape.dims if shape.dtype == "bf16" else f"{shape.dtype} {shape.dims}"
