"""``flashgen verify``: kernels against the reference, on the GPU, and receipts of what passed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flashgen.cli import shared
from flashgen.cli.progress import progress

if TYPE_CHECKING:
    from flashgen.callable_kernel import Kernel
    from flashgen.generator import ConfigEntry
    from flashgen.verify import Verification


def verify(
    configs: shared.Configs = None,
    arch: shared.Arch = None,
    only: shared.Only = None,
    built: Annotated[
        Path | None, typer.Option("--built", metavar="FOLDER", help="Verify what `flashgen build` put there instead.")
    ] = None,
    device: Annotated[
        str, typer.Option("--device", metavar="DEVICE", help="cuda, cuda:1, or cpu for the CPU path.")
    ] = "cuda",
    receipts: Annotated[
        Path | None,
        typer.Option("--receipts", metavar="FILE", help="Where receipts go instead of configs/verified.json."),
    ] = None,
    no_receipts: Annotated[bool, typer.Option("--no-receipts", help="Write no receipts.")] = False,
    jobs: shared.Jobs = None,
    as_json: shared.Json = False,
) -> None:
    """Run kernels on the GPU against the reference, about a second each, and write receipts of the shipped ones.

    A kernel that was not built yet is compiled first. Ends with 1 when one is wrong.

    Example: `flashgen verify --only '*_d128_*'`
    """
    from flashgen import verify as verifier

    if built is not None and configs:
        raise typer.BadParameter("give either CONFIG or --built, not both")
    verifier.verify([], device=device)  # no GPU: say so before anything is compiled
    on_gpu = device != "cpu"
    if built:
        kernels, failed = _loaded(built, arch, only), 0
    else:
        kernels, failed = compiled(shared.entries_of(configs, arch, only), jobs, compile_them=on_gpu)
    done: list[Verification] = []
    with progress("verifying", len(kernels)) as show:

        def count(verification: Verification) -> None:
            done.append(verification)
            show(len(done), f"{verification.name}: {'ok' if verification.ok else 'WRONG'}")

        verifier.verify(kernels, device=device, on_done=count)
    if as_json:
        shared.print_json([_document(verification, on_gpu) for verification in done])
    else:
        _show(done)
    if on_gpu and not no_receipts:
        _record(done, receipts)
    raise typer.Exit(shared.FAILED if failed or not all(verification.ok for verification in done) else 0)


def _loaded(folder: Path, arch: str | None, only: str | None) -> list[Kernel]:
    from flashgen.errors import ConfigError
    from flashgen.loading import load

    kernels = [kernel for kernel in load(folder).values() if shared.wanted(kernel.spec, arch, only)]
    if not kernels:
        raise ConfigError(f"no kernel in {folder} matches")
    return kernels


def compiled(entries: list[ConfigEntry], jobs: int | None, *, compile_them: bool) -> tuple[list[Kernel], int]:
    """The kernels to verify, compiled in parallel beforehand, and how many the compiler refused."""
    from flashgen.build import build_all
    from flashgen.cli.build import check_plans, outcome_line
    from flashgen.loading import get_kernel

    check_plans(entries)
    if not compile_them:
        return [get_kernel(entry) for entry in entries], 0
    with progress("building", len(entries)) as show:
        result = build_all(entries, None, jobs, lambda outcome, done, total: show(done, outcome_line(outcome)))
    for entry, error in result.failed:
        shared.print_error(f"{entry.origin}: {error}")
    refused = {entry.spec for entry, _ in result.failed}
    return [get_kernel(entry) for entry in entries if entry.spec not in refused], len(refused)


def _document(verification: Verification, on_gpu: bool) -> dict[str, object]:
    return {
        "name": verification.name,
        "ok": verification.ok,
        "sha256": verification.kernel.code.sha256 if on_gpu else None,  # the CPU path has no machine code
        "device": verification.device,
        "cases": verification.cases,
        "worst_error": verification.worst_error,
        "worst_l2": verification.worst_l2,
        "seconds": verification.seconds,
        "failures": [{"case": failure.case, "reason": failure.reason} for failure in verification.failures],
    }


def _show(done: list[Verification]) -> None:
    rows = (
        (
            each.name,
            each.cases,
            f"{each.worst_error:.0%} of allowed",
            f"{each.seconds:.1f} s",
            "ok" if each.ok else "WRONG",
        )
        for each in done
    )
    shared.print_table(None, ("kernel ", "cases", "worst error", "time", "verdict "), rows)
    for each in done:
        for failure in each.failures:
            shared.print_error(f"{each.name}: {failure.case}: {failure.reason}")
    right = sum(each.ok for each in done)
    where = f" on {done[0].device}" if done else ""
    shared.out.print(f"{right} of {len(done)} kernels right{where}", soft_wrap=True)


def _record(done: list[Verification], path: Path | None) -> None:
    """Receipts for the plans that ship: what a user built of another plan says nothing of ours."""
    from flashgen.generator import plan_entry
    from flashgen.receipts import RECEIPTS, record

    shipped = {plan_entry(entry) for entry in shared.entries_of(None)}
    ours = [each for each in done if each.kernel.plan in shipped]
    if ours:
        target = path or RECEIPTS
        record(ours, target)
        shared.err.print(f"receipts of {sum(each.ok for each in ours)} shipped kernels in {target}", soft_wrap=True)
