"""``flashgen list``: which kernels ship, are built, cached and verified."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flashgen.cli import shared

if TYPE_CHECKING:
    from flashgen.generator import ConfigEntry
    from flashgen.receipts import Receipt


def list_kernels(
    configs: shared.Configs = None,
    arch: shared.Arch = None,
    only: shared.Only = None,
    built: Annotated[
        Path, typer.Option("--built", metavar="FOLDER", help="The folder of `flashgen build` to look into.")
    ] = Path("build"),
    as_json: shared.Json = False,
) -> None:
    """Show the kernels that ship: their tile, whether they are built and cached, by which NVRTC, and verified on a GPU.

    "yes" under verified means that the very machine code at hand ran on a GPU and was right; a compiler's version means
    that the receipt is of code from that compiler and none was compiled here to compare with; "other code" means that
    what was compiled here is not what the receipt is of.

    Example: `flashgen list --only '*_bf16_*_causal'`
    """
    from flashgen.receipts import read_receipts

    manifest = _manifest(built)
    receipts = read_receipts()
    rows = [_row(entry, manifest, receipts) for entry in shared.entries_of(configs, arch, only)]
    if as_json:
        shared.print_json(rows)
        return
    columns = ("kernel ", "tile", "built", "cached", "verified ")
    cells = (
        (row["name"], row["tile"], *(row[key] or "-" for key in ("built_by", "cached_by")), row["verified"])
        for row in rows
    )
    shared.print_table(None, columns, cells)


def _manifest(folder: Path) -> dict[str, Any]:
    from flashgen.artifacts import MANIFEST, read_manifest

    if not (folder / MANIFEST).exists():
        return {}
    return dict(read_manifest(folder, check=False).kernels)


def _row(entry: ConfigEntry, manifest: dict[str, Any], receipts: dict[str, Receipt]) -> dict[str, Any]:
    from flashgen.generator import plan_entry
    from flashgen.kernel import cached_kernel

    plan = plan_entry(entry)
    built = manifest.get(plan.name)
    if built is not None and built.plan != plan:
        built = None  # of the same spec, by another config
    cached = cached_kernel(entry.spec, entry.request, origin=entry.origin)
    at_hand = {kernel.sha256 for kernel in (built, cached) if kernel is not None}
    return {
        "name": plan.name,
        "origin": entry.origin,
        "tile": plan.label,
        "built": built is not None,
        "cached": cached is not None,
        "built_by": None if built is None else built.toolchain["nvrtc_version"],
        "cached_by": None if cached is None else cached.toolchain.nvrtc_version,
        "verified": _verified(receipts.get(plan.name), at_hand),
    }


def _verified(receipt: Receipt | None, at_hand: set[str]) -> str:
    if receipt is None:
        return "-"
    if not at_hand:
        return receipt.compiler
    return "yes" if receipt.sha256 in at_hand else "other code"
