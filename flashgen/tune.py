"""The search for the fastest plans of a problem: what to try next, and what wins.

Tiles with their usual knobs come first; then the knobs of the best few tiles, one at a time; then those that helped,
together; and so on from what is best, until nothing new is left or the budget is spent. Of a backward, all that
the best few tiles may have. The best are verified and timed once more, all of them together: only those figures decide.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flashgen.bench_grid import Shape
from flashgen.errors import NotShippableError
from flashgen.generator import AnyPlan, AnyRequest, KernelSpec, plan
from flashgen.generator.search import distinct_tiles, label
from flashgen.tune_space import Options, family_of, first_round, incumbent_of, together
from flashgen.tune_state import Measurement, TuneState
from flashgen.tune_trials import Known, Machine, Stage, Trials, quiet

GAIN = 1.003  # speed-up from which a knob is tried together with others
NEAR = 1.01  # plans within this factor count as equally fast when neighbouring lengths are to share one
MARGIN = 1.005  # speed-up below which the incumbent stays


@dataclass(frozen=True)
class Found:
    """What is best on one shape. ``verified``: it may win, since its results were checked."""

    shape: Shape
    plan: AnyPlan
    incumbent: AnyPlan
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
    plan: AnyPlan
    found: tuple[Found, ...]


class Search:
    """One problem on one machine. ``run`` may be interrupted at any point: what was measured is in the state."""

    def __init__(
        self, spec: KernelSpec, shapes: Iterable[Shape], machine: Machine, state: TuneState,
        options: Options, *, seeds: Iterable[AnyRequest] = (), stage: Stage = quiet,
    ) -> None:  # fmt: skip
        self.spec = spec.any_length
        self.shapes = sorted(shapes, key=lambda shape: shape.seqlen_k)
        self.options = options
        self.incumbents = {shape: incumbent_of(self.spec, shape.seqlen_k) for shape in self.shapes}
        self.trials = Trials(machine, state, self.incumbents, stage)
        self.tried: dict[AnyPlan, None] = {}
        self.coarse: Known = {shape: {} for shape in self.shapes}
        self.final: Known = {shape: {} for shape in self.shapes}
        self._families: dict[AnyPlan, list[AnyPlan]] = {}
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
        return [self._found(shape, ranked[0]) for shape in self.shapes if (ranked := self._ranked([shape]))]

    def _try(self, what: str, plans: Iterable[AnyPlan]) -> None:
        fresh = [made for made in dict.fromkeys(plans) if made not in self.tried]
        self.tried |= dict.fromkeys(fresh)
        self.trials.measure(what, self.trials.build(what, fresh), self.options.repetitions, self.coarse)

    def _known(self, shape: Shape) -> dict[AnyPlan, Measurement]:
        return self.final[shape] or self.coarse[shape]

    def _speed(self, made: AnyPlan, shapes: Sequence[Shape]) -> float:
        """How many times as fast as the incumbents, by the geometric mean over some shapes."""
        return math.prod(self._known(shape)[made].over_incumbent for shape in shapes) ** (1 / len(shapes))

    def _ranked(self, shapes: Sequence[Shape]) -> list[AnyPlan]:
        """What may win on all of some shapes, best first; an incumbent first among equals."""
        allowed = [
            made
            for made in self._known(shapes[0])
            if made not in self.trials.refused and all(made in self._known(shape) for shape in shapes)
        ]
        rivals = {self.incumbents[shape] for shape in shapes}
        return sorted(allowed, key=lambda made: (-self._speed(made, shapes), made not in rivals))

    def _next(self) -> list[AnyPlan]:
        """What to try after what is known: good knobs together, then the families of what leads."""
        wanted: dict[AnyPlan, None] = {}
        for base, family in self._families.items():
            for known in self.coarse.values():
                if base in known:
                    worth = known[base].over_incumbent * GAIN
                    better = [made for made in family if made in known and known[made].over_incumbent > worth]
                    better.sort(key=lambda made: -known[made].over_incumbent)
                    wanted |= dict.fromkeys(together(base, better))
        leaders = [distinct_tiles(self._ranked([shape]), self.options.keep) for shape in self.shapes]
        for rank in range(self.options.keep):
            for base in (some[rank] for some in leaders if rank < len(some)):
                if base not in self._families:
                    self._families[base] = family_of(base)
                wanted |= dict.fromkeys(self._families[base])
        return [made for made in wanted if made not in self.tried]

    def _finalists(self) -> list[AnyPlan]:
        """The incumbents and the best of each shape, all of them right."""
        chosen: dict[AnyPlan, None] = {}
        each = self.options.keep + 1
        with self._stage("verifying", each * len(self.shapes)) as step:
            for index, shape in enumerate(self.shapes):
                done = 0
                for made in dict.fromkeys([self.incumbents[shape], *self._ranked([shape])]):
                    if done < each and made not in self.trials.refused and self.trials.verify(made):
                        done += 1
                        chosen[made] = None
                        step(index * each + done, label(made))
        return list(chosen)

    def _found(self, shape: Shape, made: AnyPlan) -> Found:
        measured = self.final[shape].get(made) or self.coarse[shape][made]
        return Found(shape, made, self.incumbents[shape], measured, made in self.trials.right)

    def _ranges(self) -> list[Range]:
        """The fewest ranges with a plan within NEAR of the best on each shape; ends midway between lengths."""
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

    def _serving(self, group: Sequence[Shape]) -> list[AnyPlan]:
        """Plans that are within NEAR of the best on every shape of a group, the best by their mean first."""
        bests = [self._speed(ranked[0], [shape]) if (ranked := self._ranked([shape])) else 0.0 for shape in group]
        return [
            made
            for made in self._ranked(group)
            if all(self._speed(made, [shape]) * NEAR >= best for shape, best in zip(group, bests, strict=True))
        ]

    def _winner(self, group: Sequence[Shape]) -> AnyPlan:
        """The best plan for a group; its incumbent unless that is beaten by MARGIN."""
        serving = self._serving(group)
        if not serving:
            raise NotShippableError(f"{self.spec.name}: no plan for {group[0].name} is fit to ship")
        keep = [made for made in serving if all(self.incumbents[shape] == made for shape in group)]
        return keep[0] if keep and self._speed(serving[0], group) < MARGIN else serving[0]
