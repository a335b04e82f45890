"""The Markdown table of a `flashgen bench --json` file, rows that fall short of the bar first: table.py FILE."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

NAMES = ("flashgen", "flashgen deterministic", "cudnn")
HEADINGS = ["shape", "flashgen", "cuDNN", "ratio", "bar", "ratio / bar"]
STEADY_HEADINGS = ["deterministic, ratio", "its cost"]
Rows = list[dict[str, Any]]


def table(document: dict[str, Any]) -> str:
    """A row a shape: flashgen and cuDNN in TFLOP/s, their ratio, the bar, and flashgen over the bar.

    A table each for forward and backward. A backward's has the memory that it borrows, and what deterministic costs.
    """
    rows: Rows = document["rows"]
    directions = dict.fromkeys(row["shape"].split()[0] for row in rows)  # old files have no direction of their own
    parts = [_part([row for row in rows if row["shape"].startswith(each)]) for each in directions]
    if ceiling := document.get("matrix_product_tflops"):
        parts.append(f"{document['gpu']}: a matrix product of 8192 x 8192 bf16 runs at {ceiling:.0f} TFLOP/s.")
    return "\n\n".join(parts)


def _part(rows: Rows) -> str:
    of = {name: {row["shape"]: row for row in rows if row["implementation"] == name} for name in NAMES}
    mine, steady = of["flashgen"], of["flashgen deterministic"]
    borrowed = any(row.get("borrowed_bytes") is not None for row in rows)
    shares = {shape: row["over_cudnn"] / row["bar"] for shape, row in mine.items() if row["over_cudnn"] and row["bar"]}
    short = sorted((shape for shape, share in shares.items() if share < 1.0), key=lambda shape: shares[shape])
    headings = HEADINGS + STEADY_HEADINGS * bool(steady) + ["MiB borrowed", "by cuDNN"] * borrowed
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for shape in [*short, *(shape for shape in mine if shape not in short)]:
        row, other, fixed = mine[shape], of["cudnn"].get(shape, {}), steady.get(shape, {})
        cells = [shape, _whole(row["tflops"]), _whole(other.get("tflops"))]
        cells += [_ratio(value) for value in (row["over_cudnn"], row["bar"], shares.get(shape))]
        if steady:
            cost = fixed.get("deterministic_cost")
            cells += [_ratio(fixed.get("over_cudnn")), "" if cost is None else f"{100 * cost:.0f} %"]
        if borrowed:
            cells += [_mib(row.get("borrowed_bytes")), _mib(other.get("borrowed_bytes"))]
        lines.append(f"| {' | '.join(cells)} |")
    if shares:
        mean = math.exp(sum(map(math.log, shares.values())) / len(shares))
        held = len(shares) - len(short)
        lines.append(f"\n{held} of {len(shares)} rows at or above the bar; geometric mean {mean:.3f} of it.")
    return "\n".join(lines)


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _mib(count: int | None) -> str:
    return "" if count is None else f"{count / (1 << 20):.0f}"


if __name__ == "__main__":
    loaded = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(table(loaded if isinstance(loaded, dict) else {"rows": loaded}))
