"""How a kernel is built: ``plan`` turns a spec and a request into a plan, or says why it cannot."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields

from .backward_plan import BackwardPlan
from .backward_planner import plan_backward
from .candidates import USUAL_WARPGROUPS, candidates
from .config import ConfigEntry
from .cost import cost
from .errors import ConfigError, PlanError
from .feasibility import problem
from .footprint import (
    SmemRow,
    accumulator_registers,
    smem_table,
)
from .request import AnyRequest, BackwardRequest, Epilogue, Origin, PlanRequest, Rescale, Scheduler
from .shipped import solve_with_shipped
from .spec import KernelSpec, Mask, Op
from .swizzled import SwizzledPlan

__all__ = [
    "AnyPlan",
    "Epilogue",
    "KernelPlan",
    "PlanRequest",
    "Rescale",
    "Scheduler",
    "plan",
    "plan_entry",
    "plan_forward",
]

AUTO = PlanRequest()


@dataclass(frozen=True)
class KernelPlan(SwizzledPlan):
    """A forward with every choice made. ``origin`` says who made them and is no part of the identity."""

    spec: KernelSpec
    block_m: int
    block_n: int
    stages: int
    stages_q: int
    consumer_warpgroups: int
    producer_registers: int
    consumer_registers: int
    scheduler: Scheduler
    overlap: bool
    pingpong: bool
    rescale: Rescale
    lazy_rescale: bool
    early_start: bool
    epilogue: Epilogue
    swizzle_qk: int
    swizzle_v: int
    origin: Origin = field(default="config", compare=False)

    @property
    def entry_points(self) -> tuple[str]:
        """The kernels of the cubin."""
        return (self.name,)

    @property
    def label(self) -> str:
        """The tile in one word."""
        return f"{self.block_m}x{self.block_n}x{self.stages}"

    @property
    def smem(self) -> tuple[SmemRow, ...]:
        """Every member of the block's shared memory, in order."""
        return smem_table(
            self.spec, self.block_m, self.block_n, self.stages, self.epilogue,
            (self.swizzle_qk, self.swizzle_v), self.stages_q,
        )  # fmt: skip

    @property
    def accumulator_registers(self) -> int:
        """Registers a consumer thread holds for S, P and O."""
        return accumulator_registers(self.block_n, self.spec.head_dim_v)

    @property
    def request(self) -> PlanRequest:
        """This plan as a request with every choice explicit: planning it again gives this plan."""
        return PlanRequest(**{f.name: getattr(self, f.name) for f in fields(PlanRequest)})


AnyPlan = KernelPlan | BackwardPlan


def plan(spec: KernelSpec, request: AnyRequest | None = None) -> AnyPlan:
    """The plan of a spec, by ``plan_forward`` or ``plan_backward``: explicit choices first, then the shipped config's.

    Raises PlanError when an explicit choice cannot be built.
    """
    kind = BackwardRequest if spec.op is Op.attention_bwd else PlanRequest
    request = kind() if request is None else request
    if isinstance(request, BackwardRequest) and kind is BackwardRequest:
        return plan_backward(spec, request)
    if isinstance(request, PlanRequest) and kind is PlanRequest:
        return plan_forward(spec, request)
    raise ConfigError(f"{spec.name}: got a {type(request).__name__}; expected a {kind.__name__}", key="kernel")


def plan_forward(spec: KernelSpec, request: PlanRequest = AUTO) -> KernelPlan:
    """The plan of a forward spec: explicit choices, then the shipped config of that spec, then the cost model.

    Raises PlanError when an explicit choice cannot be built.
    """
    if spec.op is not Op.attention_fwd:
        raise ConfigError(f"{spec.name}: got a spec of {spec.op}; expected one of attention_fwd", key="kernel")
    return solve_with_shipped(spec, request, _solve)


def plan_entry(entry: ConfigEntry) -> AnyPlan:
    """The plan of one config entry; an error starts with the file and line of the key at fault."""
    try:
        return plan(entry.spec, entry.request)
    except PlanError as error:
        raise error.at(entry.places.get(error.key or "", entry.origin)) from None


def _solve(spec: KernelSpec, request: PlanRequest, origin: Origin) -> KernelPlan:
    every = list(candidates(spec, request))
    feasible = [choice for choice in every if problem(spec, choice) is None]
    if not feasible:
        # The smallest of the usual ones tells most: if even that does not fit, nothing does.
        reason = problem(spec, min(every, key=lambda c: (c.consumer_warpgroups != USUAL_WARPGROUPS, c.block_n)))
        assert reason is not None
        raise reason
    # Ties go to the wider block, then to the output tile of its own.
    best = min(feasible, key=lambda c: (cost(spec, c), -c.block_n, c.epilogue is not Epilogue.tile))
    scheduler = request.scheduler or (Scheduler.static if spec.mask is Mask.full else Scheduler.dynamic)
    rescale = request.rescale or Rescale.early
    return KernelPlan(
        spec=spec,
        scheduler=scheduler,
        rescale=rescale,
        lazy_rescale=request.lazy_rescale is not False,
        early_start=request.early_start is True,
        origin=origin,
        **asdict(best),
    )
