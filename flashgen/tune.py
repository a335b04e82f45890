"""The search for the fastest plans of a problem: what to try next, and what wins.

Tiles with their usual knobs come first; then the knobs of the best few tiles, one at a time; then those that helped,
together; and so on from what is best, until nothing new is left or the budget is spent. The best of each length are
verified and timed once more, all of them together: only those figures decide.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flashgen.bench_grid import Shape
from flashgen.errors import NotShippableError
from flashgen.generator import KernelPlan, KernelSpec, PlanRequest
from flashgen.generator import plan_forward as plan
from flashgen.generator.search import combinations, distinct_tiles, label, neighbours, tiles
from flashgen.generator.shipped import shipped_spec
from flashgen.tune_state import Measurement, TuneState
from flashgen.tune_trials import Known, Machine, Stage, Trials, quiet

GAIN = 1.003  # speed-up from which a knob is tried together with others
NEAR = 1.01  # plans within this factor count as equally fast when neighbouring lengths are to share one
MARGIN = 1.005  # speed-up below which the incumbent stays


@dataclass(frozen=True)
class Options:
    """How long a search takes: plans in all, tiles whose knobs are tried, timed runs of each and of the finalists."""

    budget: int = 160
    keep: int = 3
    repetitions: int = 20
    finals: int = 60


@dataclass(frozen=True)
class Found:
    """What is best on one shape. ``verified``: it may win, since its results were checked."""

    shape: Shape
    plan: KernelPlan
    incumbent: KernelPlan
    measured: Measurement
    verified: bool

    @property
    def tflops(self) -> float:
        """TFLOP/s, halved for causal."""
        return self.shape.flop / self.measured.milliseconds / 1e9


@dataclass(frozen=True)
class Range:
    """Neighbouring lengths that share a plan: from ``first`` keys, and below ``below`` (None: no end)."""

    first: int
    below: int | None
    plan: KernelPlan
    found: tuple[Found, ...]


def incumbent_of(spec: KernelSpec, keys: int) -> KernelPlan:
    """The plan that a call with so many keys gets today, as a plan for any number of keys."""
    return plan(spec.any_length, plan(shipped_spec(spec.any_length, keys)).request)


def first_round(spec: KernelSpec, seeds: Iterable[KernelPlan], budget: int) -> list[KernelPlan]:
    """All seeds, then tiles, which take no more than half the budget: the rest is for knobs."""
    first = dict.fromkeys(seeds)
    every = first | dict.fromkeys(plan(spec, request) for request in tiles(spec))
    return list(every)[: max(budget // 2, len(first))]


def blind(spec: KernelSpec, seeds: Sequence[KernelPlan], options: Options) -> list[KernelPlan]:
    """What a search may want, as far as can be told without timing: tiles, and the knobs of the likeliest."""
    spec = spec.any_length
    every = dict.fromkeys(first_round(spec, seeds, options.budget))
    for base in distinct_tiles([*seeds, *every], options.keep):
        every |= dict.fromkeys(plan(spec, request) for request in neighbours(base))
    return list(every)[: max(options.budget, len(set(seeds)))]


class Search:
    """One problem on one machine. ``run`` may be interrupted at any point: what was measured is in the state."""

    def __init__(
        self, spec: KernelSpec, shapes: Iterable[Shape], machine: Machine, state: TuneState,
        options: Options = Options(), *, seeds: Iterable[PlanRequest] = (), stage: Stage = quiet,
    ) -> None:  # fmt: skip
        self.spec = spec.any_length
        self.shapes = sorted(shapes, key=lambda shape: shape.seqlen_k)
        self.options = options
        self.incumbents = {shape: incumbent_of(self.spec, shape.seqlen_k) for shape in self.shapes}
        self.trials = Trials(machine, state, self.incumbents, stage)
        self.tried: dict[KernelPlan, None] = {}
        self.coarse: Known = {shape: {} for shape in self.shapes}
        self.final: Known = {shape: {} for shape in self.shapes}
        self._families: dict[KernelPlan, list[KernelPlan]] = {}
        self._seeds = [plan(self.spec, request) for request in seeds]
        self._stage = stage

    def run(self) -> list[Range]:
        """Search, and say which plan serves which lengths. LostGpuError when a candidate takes the GPU with it."""
        budget = self.options.budget
        self._try("tiles", first_round(self.spec, [*self.incumbents.values(), *self._seeds], budget))
        while fresh := self._next()[: max(budget - len(self.tried), 0)]:
            self._try("knobs", fresh)
        finalists = self._finalists()
        self.trials.measure("the best", finalists, self.options.finals, self.final)
        return self._ranges()

    def best(self) -> list[Found]:
        """The best of each shape as far as is known, verified or not: for a search that did not end."""
        return [self._found(shape, ranked[0]) for shape in self.shapes if (ranked := self._ranked(shape))]

    def _try(self, what: str, plans: Iterable[KernelPlan]) -> None:
        fresh = [made for made in dict.fromkeys(plans) if made not in self.tried]
        self.tried |= dict.fromkeys(fresh)
        self.trials.measure(what, self.trials.build(what, fresh), self.options.repetitions, self.coarse)

    def _ranked(self, shape: Shape) -> list[KernelPlan]:
        """What may win on a shape, best first; the incumbent first among equals."""
        known = self.final[shape] or self.coarse[shape]
        allowed = (made for made in known if made not in self.trials.refused)
        return sorted(allowed, key=lambda made: (-known[made].over_incumbent, made != self.incumbents[shape]))

    def _next(self) -> list[KernelPlan]:
        """What to try after what is known: good knobs together, then single knobs of what leads on some length."""
        wanted: dict[KernelPlan, None] = {}
        for base, family in self._families.items():
            for known in self.coarse.values():
                if base in known:
                    worth = known[base].over_incumbent * GAIN
                    better = [made for made in family if made in known and known[made].over_incumbent > worth]
                    better.sort(key=lambda made: -known[made].over_incumbent)
                    wanted |= dict.fromkeys(plan(self.spec, request) for request in combinations(base, better))
        leaders = [distinct_tiles(self._ranked(shape), self.options.keep) for shape in self.shapes]
        for rank in range(self.options.keep):
            for base in (some[rank] for some in leaders if rank < len(some)):
                if base not in self._families:
                    self._families[base] = [plan(self.spec, request) for request in neighbours(base)]
                wanted |= dict.fromkeys(self._families[base])
        return [made for made in wanted if made not in self.tried]

    def _finalists(self) -> list[KernelPlan]:
        """The incumbents and the best of each shape, all of them right."""
        chosen: dict[KernelPlan, None] = {}
        each = self.options.keep + 1
        with self._stage("verifying", each * len(self.shapes)) as step:
            for index, shape in enumerate(self.shapes):
                done = 0
                for made in dict.fromkeys([self.incumbents[shape], *self._ranked(shape)]):
                    if done < each and made not in self.trials.refused and self.trials.verify(made):
                        done += 1
                        chosen[made] = None
                        step(index * each + done, label(made))
        return list(chosen)

    def _found(self, shape: Shape, made: KernelPlan) -> Found:
        measured = self.final[shape].get(made) or self.coarse[shape][made]
        return Found(shape, made, self.incumbents[shape], measured, made in self.trials.right)

    def _ranges(self) -> list[Range]:
        """The fewest ranges whose lengths each have a plan within NEAR of their best; ends midway between lengths."""
        groups: list[list[Shape]] = []
        for shape in self.shapes:
            # Taking as many as fit from the left gives the fewest: what serves a range serves each part of it.
            if groups and self._serving([*groups[-1], shape]):
                groups[-1].append(shape)
            else:
                groups.append([shape])
        ends = [(a[-1].seqlen_k + b[0].seqlen_k) // 2 for a, b in itertools.pairwise(groups)]
        made = []
        for first, below, group in zip([0, *ends], [*ends, None], groups, strict=True):
            best = self._winner(group)
            made.append(Range(first, below, best, tuple(self._found(shape, best) for shape in group)))
        return made

    def _serving(self, group: Sequence[Shape]) -> list[KernelPlan]:
        """Plans that are within NEAR of the best on every shape of a group."""
        served = [self.final[group[0]]] if group else []
        return [made for known in served for made in known if all(self._near(shape, made) for shape in group)]

    def _near(self, shape: Shape, made: KernelPlan) -> bool:
        ranked, known = self._ranked(shape), self.final[shape]
        return made in ranked and known[made].over_incumbent * NEAR >= known[ranked[0]].over_incumbent

    def _winner(self, group: Sequence[Shape]) -> KernelPlan:
        """The best plan for a group; its incumbent unless that is beaten by MARGIN."""
        serving = self._serving(group)
        if not serving:
            raise NotShippableError(f"{self.spec.name}: no plan for {group[0].name} is fit to ship")
        mean = {made: math.prod(self.final[shape][made].over_incumbent for shape in group) for made in serving}
        best = max(serving, key=lambda made: mean[made])
        keep = [made for made in serving if all(self.incumbents[shape] == made for shape in group)]
        return keep[0] if keep and mean[best] < MARGIN ** len(group) else best
