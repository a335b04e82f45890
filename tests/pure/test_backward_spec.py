"""The backward's specs and configs: names, what ships, and which keys are whose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.generator import (
    ConfigError,
    KernelSpec,
    NotAvailableError,
    Op,
    PlanError,
    load_config,
    new_config,
    plan,
    plan_entry,
    shipped_configs,
)
from flashgen.generator.request import BackwardRequest, PlanRequest, Scheduler

BASE = "kernel: attention_bwd\narch: sm90a\ndtype: bf16\nhead_dim: 128\n"
DIMS = st.integers(1, 32).map(lambda count: 8 * count)


def test_names() -> None:
    name = "attention_bwd_fa3_sm90a_bf16_d128_causal"
    assert KernelSpec.backward(head_dim=128, mask="causal").name == name
    assert KernelSpec.backward(head_dim=128, mask="causal", deterministic=True).name == f"{name}_deterministic"
    assert KernelSpec.backward(head_dim=192, head_dim_v=128, dtype="fp16").name.endswith("_fp16_d192x128_full")


@given(DIMS, DIMS, st.sampled_from(["bf16", "fp16"]), st.sampled_from(["full", "causal"]), st.booleans())
def test_a_forward_has_its_backward(qk: int, v: int, dtype: str, mask: str, deterministic: bool) -> None:
    forward = KernelSpec.forward(head_dim=qk, head_dim_v=v, dtype=dtype, mask=mask)
    made = forward.backward_of(deterministic)
    assert made == KernelSpec.backward(head_dim=qk, head_dim_v=v, dtype=dtype, mask=mask, deterministic=deterministic)
    assert made.deterministic is deterministic
    assert made.name.isidentifier()


def test_a_range_of_keys_is_the_forwards_own() -> None:
    (forward,) = load_config(BASE.replace("_bwd", "_fwd") + "keys: {below: 1024}\n")
    assert forward.spec.backward_of() == KernelSpec.backward(head_dim=128)


def test_deterministic_is_a_feature_of_the_backward() -> None:
    with pytest.raises(PlanError, match="deterministic is one of attention_bwd; attention_fwd gives the same bits"):
        KernelSpec.forward(head_dim=128, features=["deterministic"])
    with pytest.raises(NotAvailableError, match=r"varlen is not available yet \(available: gqa, deterministic\)"):
        KernelSpec.forward(head_dim=128).backward_of(True).__class__(
            "attention_bwd",
            "fa3",
            "sm90a",
            "bf16",
            128,
            128,
            "full",
            ("varlen",),  # type: ignore[arg-type]
        )


def test_every_shipped_forward_has_its_backwards() -> None:
    """Of each problem, whatever ranges of keys either has."""
    specs = {entry.spec for path in shipped_configs() for entry in load_config(path)}
    forwards = [spec for spec in specs if spec.op is Op.attention_fwd]
    assert forwards
    backwards = {spec.any_length for spec in specs - {*forwards}}
    assert {spec.backward_of(steady) for spec in forwards for steady in (False, True)} == backwards


def test_a_backward_has_ranges_of_keys_of_its_own() -> None:
    short, long = load_config(BASE + "features: [deterministic]\nkeys: [{below: 640}, {from: 640}]\n")
    name = "attention_bwd_fa3_sm90a_bf16_d128_full_deterministic"
    assert [short.spec.name, long.spec.name] == [f"{name}_below640", f"{name}_from640"]
    assert [short.spec.meant_for(keys) for keys in (0, 639, 640)] == [True, True, False]
    assert [long.spec.meant_for(keys) for keys in (0, 639, 640)] == [False, False, True]
    assert short.spec.any_length == long.spec.any_length == KernelSpec.backward(head_dim=128, deterministic=True)
    assert plan_entry(short).entry_points[0] == f"{name}_below640_preprocess"


def test_features_are_swept_by_a_list_of_lists() -> None:
    names = [entry.spec.name for entry in load_config(BASE + "features: [[], [gqa, deterministic]]\n")]
    assert names == [f"attention_bwd_fa3_sm90a_bf16_d128_full{ending}" for ending in ("", "_deterministic")]
    (entry,) = load_config(BASE + "features: [deterministic]\n")
    assert entry.spec.deterministic
    with pytest.raises(ConfigError, match=r"^\(text\):5: features: got"):
        load_config(BASE + "features: [gqa, [deterministic]]\n")


def test_every_key_reaches_the_request() -> None:
    (entry,) = load_config(
        BASE + "tile: {m: 64, n: 64}\nstages_q: 2\nstages_do: 1\nstages_ds: 3\ndq_passes: 2\nsplit_roles: true\n"
        "keys_in_registers: false\nkeys_in_order: true\nscheduler: dynamic\nstores_first: true\n"
        "mask_loops: false\nwarpgroups: 2\n"
        "registers: {producer: 32, consumer: 232}\nswizzle: {qk: 64, v: 32}\n"
    )
    assert entry.request == BackwardRequest(
        64, 64, 2, 1, 3, 2, 2, 32, 232, True, False, True, Scheduler.dynamic, True, False, 64, 32
    )
    assert None not in entry.request.explicit.values()
    assert len(entry.request.explicit) == 17


@pytest.mark.parametrize("key", sorted({*PlanRequest.keys()} - {*BackwardRequest.keys()}))
def test_forward_keys_are_refused(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(f"{BASE}{key}: auto\n")
    message = str(caught.value)
    assert message.startswith(f"(text):5: got {key}, which is no key of attention_bwd; legal: kernel, arch, dtype, ")
    assert "stages_do" in message


@pytest.mark.parametrize("key", sorted({*BackwardRequest.keys()} - {*PlanRequest.keys()}))
def test_backward_keys_are_refused_in_a_forward(key: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^\(text\):5: got {key}, which is no key of attention_fwd; legal: .*pingpong"
    ):
        load_config(BASE.replace("_bwd", "_fwd") + f"{key}: auto\n")


def test_a_request_of_the_other_kernel_is_refused() -> None:
    with pytest.raises(ConfigError, match="got a PlanRequest; expected a BackwardRequest"):
        plan(KernelSpec.backward(head_dim=64), PlanRequest())
    with pytest.raises(ConfigError, match="got a BackwardRequest; expected a PlanRequest"):
        plan(KernelSpec.forward(head_dim=64), BackwardRequest())


@pytest.mark.parametrize("dims", [(72, None), (8, None), (192, 128), (104, 256)])
def test_new_config_loads_and_plans(dims: tuple[int, int | None]) -> None:
    text = new_config(dims[0], head_dim_v=dims[1], kernel="attention_bwd")
    entries = load_config(text)
    assert len(entries) == 8
    assert sum(entry.spec.deterministic for entry in entries) == 4
    made = plan_entry(entries[0])
    assert f"{{m: {made.block_m}, n: {made.block_n}}}" in text
    assert all(len(line) <= 120 for line in text.splitlines())
    with pytest.raises(ConfigError, match="closest match: attention_bwd"):
        new_config(64, kernel="atention_bwd")
