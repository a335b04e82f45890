"""Which shapes and which kernels ``flashgen bench`` times."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from flashgen.bench_grid import Shape
    from flashgen.generator import ConfigEntry, KernelSpec

BATCH, HEADS, SEQLEN = 4, 16, 4096


def own_shape(given: dict[str, Any], direction: str) -> Shape | None:
    """The one shape of the options, or None when they name none; what no kernel does is refused here."""
    from flashgen.bench_grid import Shape

    given = {key: value for key, value in given.items() if value is not None}
    if "head_dim" not in given:
        if given:
            raise typer.BadParameter(f"{', '.join(given)}: part of a shape of your own, which needs --head-dim too")
        return None
    seqlen, heads = given.pop("seqlen", SEQLEN), given.pop("heads", HEADS)
    usual = {"mask": "full", "batch": BATCH, "heads_kv": heads}
    shape = Shape(heads_q=heads, seqlen_q=seqlen, seqlen_k=seqlen, direction=direction, **(usual | given))
    if heads % shape.heads_kv:
        raise typer.BadParameter(f"--heads {heads} is no multiple of --heads-kv {shape.heads_kv}")
    shape.spec()
    return shape


def direction_of(backward: bool, pattern: str | None, entries: list[ConfigEntry]) -> str:
    """``bwd`` where asked for, and where the pattern or every kernel given can mean nothing else; else ``fwd``."""
    only = bool(entries) and all(_is_backward(entry) for entry in entries)
    return "bwd" if backward or only or "bwd" in (pattern or "") else "fwd"


def entries_in(direction: str, entries: list[ConfigEntry]) -> list[ConfigEntry]:
    """The kernels given of that direction; refused when all are of the other."""
    kept = [entry for entry in entries if _is_backward(entry) == (direction == "bwd")]
    if entries and not kept:
        raise typer.BadParameter(f"CONFIG: got {entries[0].spec.name}; expected kernels of attention_{direction}")
    return kept


def shapes_of(pattern: str | None, own: Shape | None, direction: str, entries: list[ConfigEntry]) -> list[Shape]:
    """The shapes to time: the own one, else those of the grid, else a usual one for kernels that the grid lacks."""
    from flashgen.bench_grid import BACKWARD_GRID, GRID, Shape

    if own is not None:
        return [own]
    grid = BACKWARD_GRID if direction == "bwd" else GRID
    found = [shape for shape in grid if pattern is None or fnmatch.fnmatchcase(shape.name, f"*{pattern}*")]
    specs = {_problem(entry.spec) for entry in entries}
    if specs:
        found = [shape for shape in found if shape.spec() in specs]
    for spec in specs - {shape.spec() for shape in found} if pattern is None else ():
        usual = Shape(
            spec.mask.value, spec.head_dim_qk, BATCH, HEADS, HEADS, SEQLEN, SEQLEN, None, spec.head_dim_v,
            spec.dtype.value, direction,
        )  # fmt: skip
        found.append(usual)
    if not found:
        raise typer.BadParameter(f"no shape of the grid matches {pattern!r}; such as {grid[0].name!r}")
    return found


def needed_entries(shapes: Iterable[Shape], entries: list[ConfigEntry], deterministic: bool) -> list[ConfigEntry]:
    """The kernels to compile beforehand: those given, else flashgen's choice, and a backward's forward."""
    from flashgen.generator import ConfigEntry
    from flashgen.loading import kernel_for

    needed = {entry.spec: entry for entry in entries}
    for shape in shapes:
        specs = [] if entries else [shape.spec()]
        if shape.direction == "bwd":
            specs.append(replace(shape, direction="fwd").spec())
            specs += [shape.spec(deterministic=True)] if deterministic else []
        for spec in specs:
            plan = kernel_for(spec, shape.seqlen_k).plan
            needed.setdefault(plan.spec, ConfigEntry(plan.spec, plan.request, shape.name))
    return list(needed.values())


def _is_backward(entry: ConfigEntry) -> bool:
    return entry.spec.op.value == "attention_bwd"


def _problem(spec: KernelSpec) -> KernelSpec:
    """The spec of the shapes that a kernel is timed on."""
    return replace(spec.any_length, features=tuple(word for word in spec.features if word != "deterministic"))
