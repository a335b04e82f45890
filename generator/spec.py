"""What is computed: ``KernelSpec`` and the words it is made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from .errors import ConfigError, NotAvailableError, PlanError, closest, shown


class Op(StrEnum):
    """The operation and its direction."""

    attention_fwd = "attention_fwd"
    attention_bwd = "attention_bwd"


class Schedule(StrEnum):
    """The kernel's structure: FlashAttention-2's (cp.async, mma.sync) or -3's (TMA, WGMMA, warp specialisation)."""

    fa2 = "fa2"
    fa3 = "fa3"


class Arch(StrEnum):
    """The compiler's target."""

    sm80 = "sm80"
    sm86 = "sm86"
    sm89 = "sm89"
    sm90 = "sm90"
    sm90a = "sm90a"
    sm100 = "sm100"
    sm120 = "sm120"


class Dtype(StrEnum):
    """Element type of q, k and v."""

    fp16 = "fp16"
    bf16 = "bf16"
    e4m3 = "e4m3"

    @property
    def bytes(self) -> int:
        """Bytes of one element."""
        return 1 if self is Dtype.e4m3 else 2


class Mask(StrEnum):
    """Which keys a query sees. Causal is aligned to the bottom right corner of the score matrix."""

    full = "full"
    causal = "causal"
    window = "window"


class Feature(StrEnum):
    """What a kernel can do beside plain attention. Grouped heads (``gqa``) are part of every kernel."""

    gqa = "gqa"
    varlen = "varlen"
    paged = "paged"
    softcap = "softcap"
    alibi = "alibi"
    bias = "bias"
    sink = "sink"
    score = "score"
    descale = "descale"
    split_kv = "split_kv"
    pack_gqa = "pack_gqa"
    deterministic = "deterministic"
    batch_invariant = "batch_invariant"


SCHEDULE_ARCHS: dict[Schedule, tuple[Arch, ...]] = {
    Schedule.fa2: tuple(Arch),
    # WGMMA and setmaxnreg exist in the arch-specific target only, so plain sm90 will not do.
    Schedule.fa3: (Arch.sm90a,),
}
AVAILABLE: dict[str, tuple[StrEnum, ...]] = {
    "kernel": (Op.attention_fwd,),
    "schedule": (Schedule.fa3,),
    "arch": (Arch.sm90a,),
    "dtype": (Dtype.fp16, Dtype.bf16),
    "mask": (Mask.full, Mask.causal),
    "features": (Feature.gqa,),
}
MAX_HEAD_DIM = 256
KNOWN_HEAD_DIM = 576  # the largest that the contract names (multi-head latent attention); above 256 nothing is built

Word = TypeVar("Word", bound=StrEnum)


def word(kind: type[Word], value: object, key: str) -> Word:
    """The member of an enum that a word names, or a ConfigError with the legal words."""
    try:
        return kind(value)  # type: ignore[arg-type]
    except ValueError:
        legal = [member.value for member in kind]
        hint = closest(value, legal)
        raise ConfigError(f"{key}: got {shown(value)}; legal: {', '.join(legal)}{hint}", key=key) from None


def default_schedule(arch: Arch) -> Schedule:
    """The schedule meant for an arch when none is named."""
    return Schedule.fa3 if arch is Arch.sm90a else Schedule.fa2


def _available(value: StrEnum, key: str) -> None:
    if value not in AVAILABLE[key]:
        have = ", ".join(AVAILABLE[key])
        raise NotAvailableError(f"{key} {value} is not available yet (available: {have})", key=key)


def _head_dim(value: object, name: str, dtype: Dtype) -> None:
    step = 16 if dtype is Dtype.e4m3 else 8
    legal = f"multiples of {step} from {step} to {MAX_HEAD_DIM}"
    if type(value) is not int:
        raise ConfigError(f"{name}: got {shown(value)}; legal: {legal}", key="head_dim")
    if step <= value <= KNOWN_HEAD_DIM and value % step == 0:
        if value > MAX_HEAD_DIM:
            raise NotAvailableError(f"{name} {value} is not available yet (available: {legal})", key="head_dim")
        return
    down = min(max(value // step * step, step), MAX_HEAD_DIM)
    near = sorted({down, min(down + step, MAX_HEAD_DIM)} if down < value else {down})
    raise ConfigError(f"{name}: got {shown(value)}; legal: {legal}; nearest: {' or '.join(map(str, near))}", key="head_dim")


@dataclass(frozen=True)
class KernelSpec:
    """One kernel's problem. Frozen, hashable, validated when it is made; words may be given as plain strings."""

    op: Op
    schedule: Schedule
    arch: Arch
    dtype: Dtype
    head_dim_qk: int
    head_dim_v: int
    mask: Mask
    features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._set("op", word(Op, self.op, "kernel"))
        self._set("schedule", word(Schedule, self.schedule, "schedule"))
        self._set("arch", word(Arch, self.arch, "arch"))
        self._set("dtype", word(Dtype, self.dtype, "dtype"))
        self._set("mask", word(Mask, self.mask, "mask"))
        self._set("features", _features(self.features))
        self.validate()

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def validate(self) -> None:
        """Raise ConfigError, PlanError or NotAvailableError unless a kernel of this spec can be generated."""
        legal = SCHEDULE_ARCHS[self.schedule]
        if self.arch not in legal:
            raise PlanError(
                f"schedule {self.schedule} does not run on arch {self.arch}; legal: {', '.join(legal)}"
                f"{closest(self.arch, legal)}",
                key="arch",
            )
        for key, value in (("kernel", self.op), ("schedule", self.schedule), ("arch", self.arch), ("dtype", self.dtype)):
            _available(value, key)
        _available(self.mask, "mask")
        for feature in self.features:
            _available(Feature(feature), "features")
        _head_dim(self.head_dim_qk, "head_dim" if self.head_dim_qk == self.head_dim_v else "head_dim qk", self.dtype)
        _head_dim(self.head_dim_v, "head_dim v", self.dtype)

    @classmethod
    def forward(
        cls,
        *,
        head_dim: int,
        head_dim_v: int | None = None,
        dtype: str = "bf16",
        mask: str = "full",
        arch: str = "sm90a",
        schedule: str | None = None,
        features: Iterable[str] = (),
    ) -> KernelSpec:
        """An attention forward spec from plain words; head_dim_v None means the same as head_dim."""
        target = word(Arch, arch, "arch")
        chosen = default_schedule(target) if schedule is None else word(Schedule, schedule, "schedule")
        value = head_dim if head_dim_v is None else head_dim_v
        return cls(
            Op.attention_fwd, chosen, target, Dtype(word(Dtype, dtype, "dtype")), head_dim, value,
            word(Mask, mask, "mask"), tuple(features),
        )  # fmt: skip

    @property
    def name(self) -> str:
        """The canonical name: C symbol, folder, log line and test id alike."""
        return "_".join([self.op, self.schedule, self.arch, self.dtype, self.head_dim_name, self.mask, *self.features])

    @property
    def head_dim_name(self) -> str:
        """``d128``, or ``d192x128`` when the head dim of v is another."""
        return f"d{self.head_dim_qk}" + (f"x{self.head_dim_v}" if self.head_dim_v != self.head_dim_qk else "")


def _features(values: Iterable[str]) -> tuple[str, ...]:
    if isinstance(values, str):
        raise ConfigError(f"features: got {shown(values)}; legal: a list of words", key="features")
    for value in values:
        if value in (Mask.window, Mask.causal):
            raise ConfigError(f"features: {value} is a mask, not a feature: write `mask: {value}`", key="features")
    # gqa is in every kernel: naming it changes nothing, so it is no part of the identity.
    return tuple(sorted({word(Feature, value, "features").value for value in values} - {Feature.gqa.value}))
