"""``flashgen build``: configs to machine code in a folder, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flashgen.cli import shared
from flashgen.cli.progress import progress

if TYPE_CHECKING:
    from flashgen.build import BuildResult, Outcome
    from flashgen.generator import ConfigEntry


def build(
    configs: shared.Configs = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where the kernels and their manifest go.")
    ] = Path("build"),
    arch: shared.Arch = None,
    only: shared.Only = None,
    jobs: shared.Jobs = None,
    as_json: shared.Json = False,
) -> None:
    """Compile kernels into FOLDER/NAME/ and enter them in FOLDER/manifest.json. Needs no GPU.

    A kernel that fails does not stop the others; failures are shown last and end the command with 1. A config that
    cannot be planned ends it with 2 before anything is compiled. What the cache has is not compiled again.

    Example: flashgen build x.yaml -o build/ -j 2
    """
    from flashgen.build import build_all

    entries = shared.entries_of(configs, arch, only)
    check_plans(entries)
    done = 0
    try:
        with progress("building", len(entries)) as show:

            def count(outcome: Outcome, finished: int, total: int) -> None:
                nonlocal done
                done = finished
                show(finished, outcome_line(outcome))

            result = build_all(entries, output, jobs, count)
    except KeyboardInterrupt:
        shared.print_error(
            f"interrupted: {done} of {len(entries)} kernels were done and are kept in {output}, "
            "whose manifest is whole; the same command goes on from there"
        )
        raise typer.Exit(shared.INTERRUPTED) from None
    if as_json:
        _print_json(result, output)
    else:
        _print_result(result, output)
    raise typer.Exit(shared.FAILED if result.failed else 0)


def check_plans(entries: list[ConfigEntry]) -> None:
    """Refuse a config whose plans cannot be built, all of them at once, before the first compilation."""
    from flashgen.errors import FlashgenError
    from flashgen.generator import plan_entry

    refused = []
    for entry in entries:
        try:
            plan_entry(entry)
        except FlashgenError as error:
            refused.append(str(error))
    if refused:
        for message in refused:
            shared.print_error(message)
        raise typer.Exit(shared.USAGE)


def outcome_line(outcome: Outcome) -> str:
    """One kernel of a build in one line."""
    built = outcome.built
    if outcome.error is not None or built is None:
        return f"{outcome.entry.spec.name}: failed"
    return f"{built.name}: {'cached' if built.cached else f'{built.seconds:.1f} s'}"


def _print_result(result: BuildResult, output: Path) -> None:
    if result.ok:
        rows = (
            (
                kernel.name,
                kernel.resources.registers,
                f"{len(kernel.cubin) / 1024:.0f} KiB",
                "cached" if kernel.cached else f"{kernel.seconds:.1f} s",
            )
            for kernel in sorted(result.ok, key=lambda kernel: kernel.name)
        )
        shared.print_table(None, ("kernel ", "registers", "cubin", "compiled in"), rows)
        shared.out.print(
            f"{len(result.ok)} kernels by {_compilers(result)} in {output}; "
            f"load them with flashgen.load({str(output)!r})",
            soft_wrap=True,
        )
    for entry, error in result.failed:
        shared.print_error(f"{entry.origin}: {error}")
    if result.failed:
        shared.print_error(f"{len(result.failed)} of {len(result.ok) + len(result.failed)} kernels failed")


def _compilers(result: BuildResult) -> str:
    return "NVRTC " + " and ".join(sorted({kernel.toolchain.nvrtc_version for kernel in result.ok}))


def _print_json(result: BuildResult, output: Path) -> None:
    shared.print_json(
        {
            "folder": output,
            "manifest": output / "manifest.json",
            "built": [kernel.report() | {"cached": kernel.cached} for kernel in result.ok],
            "failed": [
                {"name": entry.spec.name, "origin": entry.origin, "error": str(error)} for entry, error in result.failed
            ],
        }
    )
