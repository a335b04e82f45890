"""docs/yaml.md is true: it has every key and word, its example loads, and its error is the one that is raised."""

from __future__ import annotations

import re

import pytest

from flashgen.generator import (
    BackwardPlan,
    KernelSpec,
    NotAvailableError,
    PlanError,
    load_config,
    plan_backward,
    plan_entry,
)
from flashgen.generator.backward_feasibility import accumulator_limit
from flashgen.generator.footprint import REGISTER_SPLIT, SMEM_LIMIT, register_pool
from flashgen.generator.paths import ROOT
from flashgen.generator.schema import PLAN_KEYS, KernelConfig, json_schema

PAGE = ROOT / "docs" / "yaml.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="an installed package has no docs")


def text() -> str:
    return PAGE.read_text("utf-8")


def row(key: str, backward: bool = False) -> str:
    """The row of a key: of the forward's tables, if it is there and nothing else is said."""
    found = re.findall(rf"^\| `{key}` \|.*$", text(), re.MULTILINE)
    assert len(found) == sum(key in keys for keys in PLAN_KEYS.values()) or len(found) == 1
    return str(found[-1 if backward else 0])


@pytest.mark.parametrize("key", KernelConfig.model_fields)
def test_every_key_has_its_row(key: str) -> None:
    assert row(key)


@pytest.mark.parametrize(
    ("key", "words"),
    [(name.lower(), rule["enum"]) for name, rule in json_schema()["$defs"].items() if "enum" in rule],
)
def test_every_word_is_there(key: str, words: list[str]) -> None:
    line = row({"op": "kernel", "feature": "features"}.get(key, key))
    assert [word for word in words if f"`{word}`" not in line] == []


def test_the_example_loads() -> None:
    example = re.findall(r"```yaml\n(.*?)```", text(), re.DOTALL)[0]
    entries = load_config(example)
    assert len(entries) == 8
    names = {plan_entry(entry).name for entry in entries}
    assert set(re.findall(r"attention_fwd_\w+_d192x128_\w+", text())) <= names


def test_what_is_said_to_be_missing_is() -> None:
    base = {"kernel": "attention_fwd", "arch": "sm90a", "dtype": "bf16", "head_dim": "128"}
    missing = [
        (key, word)
        for key in ("arch", "dtype", "schedule", "mask", "features")
        for word in re.findall(r"`(\w+)`", row(key).split("not available yet:")[1].split("|")[0])
    ]
    assert len(missing) >= 20
    for key, word in missing:
        value = f"[{word}]" if key == "features" else word
        with pytest.raises(NotAvailableError, match=word):
            load_config("".join(f"{name}: {it}\n" for name, it in (base | {key: value}).items()))


def test_the_error_is_the_one_that_is_raised() -> None:
    with pytest.raises(PlanError) as caught:
        plan_entry(
            load_config("kernel: attention_fwd\narch: sm90a\ndtype: bf16\nhead_dim: 128\ntile: {m: 128, n: 256}\n")[0]
        )
    assert str(caught.value).replace("(text)", "x.yaml") in text().replace("\n", " ")


def test_limits() -> None:
    assert f"{SMEM_LIMIT:,} bytes" in text()
    assert all(f"{{{producer}, {consumer}}}" in row("registers") for producer, consumer in REGISTER_SPLIT.values())
    assert all(f"{register_pool(groups):,}" in text() for groups in REGISTER_SPLIT)


def test_the_backwards_example_and_numbers() -> None:
    example = re.findall(r"```yaml\n(.*?)```", text(), re.DOTALL)[1]
    plans = [plan_entry(entry) for entry in load_config(example)]
    assert len(plans) == 8
    assert set(re.findall(r"attention_bwd_\w+_d128_\w+", text())) <= {made.name for made in plans}
    for made in (*plans, *(plan_backward(KernelSpec.backward(head_dim=dim)) for dim in (80, 256))):
        assert isinstance(made, BackwardPlan)
        m, n, qk, v = made.block_m, made.block_n, made.padded_qk, made.padded_v
        rows = {
            "k": n * qk * 2,
            "v": n * v * 2,
            "q": made.stages_q * m * qk * 2,
            "dout": made.stages_do * m * v * 2,
            "ds": made.stages_ds * n * m * 2,
            "p": n * m * 4 if made.split_roles else 16,
            "dq": m * made.spec.head_dim_qk * 4 // made.dq_passes,
            "lse": made.stages_q * m * 4,
            "dpsum": made.stages_do * m * 4,
            "barriers": 8 * (7 + 2 * made.stages_q + 2 * made.stages_do) + 40 * made.persistent,
        } | ({"tiles": 24} if made.persistent else {})
        assert {row.name: row.bytes for row in made.smem if row.name != "padding"} == rows
        assert made.key_registers == 4 * -(-made.spec.head_dim_qk // 16)
        assert "4 more for every 16 columns of k" in text()
        less = f"the consumer's registers less {made.consumer_registers - accumulator_limit(made)}"
        assert re.search(rf"At most {accumulator_limit(made)} of them\s+are available[^.]*{less}", text())
        assert f"{{{made.producer_registers}, {made.consumer_registers}}}" in row("registers", backward=True)
        rows_and_heads = made.workspace_bytes(1, 1, 64 * m)
        assert rows_and_heads == 64 * (m * 4 * (made.spec.head_dim_qk + 2) + 8) + 256 * made.persistent  # 8, rounded up
