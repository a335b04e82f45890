"""A picture of bench rows: one panel for each head dim and mask, TFLOP/s over sequence length."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flashgen.errors import NotAvailableError

if TYPE_CHECKING:
    from flashgen.bench import Row


def panels(rows: Sequence[Row]) -> dict[str, dict[str, list[tuple[str, float]]]]:
    """``{"d128 causal": {implementation: [(length, TFLOP/s), ...]}}``, all in the order of the rows."""
    found: dict[str, dict[str, list[tuple[str, float]]]] = {}
    for row in rows:
        _, head_dim, mask, *rest = row.shape.split()
        length = next(word for word in rest if word.startswith("S"))
        found.setdefault(f"{head_dim} {mask}", {}).setdefault(row.implementation, []).append((length, row.tflops))
    return found


def save_plot(rows: Sequence[Row], path: Path, *, title: str = "attention forward, TFLOP/s") -> None:
    """Write a picture in the format of the path's ending. Needs matplotlib (the extra ``plot``)."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise NotAvailableError("a plot needs matplotlib: pip install 'flashgen[plot]'") from None
    found = panels(rows)
    columns = min(2, max(1, len(found)))
    lines = max(1, -(-len(found) // columns))
    figure = Figure(figsize=(6 * columns, 3 * lines), layout="constrained")
    axes = list(figure.subplots(lines, columns, squeeze=False).flat)
    for place, (name, series) in zip(axes, found.items(), strict=False):
        for implementation, points in series.items():
            place.plot([x for x, _ in points], [y for _, y in points], marker="o", label=implementation)
        place.set_title(name)
        place.set_ylim(bottom=0)
        place.grid(alpha=0.3)
        place.legend(fontsize="small")
    for place in axes[len(found) :]:
        place.set_visible(False)
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
