"""``flashgen tune``: the fastest plans of a problem, searched on the GPU and written as YAML."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flashgen.cli import shared
from flashgen.cli.progress import progress
from flashgen.cli.tune_compile import compile_only as compile_candidates
from flashgen.cli.tune_problems import problems_of

if TYPE_CHECKING:
    from flashgen.tune import Search
    from flashgen.tune_space import Options
    from flashgen.tune_state import TuneState


def tune(
    configs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG",
            show_default=False,
            help="YAML files, or names of shipped kernels (`*` and `?` match), whose problems to tune.",
        ),
    ] = None,
    backward: Annotated[
        bool, typer.Option("--backward", help="Tune gradients: of CONFIG the backwards, or one of your own.")
    ] = False,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Of your own backward, the one that gives the same bits every run.")
    ] = False,
    head_dim: Annotated[int | None, typer.Option("--head-dim", metavar="D", help="One problem of your own.")] = None,
    head_dim_v: Annotated[int | None, typer.Option("--head-dim-v", metavar="D", help="Its head dim of v.")] = None,
    mask: Annotated[str | None, typer.Option("--mask", metavar="MASK", help="full or causal. None: full.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", metavar="DTYPE", help="bf16 or fp16. None: bf16.")] = None,
    only: shared.Only = None,
    seqlen: Annotated[
        list[str] | None,
        typer.Option("--seqlen", metavar="N", help="Lengths to tune for: 512,4096 or repeated. None: 4096."),
    ] = None,
    batch: Annotated[int | None, typer.Option("--batch", metavar="N", min=1, help="None: 16384 / length.")] = None,
    heads: Annotated[
        int | None, typer.Option("--heads", metavar="N", min=1, help="Query heads. None: 32, 16 or 8 by head dim.")
    ] = None,
    heads_kv: Annotated[int | None, typer.Option("--heads-kv", metavar="N", min=1, help="None: as --heads.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the YAML there, not to stdout.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option("--state", metavar="FILE", help="What was measured. None: tune.jsonl in the kernel cache."),
    ] = None,
    budget: Annotated[int, typer.Option("--budget", metavar="N", min=2, help="Plans to try for a problem.")] = 160,
    keep: Annotated[int, typer.Option("--keep", metavar="N", min=1, help="Best tiles whose knobs are tried.")] = 3,
    repetitions: Annotated[int, typer.Option("--repetitions", metavar="N", min=2, help="Timed runs of each.")] = 20,
    compile_only: Annotated[
        bool, typer.Option("--compile-only", help="Only compile the candidates into the cache. Needs no GPU.")
    ] = False,
    jobs: shared.Jobs = None,
    as_json: shared.Json = False,
) -> None:
    """Search the fastest plan of a problem on the GPU at hand, and write it as YAML for `flashgen build`.

    What was measured is kept: the same command goes on where an interrupted one was. See docs/tuning.md.

    Example: `flashgen tune --head-dim 96 --mask causal --seqlen 1024,4096,16384 -o tuned.yaml`, or
    `flashgen tune --backward --head-dim 128 --seqlen 512,4096`
    """
    from flashgen.tune_space import Options
    from flashgen.tune_state import TuneState, default_state

    own = {"head_dim": head_dim, "head_dim_v": head_dim_v, "mask": mask, "dtype": dtype}
    sizes = {"batch": batch, "heads": heads, "heads_kv": heads_kv}
    problems = problems_of(configs, only, own, seqlen, sizes, backward=backward, deterministic=deterministic)
    options = Options(budget, keep, repetitions, 3 * repetitions)
    if compile_only:
        compile_candidates(problems, options, jobs, as_json)
        return

    from flashgen.tune import Search
    from flashgen.tune_gpu import Gpu

    machine = Gpu(problems[0].spec, jobs)
    kept = TuneState(state or default_state())
    searches = [
        Search(each.spec, each.shapes, machine, kept, options, seeds=each.seeds, stage=progress) for each in problems
    ]
    _run(searches, machine.name, kept, options, output, as_json)


def _run(
    searches: list[Search], gpu: str, kept: TuneState, options: Options, output: Path | None, as_json: bool
) -> None:
    from flashgen.errors import NotShippableError
    from flashgen.files import write_atomic
    from flashgen.toolchain import find_toolchain
    from flashgen.tune_report import figures, to_config, to_document
    from flashgen.tune_trials import LostGpuError

    nvrtc = find_toolchain().nvrtc_version
    texts: list[str] = []
    documents: list[dict[str, Any]] = []
    failed = False
    for at, search in enumerate(searches, 1):
        try:
            ranges = search.run()
        except KeyboardInterrupt:
            _show_best(searches[:at])
            where = f"is kept in {kept.path}" if kept.path else "is lost, since there is no folder to keep it in"
            shared.print_error(f"interrupted: what was measured {where}; the same command goes on from there")
            raise typer.Exit(shared.INTERRUPTED) from None
        except LostGpuError as error:
            _show_best(searches[:at])
            shared.print_error(str(error))
            _leave()
        except NotShippableError as error:
            shared.print_error(str(error))
            failed = True
            continue
        for each in ranges:
            for found in each.found:
                shared.err.print(figures(found), markup=False, soft_wrap=True)
        texts.append(to_config(ranges, gpu, nvrtc))
        documents.append(to_document(search, ranges, gpu, nvrtc))
    text = "---\n".join(texts)
    if output is not None and texts:
        write_atomic(output, text.encode())
        shared.err.print(f"{output}: build it with `flashgen build {output}`", markup=False, soft_wrap=True)
    if as_json:
        shared.print_json(documents)
    elif output is None:
        typer.echo(text, nl=False)
    raise typer.Exit(shared.FAILED if failed else 0)


def _show_best(searches: list[Search]) -> None:
    """The best so far, on stderr: nothing of it is final."""
    from flashgen.generator.search import label
    from flashgen.tune_report import figures

    for search in searches:
        for found in search.best():
            checked = "" if found.verified else ", not verified yet"
            shared.err.print(
                f"best so far: {figures(found)}: {label(found.plan)}{checked}", markup=False, soft_wrap=True
            )


def _leave() -> None:
    # A kernel that hangs would keep this process from unloading it, for ever.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(shared.FAILED)
