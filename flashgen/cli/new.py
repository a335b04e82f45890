"""``flashgen new``: a config for a head dim, to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def new(
    head_dim: Annotated[
        int, typer.Option("--head-dim", metavar="D", help="Head dim of q and k: a multiple of 8 to 256.")
    ],
    head_dim_v: Annotated[
        int | None, typer.Option("--head-dim-v", metavar="D", help="Head dim of v and out, when it differs.")
    ] = None,
    kernel: Annotated[
        str, typer.Option("--kernel", metavar="KERNEL", help="attention_fwd, or attention_bwd for its gradients.")
    ] = "attention_fwd",
    arch: Annotated[str, typer.Option("--arch", metavar="ARCH", help="The GPU target; sm90a is Hopper.")] = "sm90a",
    dtype: Annotated[
        list[str] | None,
        typer.Option("--dtype", metavar="DTYPE", help="bf16 or fp16; may be repeated. None: both."),
    ] = None,
    mask: Annotated[
        list[str] | None,
        typer.Option("--mask", metavar="MASK", help="full or causal; may be repeated. None: both."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it there, never over a file.")
    ] = None,
) -> None:
    """Write a commented YAML config for a head dim.

    Example: flashgen new --head-dim 72 --arch sm90a > x.yaml && flashgen build x.yaml
    """
    from flashgen.errors import ConfigError
    from flashgen.generator import new_config

    chosen: dict[str, Any] = {key: words for key, words in (("dtype", dtype), ("mask", mask)) if words}
    text = new_config(head_dim, arch, head_dim_v=head_dim_v, kernel=kernel, **chosen)
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{output} exists already: choose another name or remove it") from None
    typer.echo(f"{output}: build it with `flashgen build {output}`", err=True)
