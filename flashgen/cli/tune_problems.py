"""What ``flashgen tune`` is asked to tune: problems of one direction and the lengths of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from flashgen.cli import shared
from flashgen.cli.bench_shapes import check_heads, direction_of, entries_in, shape_for

if TYPE_CHECKING:
    from flashgen.bench_grid import Shape
    from flashgen.generator import AnyRequest, KernelSpec

SEQLENS = ["4096"]
TOKENS = 16384  # batch times length, unless the batch is given


@dataclass
class Problem:
    """A spec, the shapes to tune it on, and plans of its configs to try beside the search's own."""

    spec: KernelSpec
    shapes: list[Shape]
    seeds: list[AnyRequest] = field(default_factory=list)


def problems_of(
    configs: list[str] | None,
    only: str | None,
    own: dict[str, Any],
    seqlens: list[str] | None,
    sizes: dict[str, int | None],
    *,
    backward: bool,
    deterministic: bool,
) -> list[Problem]:
    """One problem for each spec, whatever ranges of keys its configs have. Bad input ends the command with 2.

    Backwards when ``backward`` says so or nothing else is among ``configs``, else forwards.
    """
    from flashgen.generator import KernelSpec, plan_entry

    given = {key: value for key, value in own.items() if value is not None}
    if configs and given:
        names = ", ".join(given)
        raise typer.BadParameter(f"give either CONFIG or a problem of your own, not both; got {names}")
    if deterministic and (configs or not backward):
        raise typer.BadParameter("--deterministic is of a backward of your own: use --backward, and no CONFIG")
    lengths = _lengths(seqlens or SEQLENS)
    if not configs:
        if "head_dim" not in given:
            raise typer.BadParameter("nothing to tune: give CONFIG or --head-dim")
        spec = KernelSpec.forward(**given)
        spec = spec.backward_of(deterministic) if backward else spec
        return [Problem(spec, _shapes(spec, lengths, sizes))]
    found: dict[KernelSpec, Problem] = {}
    entries = shared.entries_of(configs, None, only)
    for entry in entries_in(direction_of(backward, None, entries), entries):
        spec = entry.spec.any_length
        problem = found.setdefault(spec, Problem(spec, _shapes(spec, lengths, sizes)))
        problem.seeds.append(plan_entry(entry).request)
    return list(found.values())


def _lengths(words: list[str]) -> list[int]:
    parts = [part for word in words for part in word.split(",")]
    for part in parts:
        if not part.strip().isdecimal() or int(part) < 1:
            raise typer.BadParameter(f"--seqlen: got {part!r}; legal: numbers of keys above 0, such as 512,4096")
    return sorted({int(part) for part in parts})


def _shapes(spec: KernelSpec, lengths: list[int], sizes: dict[str, int | None]) -> list[Shape]:

    usual = 32 if spec.head_dim_qk <= 64 else 16 if spec.head_dim_qk <= 192 else 8
    heads = sizes["heads"] or usual
    heads_kv = sizes["heads_kv"] or heads
    check_heads(heads, heads_kv)
    return [shape_for(spec, sizes["batch"] or max(TOKENS // length, 1), heads, heads_kv, length) for length in lengths]
