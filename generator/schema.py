"""The YAML's schema: one pydantic model, which also gives editors their JSON Schema."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StrictBool, StrictInt

from .request import BackwardRequest, Epilogue, PlanRequest, Rescale, Scheduler
from .schema_values import HeadDim, Keys, Registers, Strict, Swizzle, Tile
from .spec import Arch, Dtype, Feature, Mask, Op, Schedule

Auto = Literal["auto"]
LIST_KEYS = ("features",)  # a list already: a list of lists sweeps it
# Kernel -> the keys that say how it is computed, beside `schedule`; those of the other kernel are refused.
PLAN_KEYS = {Op.attention_fwd: PlanRequest.keys(), Op.attention_bwd: BackwardRequest.keys()}


def _from_word(*, description: str, **extra: Any) -> Any:
    return Field(strict=False, description=description, **extra)


class KernelConfig(Strict):
    """One kernel: one point of a config's sweep."""

    kernel: Op = _from_word(description="What is computed: attention_fwd or attention_bwd.")
    arch: Arch = _from_word(description="The GPU target the cubin is compiled for. sm90a is Hopper (H100, H200).")
    dtype: Dtype = _from_word(description="Element type of q, k and v; out has the same.")
    head_dim: StrictInt | HeadDim = Field(
        description="Head dim: a multiple of 8 from 8 to 256, or {qk, v} when q and k have another than v."
    )
    schedule: Annotated[Schedule, Field(strict=False)] | Auto = Field(
        default="auto", description="The kernel's structure: fa3 on sm90a, fa2 elsewhere. auto follows arch."
    )
    mask: Mask = _from_word(
        default=Mask.full, description="Which keys a query sees. causal is aligned to the bottom right corner."
    )
    features: list[Annotated[Feature, Field(strict=False)]] = Field(
        default=[],
        description="What the kernel does beside plain attention. Grouped heads (gqa) are always on; "
        "attention_bwd with deterministic gives the same bits on every run.",
    )
    keys: Keys = Field(
        default=Keys(), description="Meant for sequences of so many keys, {from, below}; left out: for any number."
    )
    tile: Tile | Auto = Field(
        default="auto", description="Tile of the score matrix, {m, n}. auto takes the measured best."
    )
    stages: StrictInt | Auto = Field(
        default="auto", description="Blocks of K and of V in flight: 1 or more, 2 or more with overlap."
    )
    stages_q: StrictInt | Auto = Field(
        default="auto", description="Tiles of Q in flight, 1 or more. auto: 2 if they fit beside all else."
    )
    stages_do: StrictInt | Auto = Field(
        default="auto", description="Backward: tiles of dO in flight, 1 or more. auto: 2 if they fit beside all else."
    )
    stages_ds: StrictInt | Auto = Field(
        default="auto", description="Backward: tiles of dS in shared memory. auto: 2, with split_roles 1."
    )
    dq_passes: StrictInt | Auto = Field(
        default="auto", description="Backward: parts in which dQ is handed over: more take less shared memory."
    )
    split_roles: StrictBool | Auto = Field(
        default="auto",
        description="Backward: one warpgroup holds dV and the other dK of the same 64 keys; else each both, of its own "
        "64. auto: true for head dims past 128.",
    )
    keys_in_registers: StrictBool | Auto = Field(
        default="auto",
        description="Backward: a warpgroup multiplies its keys from registers, which spares shared memory's bandwidth. "
        "Not with split_roles. auto: true where they fit.",
    )
    keys_in_order: StrictBool | Auto = Field(
        default="auto",
        description="Backward: dQ is added up in the order of the keys, as deterministic asks; some problems are "
        "faster so. auto: true if deterministic.",
    )
    stores_first: StrictBool | Auto = Field(
        default="auto",
        description="Backward: who adds first to a block of dQ stores it, so that nobody zeroes it. auto: "
        "true with keys_in_order, or where dQ goes in one pass.",
    )
    mask_loops: StrictBool | Auto = Field(
        default="auto", description="Backward: masked blocks have a loop of their own. auto: true without split_roles."
    )
    warpgroups: StrictInt | Auto = Field(
        default="auto", description="Consumer warpgroups of 64 rows: m / 64, 1 to 3; in the backward 2."
    )
    registers: Registers | Auto = Field(
        default="auto", description="Register split, {producer, consumer}. auto gives the usual one for the warpgroups."
    )
    scheduler: Annotated[Scheduler, Field(strict=False)] | Auto = Field(
        default="auto",
        description="How tiles reach thread blocks: one each (single), a persistent grid with a fixed stride (static) "
        "or with an atomic counter (dynamic). auto: dynamic for causal, static for full. Backward: single or, without "
        "split_roles, dynamic; auto: single.",
    )
    overlap: StrictBool | Auto = Field(
        default="auto",
        description="Issue the next block's QK while this block's PV runs. auto: true with 2 stages or more.",
    )
    pingpong: StrictBool | Auto = Field(
        default="auto",
        description="Let consumer warpgroups take turns in the tensor cores. auto: true with 2 warpgroups or more.",
    )
    rescale: Annotated[Rescale, Field(strict=False)] | Auto = Field(
        default="auto",
        description="Rescale O before its next product is issued (early) or after the last one is done (late). "
        "auto: early.",
    )
    lazy_rescale: StrictBool | Auto = Field(
        default="auto",
        description="Look for a greater row maximum, and rescale O, only once exponentials under the old one add up to "
        "more than 2^8; exact all the same. auto: true.",
    )
    early_start: StrictBool | Auto = Field(
        default="auto",
        description="Compute the next tile's first scores while this tile's output is stored. auto: false.",
    )
    epilogue: Annotated[Epilogue, Field(strict=False)] | Auto = Field(
        default="auto",
        description="Store out through a tile of shared memory (tile) or from registers. auto: tile if it fits.",
    )
    swizzle: Swizzle | Auto = Field(
        default="auto",
        description="Bytes of a row permuted together in shared memory, {qk, v}: 32, 64 or 128. Rows are padded to "
        "whole ones; products keep the real head dim. auto: wide where rows are not whole 32-byte sectors.",
    )


INNER: dict[str, type[BaseModel]] = {
    "head_dim": HeadDim, "keys": Keys, "tile": Tile, "registers": Registers, "swizzle": Swizzle
}  # fmt: skip


def yaml_keys(model: type[BaseModel]) -> list[str]:
    """The keys of a model as they are written in YAML."""
    return [field.alias or name for name, field in model.model_fields.items()]


def foreign_keys(op: Op) -> list[str]:
    """The keys of other kernels, that a config of this one may not have."""
    every = dict.fromkeys(key for keys in PLAN_KEYS.values() for key in keys)
    return [key for key in every if key not in PLAN_KEYS[op]]


def kernel_keys(op: Op) -> list[str]:
    """The keys that a config of a kernel may have."""
    return [key for key in yaml_keys(KernelConfig) if key not in foreign_keys(op)]


def json_schema() -> dict[str, Any]:
    """The JSON Schema of one YAML document, with lists allowed where a key can be swept."""
    schema = KernelConfig.model_json_schema()
    for key, rule in schema["properties"].items():
        about = {name: rule.pop(name) for name in ("title", "description", "default") if name in rule}
        schema["properties"][key] = about | {"anyOf": [rule, {"type": "array", "items": rule, "minItems": 1}]}
    schema["allOf"] = [
        {"if": {"properties": {"kernel": {"const": op.value}}}, "then": {"properties": dict.fromkeys(others, False)}}
        for op, others in ((op, foreign_keys(op)) for op in PLAN_KEYS)
    ]
    schema["title"] = "flashgen kernel config"
    schema["description"] = "A list of values is swept: every combination is one kernel."
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema
