"""The words of a spec: what the schema knows, and which of it is built."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from .errors import ConfigError, NotAvailableError, closest, shown


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
    "schedule": (Schedule.fa3,),
    "arch": (Arch.sm90a,),
    "dtype": (Dtype.fp16, Dtype.bf16),
    "mask": (Mask.full, Mask.causal),
}
FEATURES: dict[Op, tuple[Feature, ...]] = {
    Op.attention_fwd: (Feature.gqa,),
    Op.attention_bwd: (Feature.gqa, Feature.deterministic),
}

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


def available(value: StrEnum, key: str, op: Op) -> None:
    """Raise NotAvailableError unless a kernel of that operation exists for the word."""
    have_it = {"features": FEATURES[op]} | AVAILABLE
    if value not in have_it[key]:
        have = ", ".join(have_it[key])
        raise NotAvailableError(f"{key} {value} is not available yet (available: {have})", key=key)
