"""What is computed: ``KernelSpec``, one kernel's problem."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from .errors import ConfigError, NotAvailableError, PlanError, closest, shown
from .words import SCHEDULE_ARCHS, Arch, Dtype, Feature, Mask, Op, Schedule, available, default_schedule, word

__all__ = ["Arch", "Dtype", "Feature", "KernelSpec", "Mask", "Op", "Schedule", "default_schedule", "word"]

MAX_HEAD_DIM = 256
KNOWN_HEAD_DIM = 576  # the largest that the contract names (multi-head latent attention); above 256 nothing is built


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
    nearest = " or ".join(map(str, near))
    raise ConfigError(f"{name}: got {shown(value)}; legal: {legal}; nearest: {nearest}", key="head_dim")


def _keys(first: object, below: object) -> None:
    for name, value in (("from", first), ("below", below)):
        if not (type(value) is int and value >= 0) and not (name == "below" and value is None):
            raise ConfigError(f"keys {name}: got {shown(value)}; legal: a number of keys, 0 or more", key="keys")
    if isinstance(below, int) and isinstance(first, int) and below <= first:
        raise ConfigError(f"keys: got from {first} below {below}; legal: from less than below", key="keys")


@dataclass(frozen=True)
class KernelSpec:
    """One kernel's problem. Frozen, hashable, validated when it is made; words may be given as plain strings.

    ``keys_from`` and ``keys_below`` say for how many keys the kernel is meant (None: no end). It is right for any
    number; they decide which of several kernels for one problem a call takes.
    """

    op: Op
    schedule: Schedule
    arch: Arch
    dtype: Dtype
    head_dim_qk: int
    head_dim_v: int
    mask: Mask
    features: tuple[str, ...] = ()
    keys_from: int = 0
    keys_below: int | None = None

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
        # The arch before the schedule, which may only follow from it.
        available(self.arch, "arch", self.op)
        available(self.schedule, "schedule", self.op)
        available(self.dtype, "dtype", self.op)
        available(self.mask, "mask", self.op)
        if self.op is Op.attention_fwd and Feature.deterministic in self.features:
            text = "of attention_bwd; attention_fwd gives the same bits on every run without it"
            raise PlanError(f"features: deterministic is one {text}", key="features")
        for feature in self.features:
            available(Feature(feature), "features", self.op)
        _head_dim(self.head_dim_qk, "head_dim" if self.head_dim_qk == self.head_dim_v else "head_dim qk", self.dtype)
        _head_dim(self.head_dim_v, "head_dim v", self.dtype)
        _keys(self.keys_from, self.keys_below)

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
            Op.attention_fwd, chosen, target, word(Dtype, dtype, "dtype"), head_dim, value,
            word(Mask, mask, "mask"), tuple(features),
        )  # fmt: skip

    @classmethod
    def backward(
        cls,
        *,
        head_dim: int,
        head_dim_v: int | None = None,
        dtype: str = "bf16",
        mask: str = "full",
        arch: str = "sm90a",
        deterministic: bool = False,
    ) -> KernelSpec:
        """The spec of attention's gradients from plain words; ``deterministic``: the same bits on every run."""
        forward = cls.forward(head_dim=head_dim, head_dim_v=head_dim_v, dtype=dtype, mask=mask, arch=arch)
        return forward.backward_of(deterministic)

    def backward_of(self, deterministic: bool = False) -> KernelSpec:
        """The backward of a forward spec, for any number of keys."""
        kept = {*self.features, Feature.deterministic.value} if deterministic else self.features
        return replace(self.any_length, op=Op.attention_bwd, features=tuple(kept))

    @property
    def deterministic(self) -> bool:
        """Whether the kernel adds in a fixed order because it was asked to."""
        return Feature.deterministic in self.features

    @property
    def name(self) -> str:
        """The canonical name: C symbol, folder, log line and test id alike."""
        keys = [f"from{self.keys_from}"] if self.keys_from else []
        keys += [] if self.keys_below is None else [f"below{self.keys_below}"]
        problem = [self.op, self.schedule, self.arch, self.dtype, self.head_dim_name, self.mask, *self.features]
        return "_".join([*problem, *keys])

    @property
    def any_length(self) -> KernelSpec:
        """The same problem with any number of keys."""
        return self if self.keys_from == 0 and self.keys_below is None else replace(self, keys_from=0, keys_below=None)

    def meant_for(self, keys: int) -> bool:
        """Whether that many keys lie in the kernel's range."""
        return self.keys_from <= keys and (self.keys_below is None or keys < self.keys_below)

    @property
    def head_dim_name(self) -> str:
        """``d128``, or ``d192x128`` when the head dim of v is another."""
        return f"d{self.head_dim_qk}" + (f"x{self.head_dim_v}" if self.head_dim_v != self.head_dim_qk else "")


def _features(values: Iterable[str]) -> tuple[str, ...]:
    if isinstance(values, str):
        raise ConfigError(f"features: got {shown(values)}; legal: a list of words", key="features")
    # gqa is in every kernel: naming it changes nothing, so it is no part of the identity.
    return tuple(sorted({word(Feature, value, "features").value for value in values} - {Feature.gqa.value}))
