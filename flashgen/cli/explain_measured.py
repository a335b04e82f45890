"""What ``flashgen explain`` says of measured speed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashgen.cli import shared

if TYPE_CHECKING:
    from flashgen.figures import Measured
    from flashgen.generator import AnyPlan
    from flashgen.kernel import BuiltKernel

# Whether the machine code that was measured is the one at hand -> what the text says of it.
CODE = {"same": "", "other": "; of other machine code than this", "unknown": "; compared by plan, not by machine code"}


def known(files: Iterable[Path]) -> list[Measured]:
    """The figures that ship, those of what ``flashgen tune`` timed on this machine, and those of the files given."""
    from flashgen import figures
    from flashgen.tune_state import default_state

    state = default_state()
    own = [state] if state is not None and state.is_file() else []
    return [*figures.shipped(), *(each for path in (*own, *files) for each in figures.read_file(path))]


def records(plan: AnyPlan, measured: Iterable[Measured], at_hand: BuiltKernel | None) -> list[dict[str, Any]]:
    """What was measured of a plan, a record a run. ``at_hand``: its machine code here, to compare with."""
    from flashgen.figures import of_plan

    found = []
    for each in of_plan(plan, measured):
        code = "unknown"
        if at_hand is not None and each.kernel == at_hand.name:  # a kernel's name is part of its machine code
            code = "same" if each.sha256 == at_hand.sha256 else "other"
        about = {"gpu": each.gpu, "compiler": each.compiler, "date": each.date, "sha256": each.sha256, "code": code}
        shapes = {
            name: {
                "tflops": tflops,
                "share_of_peak": _share(tflops, each.peak_tflops),
                "share_of_product": _share(tflops, each.product_tflops),
            }
            for name, tflops in each.shapes.items()
        }
        found.append(about | {"shapes": shapes})
    return found


def show(found: Iterable[dict[str, Any]]) -> None:
    """Each record's shapes, a line each, and what they were measured on."""
    label = "measured"
    for record in found:
        lines = [_line(name, values) for name, values in record["shapes"].items()]
        ran_on = ", ".join(filter(None, (record["gpu"], record["compiler"], record["date"])))
        for line in (*lines, f"on {ran_on}{CODE[record['code']]}"):
            shared.out.print(f"  {label:13} {line}", markup=False, soft_wrap=True)
            label = ""


def _line(name: str, values: dict[str, float | None]) -> str:
    shares = (("share_of_peak", "of peak"), ("share_of_product", "of a matrix product"))
    told = [f"{values[key]:.0%} {what}" for key, what in shares if values[key] is not None]
    size = name.split(" ", 3)[3]  # the kernel's own name has direction, head dims and mask
    return f"{size}: " + ", ".join([f"{values['tflops']:.0f} TFLOP/s", *told])


def _share(tflops: float, of: float | None) -> float | None:
    return None if of is None else round(tflops / of, 4)
