"""``flashgen bench``: kernels timed beside the attention of others."""

from __future__ import annotations

import fnmatch
import importlib.util
import itertools
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flashgen.cli import shared
from flashgen.cli.progress import progress
from flashgen.errors import ToolchainError
from flashgen.peers import PEERS, left_out_notes, usable

if TYPE_CHECKING:
    from flashgen.bench_grid import Shape
    from flashgen.callable_kernel import Kernel
    from flashgen.generator import ConfigEntry, KernelSpec

BATCH, HEADS, SEQLEN = 4, 16, 4096


def bench(
    configs: Annotated[
        list[str] | None,
        typer.Argument(metavar="CONFIG", help="Time these kernels instead of flashgen's choice.", show_default=False),
    ] = None,
    shapes: Annotated[
        str | None,
        typer.Option("--shape", metavar="GLOB", help="Shapes of the grid, such as `*d128 causal*`. None: all."),
    ] = None,
    head_dim: Annotated[int | None, typer.Option("--head-dim", metavar="D", help="One shape of your own.")] = None,
    head_dim_v: Annotated[int | None, typer.Option("--head-dim-v", metavar="D", help="Its head dim of v.")] = None,
    batch: Annotated[int | None, typer.Option("--batch", metavar="N", min=1, help="Its batch. None: 4.")] = None,
    seqlen: Annotated[int | None, typer.Option("--seqlen", metavar="N", min=1, help="Its length. None: 4096.")] = None,
    heads: Annotated[int | None, typer.Option("--heads", metavar="N", min=1, help="Its query heads. None: 16.")] = None,
    heads_kv: Annotated[int | None, typer.Option("--heads-kv", metavar="N", min=1, help="Its key heads.")] = None,
    mask: Annotated[str | None, typer.Option("--mask", metavar="MASK", help="full or causal. None: full.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", metavar="DTYPE", help="bf16 or fp16. None: bf16.")] = None,
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

    Example: `flashgen bench --shape '*d128 causal*' --plot bench.png`
    """
    own = _own_shape(
        {
            "head_dim": head_dim, "head_dim_v": head_dim_v, "batch": batch, "seqlen": seqlen, "heads": heads,
            "heads_kv": heads_kv, "mask": mask, "dtype": dtype,
        }
    )  # fmt: skip
    entries = shared.entries_of(configs) if configs else []
    wanted = _shapes(shapes, own, entries)
    if plot_file is not None and importlib.util.find_spec("matplotlib") is None:
        raise ToolchainError("matplotlib not found: --plot needs it. Install with: pip install 'flashgen[plot]'")

    from flashgen.host_time import need_gpu

    need_gpu()
    if host:
        _host(as_json)
        return
    done, notes = _timed(wanted, entries, backend, repetitions)
    if as_json:
        shared.print_json(done)
        for note in notes:
            shared.err.print(note, markup=False, soft_wrap=True)
    else:
        _show(done, notes)
    if plot_file is not None:
        from flashgen.plot import save_plot

        save_plot(done, plot_file)
        shared.err.print(f"drawn in {plot_file}", soft_wrap=True)


def _own_shape(given: dict[str, Any]) -> Shape | None:
    """The one shape of the options, or None when they name none; what no kernel does is refused here."""
    from flashgen.bench_grid import Shape

    given = {key: value for key, value in given.items() if value is not None}
    if "head_dim" not in given:
        if given:
            raise typer.BadParameter(f"{', '.join(given)}: part of a shape of your own, which needs --head-dim too")
        return None
    seqlen, heads = given.pop("seqlen", SEQLEN), given.pop("heads", HEADS)
    usual = {"mask": "full", "batch": BATCH, "heads_kv": heads}
    shape = Shape(heads_q=heads, seqlen_q=seqlen, seqlen_k=seqlen, **(usual | given))
    if heads % shape.heads_kv:
        raise typer.BadParameter(f"--heads {heads} is no multiple of --heads-kv {shape.heads_kv}")
    _problem(shape)
    return shape


def _shapes(pattern: str | None, own: Shape | None, entries: list[ConfigEntry]) -> list[Shape]:
    """The shapes to time: the own one, else those of the grid, else a usual one for kernels that the grid lacks."""
    from flashgen.bench_grid import GRID, Shape

    if own is not None:
        return [own]
    found = [shape for shape in GRID if pattern is None or fnmatch.fnmatchcase(shape.name, f"*{pattern}*")]
    specs = {entry.spec.any_length for entry in entries}
    if specs:
        found = [shape for shape in found if _problem(shape) in specs]
    for spec in specs - {_problem(shape) for shape in found} if pattern is None else ():
        usual = Shape(
            spec.mask.value, spec.head_dim_qk, BATCH, HEADS, HEADS, SEQLEN, SEQLEN, None, spec.head_dim_v,
            spec.dtype.value,
        )  # fmt: skip
        found.append(usual)
    if not found:
        raise typer.BadParameter(f"no shape of the grid matches {pattern!r}; such as {GRID[0].name!r}")
    return found


def _problem(shape: Shape) -> KernelSpec:
    from flashgen.generator import KernelSpec

    return KernelSpec.forward(head_dim=shape.head_dim, head_dim_v=shape.d_v, dtype=shape.dtype, mask=shape.mask)


def _entry(shape: Shape) -> ConfigEntry:
    """The kernel that flashgen chooses for a shape."""
    from flashgen.generator import ConfigEntry
    from flashgen.loading import kernel_for

    chosen = kernel_for(_problem(shape), shape.seqlen_k).plan
    return ConfigEntry(chosen.spec, chosen.request, shape.name)


def _timed(
    shapes: list[Shape], entries: list[ConfigEntry], backend: list[str] | None, repetitions: int
) -> tuple[dict[str, Any], list[str]]:
    """The document of a run, and who was left out of it."""
    from flashgen import bench as timing
    from flashgen.cli.verify import compiled

    unknown = [name for name in backend or () if name not in PEERS]
    if unknown:
        raise typer.BadParameter(f"--backend: got {unknown[0]}; legal: {', '.join(PEERS)}")
    chosen = entries or list({_entry(shape).spec: _entry(shape) for shape in shapes}.values())
    kernels: list[Kernel]
    kernels, failed = compiled(chosen, None, compile_them=True)
    if failed:
        raise typer.Exit(shared.FAILED)
    names, absent = usable(backend or None)
    refused: dict[str, list[str]] = {}
    with progress("timing", len(shapes)) as step:
        numbers = itertools.count(1)
        rows = timing.bench(
            shapes,
            kernels=kernels if entries else None,
            backends=names,
            repetitions=repetitions,
            on_done=lambda shape, _: step(next(numbers), shape.name),
            on_left_out=lambda _, name, reason: refused.setdefault(name, []).append(reason),
        )
    ceiling = timing.matrix_product_tflops(repetitions)
    return timing.document(rows, ceiling, repetitions), left_out_notes(absent, refused, len(shapes))


def _show(document: dict[str, Any], notes: list[str]) -> None:
    cells, last = [], ""
    for row in document["rows"]:
        ratios = ("-" if value is None else f"{value:.2f}" for value in (row["over_cudnn"], row["bar"]))
        taken = f"{row['milliseconds']:.3f} ± {row['spread']:.3f}"
        shape = "" if row["shape"] == last else row["shape"]
        cells.append((shape, row["implementation"], taken, f"{row['tflops']:.0f}", *ratios))
        last = row["shape"]
    shared.print_table(None, ("shape ", "implementation ", "ms", "TFLOP/s", "x cuDNN", "best peer"), cells)
    ceiling = f"{document['matrix_product_tflops']:.0f} TFLOP/s"
    for line in (*notes, f"matrix product of 8192 x 8192 bf16 on {document['gpu']}: {ceiling}"):
        shared.out.print(line, markup=False, soft_wrap=True)


def _host(as_json: bool) -> None:
    from flashgen.host_time import host_time

    rows = host_time()
    if as_json:
        shared.print_json([asdict(row) for row in rows])
        return
    cells = ((row.implementation, f"{row.microseconds:.1f} ± {row.spread:.1f}") for row in rows)
    shared.print_table(None, ("call ", "host microseconds"), cells)
