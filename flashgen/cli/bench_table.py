"""What ``flashgen bench`` prints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from flashgen.cli import shared

MIB = 1 << 20


def show(document: dict[str, Any], notes: Iterable[str]) -> None:
    """The rows of a document as a table, then who was left out, and the ceiling.

    Where a shape was timed in bf16 and fp16, the latter has its speed as a multiple of the former's.
    """
    rows = document["rows"]
    backward = any(row["direction"] == "bwd" for row in rows)
    steady = any(row["deterministic_cost"] is not None for row in rows)
    twins = {(row["shape"] + " fp16", row["implementation"]): row["milliseconds"] for row in rows}
    both = any((row["shape"], row["implementation"]) in twins for row in rows)
    cells, last = [], ""
    for row in rows:
        ratios = ("-" if value is None else f"{value:.2f}" for value in (row["over_cudnn"], row["bar"]))
        taken = f"{row['milliseconds']:.3f} ± {row['spread']:.3f}"
        shape = "" if row["shape"] == last else row["shape"]
        more = [_mib(row["borrowed_bytes"])] * backward + [_percent(row["deterministic_cost"])] * steady
        if both:
            twin = twins.get((row["shape"], row["implementation"]))
            more.append("" if twin is None else f"{twin / row['milliseconds']:.2f}")
        cells.append((shape, row["implementation"], taken, f"{row['tflops']:.0f}", *ratios, *more))
        last = row["shape"]
    columns = ["shape ", "implementation ", "ms", "TFLOP/s", "x cuDNN", "best peer"]
    columns += ["MiB borrowed"] * backward + ["deterministic cost"] * steady + ["x bf16"] * both
    shared.print_table(None, columns, cells)
    ceiling = f"{document['matrix_product_tflops']:.0f} TFLOP/s"
    for line in (*notes, f"matrix product of 8192 x 8192 bf16 on {document['gpu']}: {ceiling}"):
        shared.out.print(line, markup=False, soft_wrap=True)


def host(as_json: bool) -> None:
    """Time the host's side of a call and print that."""
    from flashgen.host_time import host_time

    rows = host_time()
    if as_json:
        shared.print_json([asdict(row) for row in rows])
        return
    cells = ((row.implementation, f"{row.microseconds:.1f} ± {row.spread:.1f}") for row in rows)
    shared.print_table(None, ("call ", "host microseconds"), cells)


def _mib(count: int | None) -> str:
    return "-" if count is None else f"{count / MIB:.1f}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
