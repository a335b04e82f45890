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


def own_shapes(given: dict[str, Any], direction: str, dtypes: Iterable[str]) -> list[Shape]:
    """The shape of the options in each dtype; none when they name none. What no kernel does is refused here."""
    from flashgen.bench_grid import Shape

    given = {key: value for key, value in given.items() if value is not None}
    if "head_dim" not in given:
        if given:
            raise typer.BadParameter(f"{', '.join(given)}: part of a shape of your own, which needs --head-dim too")
        return []
    seqlen, heads = given.pop("seqlen", SEQLEN), given.pop("heads", HEADS)
    given = {"mask": "full", "batch": BATCH, "heads_kv": heads} | given
    check_heads(heads, given["heads_kv"])
    sizes = {"heads_q": heads, "seqlen_q": seqlen, "seqlen_k": seqlen, "direction": direction}
    shapes = [Shape(dtype=dtype, **sizes, **given) for dtype in dtypes]
    for shape in shapes:
        shape.spec()
    return shapes


def shape_for(spec: KernelSpec, batch: int, heads: int, heads_kv: int, seqlen: int) -> Shape:
    """A shape that a kernel of that spec takes, as many queries as keys."""
    from flashgen.bench_grid import Shape
    from flashgen.generator import Op

    return Shape(
        spec.mask.value, spec.head_dim_qk, batch, heads, heads_kv, seqlen, seqlen, None, spec.head_dim_v,
        spec.dtype.value, "bwd" if spec.op is Op.attention_bwd else "fwd",
    )  # fmt: skip


def check_heads(heads: int, heads_kv: int) -> None:
    """Refuse key heads that do not divide the query heads."""
    if heads % heads_kv:
        raise typer.BadParameter(f"--heads {heads} is no multiple of --heads-kv {heads_kv}")


def dtypes_of(given: str | None, pattern: str | None, entries: list[ConfigEntry]) -> list[str]:
    """The dtypes to time, in order: those given, else of the kernels given, else what the pattern can mean."""
    from flashgen.bench_grid import DTYPES

    if given is None:
        named = [dtype for dtype in DTYPES if dtype in (pattern or "")]
        return named or list(dict.fromkeys(entry.spec.dtype.value for entry in entries)) or [DTYPES[0]]
    found = [word.strip() for word in given.split(",")]
    if wrong := [word for word in found if word not in DTYPES]:
        raise typer.BadParameter(f"--dtype: got {wrong[0]!r}; legal: {', '.join(DTYPES)}, or both with a comma")
    if entries and not any(entry.spec.dtype in found for entry in entries):
        raise typer.BadParameter(f"--dtype: got {given}; the kernels given are {entries[0].spec.name} and so on")
    return list(dict.fromkeys(found))


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


def shapes_of(pattern: str | None, direction: str, entries: list[ConfigEntry], dtypes: list[str]) -> list[Shape]:
    """Those of the grid, each in every dtype, and a usual one for kernels that the grid lacks."""
    from flashgen.bench_grid import BACKWARD_GRID, GRID

    grid = [shape.in_dtype(dtype) for shape in (BACKWARD_GRID if direction == "bwd" else GRID) for dtype in dtypes]
    found = [shape for shape in grid if pattern is None or fnmatch.fnmatchcase(shape.name, f"*{pattern}*")]
    specs = {_problem(entry.spec) for entry in entries if entry.spec.dtype in dtypes}
    if specs:
        found = [shape for shape in found if shape.spec() in specs]
    for spec in specs - {shape.spec() for shape in found} if pattern is None else ():
        found.append(shape_for(spec, BATCH, HEADS, HEADS, SEQLEN))
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
