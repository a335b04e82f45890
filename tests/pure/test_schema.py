"""The JSON Schema that editors get: it takes what ships, refuses what the loader refuses, and describes every key."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from flashgen.generator import Arch, Dtype, Feature, Mask, Op, Schedule, json_schema, shipped_configs
from flashgen.generator.schema import PLAN_KEYS, KernelConfig, foreign_keys

SCHEMA = json_schema()
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}


def accepts(rule: dict[str, Any] | bool, value: Any) -> bool:
    """Whether a JSON Schema takes a value; as much of the standard as this schema uses, and an error beyond."""
    known = {"title", "description", "default", "$schema", "$defs", "$ref", "anyOf", "enum", "const", "type", "items"}
    known |= {"minItems", "properties", "required", "additionalProperties", "allOf", "if", "then"}
    if isinstance(rule, bool):
        return rule
    assert set(rule) <= known
    if not all(accepts(branch, value) for branch in rule.get("allOf", [])):
        return False
    if "if" in rule:
        return not accepts(rule["if"], value) or accepts(rule["then"], value)
    if "$ref" in rule and not accepts(SCHEMA["$defs"][rule["$ref"].removeprefix("#/$defs/")], value):
        return False
    if "anyOf" in rule and not any(accepts(branch, value) for branch in rule["anyOf"]):
        return False
    if "enum" in rule and value not in rule["enum"]:
        return False
    if "const" in rule and value != rule["const"]:
        return False
    if "type" in rule and (
        not isinstance(value, TYPES[rule["type"]]) or (isinstance(value, bool) and rule["type"] != "boolean")
    ):
        return False
    if isinstance(value, list):
        return len(value) >= rule.get("minItems", 0) and all(accepts(rule.get("items", {}), item) for item in value)
    if isinstance(value, dict) and "properties" in rule:
        closed = rule.get("additionalProperties") is False
        inside = all(accepts(rule["properties"].get(key, not closed), value[key]) for key in value)
        return inside and all(key in value for key in rule.get("required", []))
    return True


def descriptions(rule: dict[str, Any]) -> dict[str, str]:
    return {key: inner.get("description", "") for key, inner in rule.get("properties", {}).items()}


@pytest.mark.parametrize("path", shipped_configs(), ids=lambda path: path.stem)
def test_shipped_configs_are_accepted(path: Any) -> None:
    for document in yaml.safe_load_all(path.read_text("utf-8")):
        assert accepts(SCHEMA, document)


@pytest.mark.parametrize(
    "change",
    [
        {"tlie": "auto"},
        {"dtype": "bf15"},
        {"dtype": []},
        {"head_dim": "128"},
        {"head_dim": True},
        {"head_dim": {"qk": 192}},
        {"tile": {"m": 128, "n": 64, "k": 3}},
        {"stages": True},
        {"overlap": 1},
        {"features": "varlen"},
        {"features": ["varln"]},
        {"registers": {"producer": 24, "consumer": "240"}},
    ],
)
def test_what_the_loader_refuses_is_refused(change: dict[str, Any]) -> None:
    good = {"kernel": "attention_fwd", "arch": "sm90a", "dtype": "bf16", "head_dim": 128}
    assert accepts(SCHEMA, good)
    assert not accepts(SCHEMA, good | change)


@pytest.mark.parametrize("key", ["kernel", "arch", "dtype", "head_dim"])
def test_required_keys(key: str) -> None:
    good = {"kernel": "attention_fwd", "arch": "sm90a", "dtype": "bf16", "head_dim": 128}
    assert not accepts(SCHEMA, {name: value for name, value in good.items() if name != key})


def test_every_key_is_described() -> None:
    found = descriptions(SCHEMA)
    for rule in SCHEMA["$defs"].values():
        found |= descriptions(rule)
    assert set(KernelConfig.model_fields) | {"qk", "v", "m", "n", "producer", "consumer", "from", "below"} == set(found)
    assert all(len(text) > 20 for text in found.values())


def test_every_key_can_be_swept() -> None:
    assert all("minItems" in str(rule) for rule in SCHEMA["properties"].values())


@pytest.mark.parametrize("features", [[], ["gqa"], [[]], [[], ["deterministic"]]])
def test_a_list_of_lists_of_features_is_a_sweep(features: list[Any]) -> None:
    assert accepts(
        SCHEMA, {"kernel": "attention_bwd", "arch": "sm90a", "dtype": "bf16", "head_dim": 8} | {"features": features}
    )


@pytest.mark.parametrize("kernel", PLAN_KEYS)
def test_keys_of_another_kernel_are_refused(kernel: Op) -> None:
    good = {"kernel": kernel.value, "arch": "sm90a", "dtype": "bf16", "head_dim": 128}
    assert accepts(SCHEMA, good | dict.fromkeys(PLAN_KEYS[kernel], "auto"))
    assert len(foreign_keys(kernel)) >= 4
    assert not any(accepts(SCHEMA, good | {key: "auto"}) for key in foreign_keys(kernel))


@pytest.mark.parametrize("words", [Op, Schedule, Arch, Dtype, Mask, Feature])
def test_every_known_word_is_in_the_schema(words: Any) -> None:
    assert SCHEMA["$defs"][words.__name__]["enum"] == [word.value for word in words]
