"""YAML that loads: sweeps, defaults, documents, and every key reaching the request."""

from __future__ import annotations

from flashgen.generator import load_config

BASE = "kernel: attention_fwd\narch: sm90a\ndtype: bf16\nhead_dim: 128\n"


def test_sweep_is_the_cartesian_product_in_order() -> None:
    text = BASE.replace("bf16", "[bf16, fp16]").replace("128", "[64, {qk: 192, v: 128}]") + "mask: [full, causal]\n"
    entries = load_config(text)
    assert [entry.spec.name.removeprefix("attention_fwd_fa3_sm90a_") for entry in entries] == [
        f"{dtype}_{dim}_{mask}"
        for dtype in ("bf16", "fp16")
        for dim in ("d64", "d192x128")
        for mask in ("full", "causal")
    ]
    assert {entry.origin for entry in entries} == {"(text):1"}


def test_defaults() -> None:
    (entry,) = load_config(BASE)
    assert entry.spec.name == "attention_fwd_fa3_sm90a_bf16_d128_full"
    assert entry.request.explicit == {}


def test_every_key_reaches_the_request() -> None:
    (entry,) = load_config(
        BASE + "schedule: fa3\nmask: causal\nfeatures: []\ntile: {m: 64, n: 96}\nstages: 3\nwarpgroups: 1\n"
        "stages_q: 1\nlazy_rescale: false\nearly_start: true\nkeys: {from: 64, below: 128}\n"
        "registers: {producer: 40, consumer: 232}\nscheduler: single\noverlap: false\npingpong: false\n"
        "rescale: late\nepilogue: registers\nswizzle: {qk: 64, v: 32}\n"
    )
    assert entry.request.explicit == {
        "block_m": 64,
        "block_n": 96,
        "stages": 3,
        "stages_q": 1,
        "lazy_rescale": False,
        "early_start": True,
        "consumer_warpgroups": 1,
        "producer_registers": 40,
        "consumer_registers": 232,
        "scheduler": "single",
        "overlap": False,
        "pingpong": False,
        "rescale": "late",
        "epilogue": "registers",
        "swizzle_qk": 64,
        "swizzle_v": 32,
    }


def test_ranges_of_keys_are_kernels_of_their_own() -> None:
    short, long = load_config(BASE + "keys: [{below: 1024}, {from: 1024}]\n")
    assert short.spec.name.endswith("_d128_full_below1024")
    assert long.spec.name.endswith("_d128_full_from1024")
    assert short.spec.any_length == long.spec.any_length == load_config(BASE)[0].spec
    assert [spec.meant_for(keys) for spec in (short.spec, long.spec) for keys in (0, 1023, 1024)] == [
        True, True, False, False, False, True,
    ]  # fmt: skip


def test_documents_have_their_own_sweep_and_position() -> None:
    entries = load_config(f"# two\n{BASE}---\n{BASE}mask: causal\n")
    assert [entry.origin for entry in entries] == ["(text):2", "(text):7"]
