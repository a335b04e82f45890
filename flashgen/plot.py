"""A picture of a bench document: TFLOP/s over sequence length, and bars for shapes that have one length only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashgen.bench_grid import OURS, STEADY, Shape
from flashgen.errors import NotAvailableError
from flashgen.panels import Bars, Panel, arrange, bar_labels
from flashgen.peers import PEERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, PANEL_HEIGHT, BARS_HEIGHT, DPI = 11.7, 2.5, 2.3, 120  # inches
TITLE_HEIGHT, LEGEND_HEIGHT, LEGEND_COLUMNS = 0.66, 0.24, 5
WIDE_BAR = 0.3  # of a group: its figure fits into it without being turned
LYING: dict[str, Any] = {"ha": "center", "va": "top"}
UPRIGHT: dict[str, Any] = {"rotation": 90, "rotation_mode": "anchor", "ha": "right", "va": "center_baseline"}
INK, MUTED, GRID_COLOUR, OUR_COLOUR = "#1f2933", "#66727f", "#e4e7eb", "#d6336c"
COLOURS = {
    "cudnn": "#4f7cac", "fa3": "#2a9d8f", "fa4": "#e9a23b", "flashinfer": "#7b61a8", "fa2": "#8d6e63",
    "flash": "#9aa5b1", "efficient": "#c3cad1", "flex": "#a3b18a", STEADY: "#f08fb4",
}  # fmt: skip
OTHER_COLOURS = ("#d6336c", "#4f7cac", "#2a9d8f", "#e9a23b", "#7b61a8", "#8d6e63")  # of kernels given by config
MARKERS = dict(zip(COLOURS, "sD^vPX<>d", strict=True))


def save_plot(document: Mapping[str, Any], path: Path) -> None:
    """Draw a bench document, in the format of the path's ending. Needs matplotlib (the extra ``plot``)."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        raise NotAvailableError("a plot needs matplotlib: pip install 'flashgen[plot]'") from None
    rows, ceiling = document["rows"], document.get("matrix_product_tflops")
    panels, bars = arrange(rows)
    masks = list(dict.fromkeys(panel.mask for panel in panels))
    directions = _directions(rows)
    kinds = list(dict.fromkeys((panel.direction, panel.dims, panel.heads) for panel in panels))
    heights = [PANEL_HEIGHT] * len(kinds) + [BARS_HEIGHT] * bool(bars)
    styles = _styles(list(dict.fromkeys(row["implementation"] for row in rows)))
    head = TITLE_HEIGHT + LEGEND_HEIGHT * -(-len(styles) // LEGEND_COLUMNS)
    height = head + sum(heights)
    engine = ConstrainedLayoutEngine(rect=(0.004, 0, 0.99, 1 - head / height), hspace=0.06, wspace=0.03)
    figure = Figure(figsize=(WIDTH, height), layout=engine)
    grid = figure.add_gridspec(max(1, len(heights)), max(1, len(masks)), height_ratios=heights or [1])
    top = 1.12 * max([row["tflops"] for row in rows] + [ceiling or 0.0, 1.0])
    for panel in panels:
        line, column = kinds.index((panel.direction, panel.dims, panel.heads)), masks.index(panel.mask)
        place = figure.add_subplot(grid[line, column], ylabel="" if column else "TFLOP/s")
        _lines(place, panel, styles)
        if line == len(kinds) - 1:
            place.set_xlabel("sequence length")
        _dress(place, f"{panel.direction} " * (len(directions) > 1) + panel.title, top, ceiling)
    if bars:
        place = figure.add_subplot(grid[-1, :], ylabel="TFLOP/s")
        title, labels = bar_labels(bars)
        _bars(place, bars, labels, styles)
        _dress(place, title, top, ceiling)
    _head(figure, document, styles, height)
    figure.savefig(path, dpi=DPI, facecolor="white")


def _directions(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    found = {Shape.from_name(row["shape"]).direction for row in rows}
    return [word for direction, word in (("fwd", "forward"), ("bwd", "backward")) if direction in found]


def _styles(implementations: list[str]) -> dict[str, dict[str, Any]]:
    """Of lines. The first of kernels given by config takes our colour when we are not there."""
    others = [name for name in implementations if name != OURS and name not in COLOURS]
    free = OTHER_COLOURS[OURS in implementations :]
    styles: dict[str, dict[str, Any]] = {}
    for name in implementations:
        colour = COLOURS.get(name) or free[others.index(name) % len(free)] if name != OURS else OUR_COLOUR
        styles[name] = {"color": colour, "linewidth": 1.5, "marker": MARKERS.get(name, "o"), "markersize": 4.0}
        if name == OURS:
            styles[name] |= {"linewidth": 3.0, "markersize": 6.5, "zorder": 5}
    return styles


def _lines(place: Axes, panel: Panel, styles: dict[str, dict[str, Any]]) -> None:
    for name, points in panel.series.items():
        lengths = sorted(points)
        place.plot(lengths, [points[length] for length in lengths], **styles[name])
    place.set_xscale("log", base=2)
    place.set_xticks(panel.lengths, [str(length) for length in panel.lengths])
    place.minorticks_off()


def _bars(place: Axes, bars: list[Bars], labels: list[str], styles: dict[str, dict[str, Any]]) -> None:
    width = 0.82 / max(len(each.values) for each in bars)
    for group, each in enumerate(bars):
        names = [name for name in styles if name in each.values]
        for index, name in enumerate(names):
            at = group + (index - (len(names) - 1) / 2) * width
            value = each.values[name]
            place.bar(at, value, width * 0.94, color=styles[name]["color"], zorder=3)
            if name == OURS:
                place.annotate(
                    f"{value:.0f}", (at, value), (0, -3), textcoords="offset points", fontsize=7.5, color="white",
                    zorder=6, **(LYING if width > WIDE_BAR else UPRIGHT),
                )  # fmt: skip
    place.set_xticks(range(len(bars)), labels)
    place.set_xlim(-0.6, len(bars) - 0.4)


def _dress(place: Axes, title: str, top: float, ceiling: float | None) -> None:
    from matplotlib.ticker import MultipleLocator

    place.set_title(title, loc="left", fontsize=10, fontweight="bold", color=INK)
    place.set_ylim(0, top)
    place.grid(axis="y", color=GRID_COLOUR, zorder=0)
    place.set_axisbelow(True)
    place.spines[["top", "right", "left"]].set_visible(False)
    place.spines["bottom"].set_color(MUTED)
    place.tick_params(labelsize=8, colors=MUTED, length=0)
    for label in (place.xaxis.label, place.yaxis.label):
        label.set(fontsize=8, color=MUTED)
    place.yaxis.set_major_locator(MultipleLocator(200 if top > 400 else 50))
    if ceiling:
        place.axhline(ceiling, color=INK, linewidth=1, linestyle=(0, (5, 3)), zorder=4)
        place.annotate(
            f"matrix product {ceiling:.0f}", (0.003, ceiling), (0, 2), xycoords=("axes fraction", "data"),
            textcoords="offset points", fontsize=7.5, color=INK, va="bottom",
        )  # fmt: skip


def _head(figure: Figure, document: Mapping[str, Any], styles: dict[str, dict[str, Any]], height: float) -> None:
    from matplotlib.lines import Line2D

    gpu = document.get("gpu")
    title = "Attention " + " and ".join(_directions(document["rows"])) + (f" on {gpu}" if gpu else "")
    figure.text(0.012, 1 - 0.1 / height, title, va="top", fontsize=16, fontweight="bold", color=INK)
    what = {"driver": "driver", "torch": "torch", "cudnn": "cuDNN", "nvrtc": "NVRTC"}
    facts = [f"{shown} {document[key]}" for key, shown in what.items() if document.get(key)]
    dtypes = sorted({Shape.from_name(row["shape"]).dtype for row in document["rows"]})
    below = ", ".join([*dtypes, "higher is better", *facts, *([document["date"]] if document.get("date") else [])])
    figure.text(0.0125, 1 - 0.42 / height, below, va="top", fontsize=9, color=MUTED)
    handles = [Line2D([], [], **style) for style in styles.values()]
    labels = [PEERS[name].title if name in PEERS else name for name in styles]
    figure.legend(
        handles, labels, loc="upper left", bbox_to_anchor=(0.005, 1 - (TITLE_HEIGHT - 0.05) / height),
        ncols=LEGEND_COLUMNS, frameon=False, fontsize=9.5, labelcolor=INK, borderpad=0.2, columnspacing=1.8,
    )  # fmt: skip
