"""``flashgen doctor``: what is installed, what is missing, and the command that fixes it."""

from __future__ import annotations

from typing import Annotated

import typer

from flashgen.cli import shared

STYLES = {"ok": "green", "info": "dim", "warning": "yellow", "error": "bold red"}


def doctor(
    compile_probe: Annotated[
        bool, typer.Option("--compile", help="Also compile a small file over CuTe's headers, which takes seconds.")
    ] = False,
    as_json: shared.Json = False,
) -> None:
    """Show versions, GPU and paths, and what to do about what is missing.

    Ends with 1 when kernels cannot be compiled here. Example: flashgen doctor --compile
    """
    from flashgen.doctor import diagnose

    report = diagnose(compile_probe=compile_probe)
    if as_json:
        shared.print_json(report.to_dict())
    else:
        width = max(len(finding.name) for finding in report.findings)
        for finding in report.findings:
            status = finding.status.value
            shared.out.print(f"{status:8}", style=STYLES[status], end="")
            shared.out.print(f"{finding.name:{width}}  {finding.value}", markup=False, soft_wrap=True)
            if finding.fix:
                shared.out.print(f"{'':{8 + width}}  fix: {finding.fix}", markup=False, soft_wrap=True)
        verdict, style = ("can", "green") if report.can_compile else ("cannot", "bold red")
        shared.out.print(f"kernels {verdict} be compiled here", style=style)
    raise typer.Exit(0 if report.can_compile else shared.FAILED)
