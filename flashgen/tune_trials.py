"""Trials of plans: compiled, timed in turn with the incumbent and cuDNN, verified; each fact kept as it is found."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from flashgen.bench_grid import Shape
from flashgen.build import BuildResult
from flashgen.errors import DeviceError, FlashgenError
from flashgen.generator import AnyPlan, plan
from flashgen.generator.search import label
from flashgen.kernel import BuiltKernel
from flashgen.tune_state import Measurement, TuneState, plan_key, time_key

GROUP = 6  # candidates that are timed in turn with the incumbent and cuDNN

Progress = Callable[[int, str], None]  # (how many are done, what was done last)
Stage = Callable[[str, int], AbstractContextManager[Progress]]  # (what is done, how often)
Known = dict[Shape, dict[AnyPlan, Measurement]]


class CandidateError(FlashgenError, RuntimeError):
    """A kernel does not run. ``fatal``: it took the process's GPU with it."""

    def __init__(self, plan: AnyPlan, reason: str, fatal: bool = False) -> None:
        super().__init__(f"{plan.name} ({label(plan)}): {reason}")
        self.plan, self.reason, self.fatal = plan, reason, fatal


class LostGpuError(DeviceError):
    """A candidate hangs or faulted: this process cannot use the GPU any more."""


@dataclass(frozen=True)
class Times:
    """Milliseconds of each repetition: of each kernel in order, and of cuDNN where it runs."""

    kernels: list[list[float]]
    cudnn: list[float] | None


class Machine(Protocol):
    """What compiles, times and verifies; the GPU is one (``flashgen.tune_gpu.Gpu``)."""

    @property
    def name(self) -> str:
        """The GPU's name."""

    def build(self, plans: Sequence[AnyPlan], on_progress: Progress) -> BuildResult:
        """Compile plans; one that spills is built all the same."""

    def time(self, shape: Shape, kernels: Sequence[BuiltKernel], repetitions: int) -> Times:
        """Time kernels in turn; CandidateError when one does not run."""

    def verify(self, built: BuiltKernel) -> str:
        """What is wrong with a kernel's results, "" when nothing is; CandidateError when it cannot be told."""


@contextlib.contextmanager
def quiet(_what: str, _total: int) -> Iterator[Progress]:
    """A stage that says nothing."""
    yield lambda _done, _last: None


class Trials:
    """What is known of plans on one machine: ``built``, ``refused`` (and why) and found ``right``."""

    def __init__(
        self, machine: Machine, state: TuneState, incumbents: Mapping[Shape, AnyPlan], stage: Stage = quiet
    ) -> None:
        self.incumbents = incumbents
        self.built: dict[AnyPlan, BuiltKernel] = {}
        self.refused: dict[AnyPlan, str] = {}
        self.right: set[AnyPlan] = set()
        self._machine, self._state, self._stage = machine, state, stage

    def build(self, what: str, plans: Sequence[AnyPlan]) -> list[AnyPlan]:
        """Compile plans; those that may win. An incumbent that does not compile raises its error."""
        with self._stage(f"compiling {what}", len(plans)) as step:
            result = self._machine.build(plans, step)
        for built in result.ok:
            self.built[built.plan] = built
            if not built.shippable:
                self.refused[built.plan] = "; ".join(built.resources.complaints)
        for entry, error in result.failed:
            failed = plan(entry.spec, entry.request)
            if failed in self.incumbents.values():
                raise error
            self.refused[failed] = str(error).splitlines()[0]
        return [made for made in plans if made in self.built and made not in self.refused]

    def measure(self, what: str, plans: Sequence[AnyPlan], repetitions: int, into: Known) -> None:
        """Time plans on every shape, but for what the state knows."""
        done = 0
        with self._stage(f"timing {what}", len(plans) * len(self.incumbents)) as step:
            for shape, incumbent in self.incumbents.items():
                found = into[shape]
                unknown = [made for made in plans if not self._look_up(shape, made, repetitions, found)]
                waiting = [made for made in unknown if made != incumbent and made not in self.refused]
                done += len(plans) - len(waiting)
                groups = [waiting[at : at + GROUP] for at in range(0, len(waiting), GROUP)]
                if not groups and not self._look_up(shape, incumbent, repetitions, found):
                    groups = [[]]
                for group in groups:
                    self._time(shape, group, repetitions, found)
                    done += len(group)
                    best = max(found, key=lambda made: found[made].over_incumbent)
                    step(done, f"{shape.name}: {found[best].over_incumbent:.3f} x by {label(best)}")

    def verify(self, made: AnyPlan) -> bool:
        """Whether a kernel's results are right; one that is wrong is refused from now on."""
        key = plan_key(made, self.built[made].sha256, self._machine.name)
        reason = self._state.verdict(key)
        if reason is None:
            try:
                reason = self._machine.verify(self.built[made])
            except CandidateError as error:
                self._fail(error)
                return False
            self._state.add_verdict(key, reason)
        if reason:
            self.refused[made] = f"wrong: {reason}"
        else:
            self.right.add(made)
        return not reason

    def _look_up(self, shape: Shape, made: AnyPlan, repetitions: int, found: dict[AnyPlan, Measurement]) -> bool:
        if made not in found:
            sha256 = self.built[made].sha256
            reason = self._state.failure(plan_key(made, sha256, self._machine.name))
            if reason is not None and made not in self.incumbents.values():
                self.refused[made] = reason
            known = self._state.time(self._key(shape, made, repetitions))
            if known is not None:
                found[made] = known
        return made in found

    def _key(self, shape: Shape, made: AnyPlan, repetitions: int) -> dict[str, object]:
        rival = self.built[self.incumbents[shape]].sha256
        return time_key(made, shape.name, self.built[made].sha256, self._machine.name, rival, repetitions)

    def _time(
        self, shape: Shape, group: Sequence[AnyPlan], repetitions: int, found: dict[AnyPlan, Measurement]
    ) -> None:
        """One group in turn with the incumbent; a kernel that does not run leaves it."""
        while True:
            plans = [self.incumbents[shape], *(made for made in group if made not in self.refused)]
            try:
                times = self._machine.time(shape, [self.built[made] for made in plans], repetitions)
            except CandidateError as error:
                self._fail(error)
                continue
            break
        incumbent = statistics.median(times.kernels[0])
        cudnn = None if times.cudnn is None else statistics.median(times.cudnn)
        for made, values in zip(plans, times.kernels, strict=True):
            quartiles = statistics.quantiles(values, n=4)
            measured = Measurement(statistics.median(values), quartiles[2] - quartiles[0], incumbent, cudnn)
            # Of the incumbent, which runs in every group, the first is kept: its own speed-up is 1 in each.
            if made not in found:
                found[made] = measured
                self._state.add_time(self._key(shape, made, repetitions), measured)

    def _fail(self, error: CandidateError) -> None:
        """Note a kernel that does not run. Nothing goes on without the incumbent or without the GPU."""
        if error.plan in self.incumbents.values():
            raise LostGpuError(f"the plan in use today does not run: {error}") from error
        self.refused[error.plan] = error.reason
        key = plan_key(error.plan, self.built[error.plan].sha256, self._machine.name)
        self._state.add_failure(key, error.reason)
        if error.fatal:
            raise LostGpuError(
                f"{error}. It took the GPU with it; that is noted, and the same command goes on without it"
            ) from error
