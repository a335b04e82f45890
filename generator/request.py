"""What a config asks of the plan: ``PlanRequest``, ``BackwardRequest``. None means that the planner chooses."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Literal

from .errors import ConfigError, shown
from .spec import word

Origin = Literal["config", "shipped", "model"]  # who made a plan's choices


class Scheduler(StrEnum):
    """How tiles reach thread blocks: one a block, a fixed stride over a persistent grid, or an atomic counter."""

    single = "single"
    static = "static"
    dynamic = "dynamic"


class Rescale(StrEnum):
    """When O is rescaled: before its next product is issued (early) or after the last one is done (late)."""

    early = "early"
    late = "late"


class Epilogue(StrEnum):
    """How O is stored: through a tile of shared memory and one TMA store, or from registers in 16-byte pieces."""

    tile = "tile"
    registers = "registers"


# Field of a request -> YAML key, where they differ.
KEYS = {
    "block_m": "tile",
    "block_n": "tile",
    "consumer_warpgroups": "warpgroups",
    "producer_registers": "registers",
    "consumer_registers": "registers",
    "swizzle_qk": "swizzle",
    "swizzle_v": "swizzle",
}
TILE_FIELDS = (
    "block_m",
    "block_n",
    "stages",
    "consumer_warpgroups",
    "producer_registers",
    "consumer_registers",
    "split_roles",
)
_BOOLEANS = (
    "overlap", "pingpong", "lazy_rescale", "early_start", "split_roles", "keys_in_registers", "stores_first",
    "keys_in_order", "mask_loops",
)  # fmt: skip
_WORDS: dict[str, type[StrEnum]] = {"scheduler": Scheduler, "rescale": Rescale, "epilogue": Epilogue}


class Request:
    """What requests have in common: their fields are checked, and an explicit one is not None."""

    def __post_init__(self) -> None:
        for name, value in self.explicit.items():
            key = KEYS.get(name, name)
            if name in _WORDS:
                object.__setattr__(self, name, word(_WORDS[name], value, key))
            elif type(value) is not (bool if name in _BOOLEANS else int):
                legal = "true or false" if name in _BOOLEANS else "an integer"
                raise ConfigError(f"{key}: got {shown(value)} for {name}; legal: {legal}", key=key)

    @property
    def explicit(self) -> dict[str, Any]:
        """The fields that are not left to the planner."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}  # type: ignore[arg-type]

    @property
    def names_tile(self) -> bool:
        """Whether any of the tile's sizes, stages, warpgroups or registers is explicit."""
        return any(name in TILE_FIELDS for name in self.explicit)

    @classmethod
    def keys(cls) -> tuple[str, ...]:
        """The YAML keys that make it, in order."""
        return tuple(dict.fromkeys(KEYS.get(f.name, f.name) for f in fields(cls)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class PlanRequest(Request):
    """The explicit choices of a config. An explicit value is honoured or refused, never changed."""

    block_m: int | None = None
    block_n: int | None = None
    stages: int | None = None
    stages_q: int | None = None
    consumer_warpgroups: int | None = None
    producer_registers: int | None = None
    consumer_registers: int | None = None
    scheduler: Scheduler | None = None
    overlap: bool | None = None
    pingpong: bool | None = None
    rescale: Rescale | None = None
    lazy_rescale: bool | None = None
    early_start: bool | None = None
    epilogue: Epilogue | None = None
    swizzle_qk: int | None = None
    swizzle_v: int | None = None


@dataclass(frozen=True)
class BackwardRequest(Request):
    """The explicit choices of a backward's config."""

    block_m: int | None = None
    block_n: int | None = None
    stages_q: int | None = None
    stages_do: int | None = None
    stages_ds: int | None = None
    dq_passes: int | None = None
    consumer_warpgroups: int | None = None
    producer_registers: int | None = None
    consumer_registers: int | None = None
    split_roles: bool | None = None
    keys_in_registers: bool | None = None
    keys_in_order: bool | None = None
    scheduler: Scheduler | None = None
    stores_first: bool | None = None
    mask_loops: bool | None = None
    swizzle_qk: int | None = None
    swizzle_v: int | None = None


AnyRequest = PlanRequest | BackwardRequest
