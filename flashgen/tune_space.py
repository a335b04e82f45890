"""The plans that a search may try, of forwards and of backwards alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flashgen.generator import AnyPlan, BackwardPlan, KernelPlan, KernelSpec, Op, backward_search, plan, search
from flashgen.generator.shipped import shipped_spec


@dataclass(frozen=True)
class Options:
    """How long a search takes: plans in all, tiles whose knobs are tried, timed runs of each and of the finalists."""

    budget: int = 160
    keep: int = 3
    repetitions: int = 20
    finals: int = 60


def incumbent_of(spec: KernelSpec, keys: int) -> AnyPlan:
    """The plan that a call with so many keys gets today, as a plan for any number of keys."""
    return plan(spec.any_length, plan(shipped_spec(spec.any_length, keys)).request)


def first_round(spec: KernelSpec, seeds: Iterable[AnyPlan], budget: int) -> list[AnyPlan]:
    """All seeds, then tiles, which take no more than half the budget: the rest is for knobs."""
    first = dict.fromkeys(seeds)
    requests = backward_search.tiles(spec) if spec.op is Op.attention_bwd else search.tiles(spec)
    every = first | dict.fromkeys(plan(spec, request) for request in requests)
    return list(every)[: max(budget // 2, len(first))]


def family_of(base: AnyPlan) -> list[AnyPlan]:
    """The plans to try once one turns out well: a forward with one knob changed, a backward with any but its tile."""
    requests = backward_search.siblings(base) if isinstance(base, BackwardPlan) else search.neighbours(base)
    return [plan(base.spec, request) for request in requests]


def together(base: AnyPlan, better: Sequence[AnyPlan]) -> list[AnyPlan]:
    """What made plans of the base's family better than it, together; of a backward's they are all there already."""
    if isinstance(base, BackwardPlan):
        return []
    changed = [made for made in better if isinstance(made, KernelPlan)]
    return [plan(base.spec, request) for request in search.combinations(base, changed)]


def blind(spec: KernelSpec, seeds: Sequence[AnyPlan], options: Options) -> list[AnyPlan]:
    """What a search may want, as far as can be told without timing: tiles, and the families of the likeliest."""
    spec = spec.any_length
    every = dict.fromkeys(first_round(spec, seeds, options.budget))
    for base in search.distinct_tiles([*seeds, *every], options.keep):
        every |= dict.fromkeys(family_of(base))
    return list(every)[: max(options.budget, len(set(seeds)))]
