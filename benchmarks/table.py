"""The Markdown table of a `flashgen bench --json` file, rows that fall short of the bar first: table.py FILE."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any


def table(document: dict[str, Any]) -> str:
    """A row a shape: flashgen and cuDNN in TFLOP/s, their ratio, the bar, and flashgen over the bar."""
    rows: list[dict[str, Any]] = document["rows"]
    cudnn = {row["shape"]: row["tflops"] for row in rows if row["implementation"] == "cudnn"}
    mine = [row for row in rows if row["implementation"] == "flashgen"]
    lines = ["| shape | flashgen | cuDNN | ratio | bar | ratio / bar |", "|---|---|---|---|---|---|"]
    shares = {row["shape"]: row["over_cudnn"] / row["bar"] for row in mine if row["over_cudnn"] and row["bar"]}
    short = [row for row in mine if shares.get(row["shape"], 1.0) < 1.0]
    for row in sorted(short, key=lambda row: shares[row["shape"]]) + [row for row in mine if row not in short]:
        shape, share = row["shape"], shares.get(row["shape"])
        values = (cudnn.get(shape), row["over_cudnn"], row["bar"], share)
        shown = ["" if value is None else f"{value:.0f}" if value > 10 else f"{value:.3f}" for value in values]
        lines.append(f"| {shape} | {row['tflops']:.0f} | {' | '.join(shown)} |")
    mean = math.exp(sum(map(math.log, shares.values())) / len(shares)) if shares else float("nan")
    held = len(shares) - len(short)
    lines.append(f"\n{held} of {len(shares)} rows at or above the bar; geometric mean {mean:.3f} of it.")
    if ceiling := document.get("matrix_product_tflops"):
        lines.append(f"\n{document['gpu']}: a matrix product of 8192 x 8192 bf16 runs at {ceiling:.0f} TFLOP/s.")
    return "\n".join(lines)


if __name__ == "__main__":
    loaded = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(table(loaded if isinstance(loaded, dict) else {"rows": loaded}))
