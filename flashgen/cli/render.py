"""``flashgen render``: the CUDA source of kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flashgen.cli import shared


def render(
    configs: shared.Configs = None,
    arch: shared.Arch = None,
    only: shared.Only = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Write FOLDER/NAME.cu for each kernel."),
    ] = None,
) -> None:
    """Print the CUDA source of kernels.

    Example: flashgen render attention_fwd_fa3_sm90a_bf16_d128_causal
    """
    from flashgen.generator import plan_entry, render

    found = shared.entries_of(configs, arch, only)
    texts = {entry.spec.name: render(plan_entry(entry), entry.origin) for entry in found}
    if output is None:
        typer.echo("\n".join(texts.values()), nl=False)
        return
    output.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        path = output / f"{name}.cu"
        path.write_text(text, encoding="utf-8")
        typer.echo(path)
