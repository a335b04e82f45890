"""The command line: one typer app, one file a command."""

from __future__ import annotations

from typing import Annotated

import typer

from flashgen.cli import shared
from flashgen.cli.bench import bench
from flashgen.cli.build import build
from flashgen.cli.cache import cache
from flashgen.cli.doctor import doctor
from flashgen.cli.explain import explain
from flashgen.cli.listing import list_kernels
from flashgen.cli.new import new
from flashgen.cli.render import render
from flashgen.cli.schema import schema
from flashgen.cli.tune import tune
from flashgen.cli.verify import verify

HELP = """Fused attention kernels from YAML: plan, CUDA source, cubin, PyTorch op.

A first kernel, on any machine:

    flashgen doctor
    flashgen new --head-dim 72 > x.yaml
    flashgen explain x.yaml
    flashgen build x.yaml

and in Python: `flashgen.load("build/")`, then `flashgen.attention(q, k, v, causal=True)`.

Exit codes: 0 done, 1 something failed, 2 bad config or usage, 130 interrupted."""

app = typer.Typer(
    cls=shared.Commands,
    help=HELP,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (new, explain, render, build, verify, bench, tune, doctor, schema):
    app.command()(command)
app.command("list")(list_kernels)
app.add_typer(cache, name="cache", help="Show, clear or locate the cache of compiled kernels.")


def _version(asked: bool) -> None:
    if asked:
        from flashgen import __version__

        typer.echo(f"flashgen {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Options before the command."""


def main() -> None:
    """The console script."""
    app()
