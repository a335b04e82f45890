"""What ``flashgen tune`` is asked to tune: problems and the lengths of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from flashgen.cli import shared

if TYPE_CHECKING:
    from flashgen.bench_grid import Shape
    from flashgen.generator import KernelSpec, PlanRequest

SEQLENS = ["4096"]
TOKENS = 16384  # batch times length, unless the batch is given


@dataclass
class Problem:
    """A spec, the shapes to tune it on, and plans of its configs to try beside the search's own."""

    spec: KernelSpec
    shapes: list[Shape]
    seeds: list[PlanRequest] = field(default_factory=list)


def problems_of(
    configs: list[str] | None,
    only: str | None,
    own: dict[str, Any],
    seqlens: list[str] | None,
    sizes: dict[str, int | None],
) -> list[Problem]:
    """One problem for each spec, whatever ranges of keys its configs have. Bad input ends the command with 2."""
    from flashgen.errors import NotAvailableError
    from flashgen.generator import KernelPlan, KernelSpec, plan_entry

    given = {key: value for key, value in own.items() if value is not None}
    if configs and given:
        names = ", ".join(given)
        raise typer.BadParameter(f"give either CONFIG or a problem of your own, not both; got {names}")
    lengths = _lengths(seqlens or SEQLENS)
    if not configs:
        if "head_dim" not in given:
            raise typer.BadParameter("nothing to tune: give CONFIG or --head-dim")
        spec = KernelSpec.forward(**given)
        return [Problem(spec, _shapes(spec, lengths, sizes))]
    found: dict[KernelSpec, Problem] = {}
    for entry in shared.entries_of(configs, None, only):
        spec, made = entry.spec.any_length, plan_entry(entry)
        if not isinstance(made, KernelPlan):
            raise NotAvailableError(f"{entry.origin}: tuning {spec.op} is not available yet (available: attention_fwd)")
        problem = found.setdefault(spec, Problem(spec, _shapes(spec, lengths, sizes)))
        problem.seeds.append(made.request)
    return list(found.values())


def _lengths(words: list[str]) -> list[int]:
    parts = [part for word in words for part in word.split(",")]
    for part in parts:
        if not part.strip().isdecimal() or int(part) < 1:
            raise typer.BadParameter(f"--seqlen: got {part!r}; legal: numbers of keys above 0, such as 512,4096")
    return sorted({int(part) for part in parts})


def _shapes(spec: KernelSpec, lengths: list[int], sizes: dict[str, int | None]) -> list[Shape]:
    from flashgen.bench_grid import Shape

    usual = 32 if spec.head_dim_qk <= 64 else 16 if spec.head_dim_qk <= 192 else 8
    heads = sizes["heads"] or usual
    heads_kv = sizes["heads_kv"] or heads
    if heads % heads_kv:
        raise typer.BadParameter(f"--heads {heads} is no multiple of --heads-kv {heads_kv}")
    return [
        Shape(
            spec.mask.value, spec.head_dim_qk, sizes["batch"] or max(TOKENS // length, 1), heads, heads_kv, length,
            length, None, spec.head_dim_v, spec.dtype.value,
        )
        for length in lengths
    ]  # fmt: skip
