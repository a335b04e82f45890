"""KernelSpec: names, coercion, and what is refused by name."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.generator import ConfigError, Dtype, Feature, FlashgenError, KernelSpec, NotAvailableError, Op, PlanError
from flashgen.generator.errors import closest, shown
from flashgen.generator.words import FEATURES

DIMS = st.integers(1, 32).map(lambda count: 8 * count)


def make(**changes: object) -> KernelSpec:
    words: dict[str, object] = {
        "op": "attention_fwd",
        "schedule": "fa3",
        "arch": "sm90a",
        "dtype": "bf16",
        "head_dim_qk": 128,
        "head_dim_v": 128,
        "mask": "causal",
    }
    return KernelSpec(**(words | changes))  # type: ignore[arg-type]


def test_names() -> None:
    assert make().name == "attention_fwd_fa3_sm90a_bf16_d128_causal"
    assert KernelSpec.forward(head_dim=192, head_dim_v=128).name == "attention_fwd_fa3_sm90a_bf16_d192x128_full"
    assert KernelSpec.forward(head_dim=72, dtype="fp16").name == "attention_fwd_fa3_sm90a_fp16_d72_full"


def test_words_become_enums_and_equal_specs_are_one_key() -> None:
    spec = make()
    assert spec.dtype is Dtype.bf16
    assert spec.dtype.bytes == 2
    assert {spec: 1}[KernelSpec.forward(head_dim=128, mask="causal")] == 1


@given(DIMS, DIMS, st.sampled_from(["bf16", "fp16"]), st.sampled_from(["full", "causal"]))
def test_every_multiple_of_8_is_a_spec_whose_name_is_a_c_identifier(qk: int, v: int, dtype: str, mask: str) -> None:
    spec = KernelSpec.forward(head_dim=qk, head_dim_v=v, dtype=dtype, mask=mask)
    assert spec.name.isidentifier()
    assert spec.name.isascii()
    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"head_dim_qk": 63, "head_dim_v": 63}, ("63", "multiples of 8 from 8 to 256", "nearest: 56 or 64")),
        ({"head_dim_v": 4}, ("head_dim v", "4", "nearest: 8")),
        ({"head_dim_qk": 1024}, ("head_dim qk", "1024", "nearest: 256")),
        ({"head_dim_qk": True}, ("True", "multiples of 8")),
        ({"head_dim_qk": "128"}, ("'128'", "multiples of 8")),
        ({"head_dim_qk": 128.0}, ("128.0", "multiples of 8")),
        ({"dtype": "bf15"}, ("bf15", "fp16, bf16, e4m3", "closest match: bf16")),
        ({"arch": "sm90b"}, ("sm90b", "sm80", "closest match: sm90")),
        ({"op": "atention_fwd"}, ("closest match: attention_fwd",)),
        ({"mask": None}, ("None", "full, causal, window")),
        ({"features": ("varln",)}, ("varln", "closest match: varlen")),
        ({"features": "varlen"}, ("a list of words",)),
    ],
)
def test_unknown_words_and_values(changes: dict[str, object], parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        make(**changes)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": "fa2"}, "schedule fa2 is not available yet (available: fa3)"),
        ({"schedule": "fa2", "arch": "sm80"}, "arch sm80 is not available yet (available: sm90a)"),
        ({"dtype": "e4m3"}, "dtype e4m3 is not available yet (available: fp16, bf16)"),
        ({"mask": "window"}, "mask window is not available yet (available: full, causal)"),
        ({"head_dim_v": 512}, "head_dim v 512 is not available yet (available: multiples of 8 from 8 to 256)"),
        ({"features": ("varlen",)}, "features varlen is not available yet (available: gqa)"),
    ],
)
def test_known_and_not_built(changes: dict[str, object], message: str) -> None:
    with pytest.raises(NotAvailableError) as caught:
        make(**changes)
    assert str(caught.value) == message


@pytest.mark.parametrize("feature", [feature.value for feature in Feature if feature not in FEATURES[Op.attention_bwd]])
def test_every_feature_is_known_by_name(feature: str) -> None:
    with pytest.raises(NotAvailableError, match=feature):
        make(features=(feature,))


def test_the_features_of_the_contract_are_known() -> None:
    named = "varlen paged softcap alibi bias sink score descale split_kv pack_gqa deterministic batch_invariant"
    assert set(named.split()) < set(Feature)


def test_grouped_heads_are_in_every_kernel() -> None:
    assert make(features=("gqa",)) == make()


@pytest.mark.parametrize("arch", ["sm80", "sm86", "sm89", "sm90", "sm100", "sm120"])
def test_fa3_takes_sm90a_alone(arch: str) -> None:
    with pytest.raises(PlanError, match=f"fa3 does not run on arch {arch}; legal: sm90a"):
        make(arch=arch)


@pytest.mark.parametrize("kind", [ConfigError, PlanError, NotAvailableError])
def test_errors_keep_their_key_between_processes_and_take_a_position(kind: type[FlashgenError]) -> None:
    error = pickle.loads(pickle.dumps(kind("tile: no", key="tile")))
    assert (type(error), str(error), error.key) == (kind, "tile: no", "tile")
    placed = error.at("a.yaml:3")
    assert (type(placed), str(placed), placed.key) == (kind, "a.yaml:3: tile: no", "tile")


def test_messages_stay_short_and_on_one_line() -> None:
    assert "\n" not in shown("a\nb")
    assert len(shown("x" * 10_000)) < 100
    assert closest("zzz", ["full", "causal"]) == ""
