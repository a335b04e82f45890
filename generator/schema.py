"""The YAML's schema: one pydantic model, which also gives editors their JSON Schema."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, ValidationError

from .errors import closest, shown
from .request import Epilogue, Rescale, Scheduler
from .spec import Arch, Dtype, Feature, Mask, Op, Schedule

Auto = Literal["auto"]
NOT_SWEPT = ("features",)  # a list already


class _Strict(BaseModel):
    # Strict: no number from a string, no integer from a boolean. Enums alone are read from their words.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _from_word(*, description: str, **extra: Any) -> Any:
    return Field(strict=False, description=description, **extra)


class HeadDim(_Strict):
    """Different head dims of q and k, and of v and out."""

    qk: StrictInt = Field(description="Head dim of q and k: a multiple of 8 from 8 to 256.")
    v: StrictInt = Field(description="Head dim of v and out: a multiple of 8 from 8 to 256.")


class Tile(_Strict):
    """Rows and columns of the score matrix that a thread block works on at a time."""

    m: StrictInt = Field(description="Query rows: 64 for each consumer warpgroup, so 64, 128 or 192.")
    n: StrictInt = Field(description="Keys of a block: a multiple of 16 from 16 to 256.")


class Registers(_Strict):
    """Registers a thread for the two kinds of warpgroup (setmaxnreg)."""

    producer: StrictInt = Field(description="Registers of a producer thread: a multiple of 8 from 24 to 256.")
    consumer: StrictInt = Field(description="Registers of a consumer thread: a multiple of 8 from 24 to 256.")


class Swizzle(_Strict):
    """Bytes of a row that are permuted together in shared memory, and so the width of a copy."""

    qk: StrictInt = Field(description="Bytes of a row of q and k: 32, 64 or 128.")
    v: StrictInt = Field(description="Bytes of a row of v and out: 32, 64 or 128.")


class KernelConfig(_Strict):
    """One kernel: one point of a config's sweep."""

    kernel: Op = _from_word(description="What is computed: attention_fwd or attention_bwd.")
    arch: Arch = _from_word(description="The GPU target the cubin is compiled for. sm90a is Hopper (H100, H200).")
    dtype: Dtype = _from_word(description="Element type of q, k and v.")
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
        default=[], description="What the kernel does beside plain attention. Grouped heads (gqa) are always on."
    )
    tile: Tile | Auto = Field(
        default="auto", description="Tile of the score matrix, {m, n}. auto takes the measured best."
    )
    stages: StrictInt | Auto = Field(
        default="auto", description="Blocks of K and of V in flight: 1 or more, 2 or more with overlap."
    )
    warpgroups: StrictInt | Auto = Field(default="auto", description="Consumer warpgroups of 64 rows: m / 64, 1 to 3.")
    registers: Registers | Auto = Field(
        default="auto", description="Register split, {producer, consumer}. auto gives the usual one for the warpgroups."
    )
    scheduler: Annotated[Scheduler, Field(strict=False)] | Auto = Field(
        default="auto",
        description="How tiles reach thread blocks: one each (single), a persistent grid with a fixed stride (static) "
        "or with an atomic counter (dynamic). auto: dynamic for causal, static for full.",
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
        "auto: early when the head dim of v is 224 or more.",
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


INNER: dict[str, type[BaseModel]] = {"head_dim": HeadDim, "tile": Tile, "registers": Registers, "swizzle": Swizzle}


def json_schema() -> dict[str, Any]:
    """The JSON Schema of one YAML document, with lists allowed where a key can be swept."""
    schema = KernelConfig.model_json_schema()
    for key, rule in schema["properties"].items():
        if key in NOT_SWEPT:
            continue
        about = {name: rule.pop(name) for name in ("title", "description", "default") if name in rule}
        schema["properties"][key] = about | {"anyOf": [rule, {"type": "array", "items": rule, "minItems": 1}]}
    schema["title"] = "flashgen kernel config"
    schema["description"] = "A list of values is swept: every combination is one kernel."
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema


def first_error(error: ValidationError, data: dict[str, Any]) -> tuple[list[str | int], str]:
    """The path in the data and the message of the error that says most about what was meant."""
    # A union reports every branch; the one that got furthest into the data is the one that was meant.
    details = max(
        error.errors(), key=lambda e: (len(_path(e["loc"], data)), e["type"] in ("extra_forbidden", "missing"))
    )
    path = _path(details["loc"], data)
    name = " ".join(str(step) for step in path if isinstance(step, str))
    last = details["loc"][-1]
    if details["type"] == "missing":
        return path, f"{name + ': ' if name else ''}the key {last} is missing"
    if details["type"] == "extra_forbidden":
        inner = len(details["loc"]) > 1
        keys = list((INNER[str(path[0])] if inner else KernelConfig).model_fields)
        where = f"{path[0]}: " if inner else ""
        return [*path[:1], *([last] if inner else [])], (
            f"{where}unknown key {shown(last)}; legal: {', '.join(keys)}{closest(last, keys)}"
        )
    got: Any = data
    for step in path:
        got = got[step]
    words = legal_words(path)
    hint = closest(got, [word for word in words if " " not in word]) if isinstance(got, str) else ""
    if path[0] == "features" and got in list(Mask):
        hint = f"; a mask has a key of its own: `mask: {got}`"
    return path, f"{name}: got {_got(got)}; legal: {', '.join(words)}{hint}"


def legal_words(path: list[str | int]) -> list[str]:
    """What may stand at a key, in words, from the JSON Schema itself."""
    schema = KernelConfig.model_json_schema()
    rule: dict[str, Any] = schema
    for step in path:
        rule = rule["items"] if isinstance(step, int) else _fields(rule, schema)[step]
    return _words(rule, schema)


def _fields(rule: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    for branch in [rule, *rule.get("anyOf", [])]:
        target = schema["$defs"][branch["$ref"].rpartition("/")[2]] if "$ref" in branch else branch
        if "properties" in target:
            fields: dict[str, Any] = target["properties"]
            return fields
    return {}


def _words(rule: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    if "anyOf" in rule:
        return [word for branch in rule["anyOf"] for word in _words(branch, schema)]
    if "$ref" in rule:
        return _words(schema["$defs"][rule["$ref"].rpartition("/")[2]], schema)
    if "enum" in rule or "const" in rule:
        return [str(word) for word in rule.get("enum", [rule.get("const")])]
    if "properties" in rule:
        return ["{" + ", ".join(f"{key}: integer" for key in rule["properties"]) + "}"]
    if rule.get("type") == "array":
        return [f"a list of {' '.join(_words(rule['items'], schema))}"]
    return {"integer": ["an integer"], "boolean": ["true", "false"]}[rule["type"]]


def _path(loc: tuple[int | str, ...], data: Any) -> list[str | int]:
    """The steps of a pydantic location that exist in the data: it also names branches of unions, which look alike."""
    if not loc or loc[0] not in data:
        return []
    path: list[str | int] = [loc[0]]
    data = data[loc[0]]
    fields = INNER[str(loc[0])].model_fields if loc[0] in INNER else {}
    for step in loc[1:]:
        if (
            isinstance(data, list)
            if isinstance(step, int)
            else step in fields and isinstance(data, dict) and step in data
        ):
            path.append(step)
            data = data[step]
    return path


def _got(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true (a boolean)", False: "false (a boolean)"}[value]
    kinds = {int: "an integer", float: "a float", str: "a string", list: "a list", dict: "a mapping"}
    return f"{shown(value)} ({kinds[type(value)]})"
