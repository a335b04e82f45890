"""``flashgen bench``: kernels timed beside the attention of others."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flashgen.cli import bench_table, shared
from flashgen.cli.bench_shapes import direction_of, dtypes_of, entries_in, needed_entries, own_shapes, shapes_of
from flashgen.cli.progress import progress
from flashgen.errors import ToolchainError
from flashgen.peers import PEERS, left_out_notes, usable

if TYPE_CHECKING:
    from flashgen.bench_grid import Shape
    from flashgen.generator import ConfigEntry


def bench(
    configs: Annotated[
        list[str] | None,
        typer.Argument(metavar="CONFIG", help="Time these kernels instead of flashgen's choice.", show_default=False),
    ] = None,
    shapes: Annotated[
        str | None,
        typer.Option(
            "--shape", metavar="GLOB", help="Shapes of the grid, such as `d128 causal` or `bwd d64*S512`. None: all."
        ),
    ] = None,
    backward: Annotated[
        bool, typer.Option("--backward", help="Time gradients instead, alone, by torch.autograd.grad.")
    ] = False,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Of the backward, deterministic=True too, and its cost.")
    ] = False,
    head_dim: Annotated[int | None, typer.Option("--head-dim", metavar="D", help="One shape of your own.")] = None,
    head_dim_v: Annotated[int | None, typer.Option("--head-dim-v", metavar="D", help="Its head dim of v.")] = None,
    batch: Annotated[int | None, typer.Option("--batch", metavar="N", min=1, help="Its batch. None: 4.")] = None,
    seqlen: Annotated[int | None, typer.Option("--seqlen", metavar="N", min=1, help="Its length. None: 4096.")] = None,
    heads: Annotated[int | None, typer.Option("--heads", metavar="N", min=1, help="Its query heads. None: 16.")] = None,
    heads_kv: Annotated[int | None, typer.Option("--heads-kv", metavar="N", min=1, help="Its key heads.")] = None,
    mask: Annotated[str | None, typer.Option("--mask", metavar="MASK", help="full or causal. None: full.")] = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", metavar="DTYPES", help="Of all shapes: bf16, fp16, or bf16,fp16 for both. None: bf16."),
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option("--backend", metavar="NAME", help=f"{', '.join(PEERS)}; repeatable. None: all here but flex."),
    ] = None,
    repetitions: Annotated[int, typer.Option("--repetitions", metavar="N", min=2, help="Timed runs of each.")] = 20,
    host: Annotated[bool, typer.Option("--host", help="Time the host's side of a call instead.")] = False,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Also draw it, such as bench.png.")
    ] = None,
    as_json: shared.Json = False,
) -> None:
    """Time kernels beside other attention, run by run in turn. Needs the GPU that the kernels are for.

    Example: `flashgen bench --shape '*d128 causal*' --plot bench.png`, or `flashgen bench --backward --deterministic`
    """
    entries = shared.entries_of(configs) if configs else []
    direction = direction_of(backward, shapes, entries)
    if deterministic and (direction == "fwd" or entries):
        raise typer.BadParameter("--deterministic is of flashgen's own backward: use --backward, and no CONFIG")
    if host and (direction == "bwd" or entries):
        raise typer.BadParameter("--host times a call of flashgen.attention: use neither --backward nor CONFIG")
    entries = entries_in(direction, entries)
    dtypes = dtypes_of(dtype, shapes, entries)
    wanted = own_shapes(
        {
            "head_dim": head_dim, "head_dim_v": head_dim_v, "batch": batch, "seqlen": seqlen, "heads": heads,
            "heads_kv": heads_kv, "mask": mask,
        },
        direction, dtypes,
    ) or shapes_of(shapes, direction, entries, dtypes)  # fmt: skip
    if plot_file is not None and importlib.util.find_spec("matplotlib") is None:
        raise ToolchainError("matplotlib not found: --plot needs it. Install with: pip install 'flashgen[plot]'")

    from flashgen.host_time import need_gpu

    need_gpu()
    if host:
        bench_table.host(as_json)
        return
    done, notes = _timed(wanted, entries, backend, repetitions, deterministic)
    if as_json:
        shared.print_json(done)
        for note in notes:
            shared.err.print(note, markup=False, soft_wrap=True)
    else:
        bench_table.show(done, notes)
    if plot_file is not None:
        from flashgen.plot import save_plot

        save_plot(done, plot_file)
        shared.err.print(f"drawn in {plot_file}", soft_wrap=True)


def _timed(
    shapes: list[Shape], entries: list[ConfigEntry], backend: list[str] | None, repetitions: int, deterministic: bool
) -> tuple[dict[str, Any], list[str]]:
    """The document of a run, and who was left out of it."""
    from flashgen import bench_timing
    from flashgen.bench import bench as time_shapes
    from flashgen.bench_document import document
    from flashgen.cli.verify import compiled

    unknown = [name for name in backend or () if name not in PEERS]
    if unknown:
        raise typer.BadParameter(f"--backend: got {unknown[0]}; legal: {', '.join(PEERS)}")
    kernels, failed = compiled(needed_entries(shapes, entries, deterministic), None, compile_them=True)
    if failed:
        raise typer.Exit(shared.FAILED)
    names, absent = usable(backend or None)
    refused: dict[str, list[str]] = {}
    with progress("timing", len(shapes)) as step:
        numbers = itertools.count(1)
        rows = time_shapes(
            shapes,
            kernels=kernels[: len(entries)] if entries else None,
            backends=names,
            repetitions=repetitions,
            deterministic=deterministic,
            on_done=lambda shape, _: step(next(numbers), shape.name),
            on_left_out=lambda _, name, reason: refused.setdefault(name, []).append(reason),
        )
    ceiling = bench_timing.matrix_product_tflops(repetitions)
    return document(rows, ceiling, repetitions), left_out_notes(absent, refused, len(shapes))
