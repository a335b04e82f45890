"""What the adapters of peers call, with modules made up here, and which peers are there at all."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from flashgen import host_time, peers
from flashgen.peers import PEERS, LeftOutError, left_out_notes, run_of, usable

Calls = list[tuple[str, tuple[Any, ...], dict[str, Any]]]


def tensors(batch: int = 2, seqlen_q: int = 8, seqlen_k: int = 8, dims: tuple[int, int] = (64, 64)) -> list[Tensor]:
    sizes = ((seqlen_q, 4, dims[0]), (seqlen_k, 2, dims[0]), (seqlen_k, 2, dims[1]))
    return [torch.randn(batch, *size, dtype=torch.bfloat16) for size in sizes]


def module(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    made = ModuleType(name)
    vars(made).update(members)
    monkeypatch.setitem(sys.modules, name, made)


def expected(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Bottom-right causal attention."""
    mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1]) if causal else None
    q, k, v = (x.transpose(1, 2).float() for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return out.transpose(1, 2)


@pytest.mark.parametrize("name", ["fa2", "fa3", "fa4"])
@pytest.mark.parametrize("with_lse", [False, True])
def test_flash_attention_gets_our_layout(name: str, with_lse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Calls = []

    def flash_attn_func(*arguments: Any, **keywords: Any) -> Any:
        calls.append((name, arguments, keywords))
        return (arguments[0], None) if with_lse else arguments[0]

    if name == "fa4":
        module(monkeypatch, "flash_attn")
    module(monkeypatch, PEERS[name].module, flash_attn_func=flash_attn_func)
    q, k, v = tensors(seqlen_k=16)
    assert usable([name]) == ((name,), {})
    assert run_of(name, q, k, v, causal=True)() is q
    assert len(calls) == 2, "the first one compiles"
    assert [id(x) for x in calls[1][1]] == [id(x) for x in (q, k, v)]
    assert calls[1][2] == {"causal": True}


def test_flash_attention_2_is_not_asked_for_two_head_dims(monkeypatch: pytest.MonkeyPatch) -> None:
    module(monkeypatch, "flash_attn", flash_attn_func=lambda *_, **__: pytest.fail("called"))
    with pytest.raises(LeftOutError, match="does not take the shape"):
        run_of("fa2", *tensors(dims=(192, 128)), causal=False)


@pytest.fixture
def flashinfer(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls: Calls = []

    def single(*arguments: Any, **keywords: Any) -> Tensor:
        calls.append(("single", arguments, keywords))
        return arguments[0]

    class Wrapper:
        def __init__(self, *arguments: Any) -> None:
            calls.append(("wrapper", arguments, {}))

        def plan(self, *arguments: Any, **keywords: Any) -> None:
            calls.append(("plan", arguments, keywords))

        def run(self, *arguments: Any) -> Tensor:
            calls.append(("run", arguments, {}))
            return arguments[0][..., :128]

    module(monkeypatch, "flashinfer", single_prefill_with_kv_cache=single, BatchPrefillWithRaggedKVCacheWrapper=Wrapper)
    return calls


def test_flashinfer_runs_one_sequence_alone(flashinfer: Calls) -> None:
    q, k, v = tensors(batch=1)
    assert torch.equal(run_of("flashinfer", q, k, v, causal=True)(), q)
    name, arguments, keywords = flashinfer[-1]
    assert (name, keywords) == ("single", {"causal": True})
    assert [x.shape for x in arguments] == [x.shape[1:] for x in (q, k, v)]


def test_flashinfer_plans_a_batch_once(flashinfer: Calls) -> None:
    q, k, v = tensors(3, 8, 16, (192, 128))
    run = run_of("flashinfer", q, k, v, causal=True)
    assert torch.equal(run(), q[..., :128])
    assert [name for name, *_ in flashinfer] == ["wrapper", "plan", "run", "run"]
    assert flashinfer[0][1][1] == "NHD"
    _, (starts_q, starts_k, *sizes), keywords = flashinfer[1]
    assert (starts_q.tolist(), starts_k.tolist()) == ([0, 8, 16, 24], [0, 16, 32, 48])
    assert starts_q.dtype == torch.int32
    assert sizes == [4, 2, 192]
    assert keywords == {
        "head_dim_vo": 128, "causal": True, "q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16
    }  # fmt: skip
    assert [tuple(x.shape) for x in flashinfer[-1][1]] == [(24, 4, 192), (48, 2, 192), (48, 2, 128)]
    with pytest.raises(LeftOutError):
        run_of("flashinfer", *tensors(dims=(72, 72)), causal=False)


def test_torchs_backends_know_no_mask_that_ends_at_the_bottom_right(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.attention import SDPBackend

    monkeypatch.setitem(host_time.BACKENDS, "cudnn", SDPBackend.MATH)  # the one that CPU tensors have
    for causal, seqlen_k in ((False, 8), (False, 16), (True, 8)):
        q, k, v = tensors(seqlen_k=seqlen_k)
        out = run_of("cudnn", q, k, v, causal=causal)()
        torch.testing.assert_close(out.float(), expected(q, k, v, causal), atol=0.03, rtol=0.03)
    with pytest.raises(LeftOutError, match="does not take the shape"):
        run_of("cudnn", *tensors(seqlen_k=16), causal=True)


@pytest.mark.parametrize("causal", [False, True])
def test_flex_ends_its_mask_at_the_bottom_right(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.attention import flex_attention

    asked: Calls = []

    def attend(*arguments: Any, **keywords: Any) -> Tensor:
        asked.append(("flex", arguments, keywords))
        return arguments[0]

    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(torch.compiler, "reset", lambda: None)
    monkeypatch.setattr(flex_attention, "flex_attention", attend)
    q, k, v = tensors(seqlen_q=130, seqlen_k=300)
    assert torch.equal(run_of("flex", q, k, v, causal=causal)(), q)
    _, arguments, keywords = asked[-1]
    assert [x.shape[1] for x in arguments] == [4, 2, 2], "heads come before rows there"
    assert keywords["enable_gqa"] is True
    mask = keywords["block_mask"]
    assert (mask is not None) == causal
    if causal:
        row, key = torch.arange(130)[:, None], torch.arange(300)[None]
        assert torch.equal(mask.mask_mod(0, 0, row, key), torch.ones(130, 300, dtype=torch.bool).tril(170))


def test_who_does_not_import_is_noted_but_not_who_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(error: Exception) -> Any:
        def import_module(name: str) -> ModuleType:
            if name == "flash_attn_interface":
                raise error
            return ModuleType(name)

        return import_module

    for error, note in (
        (ImportError("undefined symbol: x\nmore"), "ImportError: undefined symbol: x"),
        (RuntimeError("no GPU"), "RuntimeError: no GPU"),
        (
            ModuleNotFoundError("No module named 'einops'", name="einops"),
            "ModuleNotFoundError: No module named 'einops'",
        ),
    ):
        monkeypatch.setattr(peers.importlib, "import_module", fails(error))
        assert usable() == (tuple(name for name in PEERS if name not in ("fa3", "flex")), {"fa3": note})
    absent = ModuleNotFoundError("No module", name="flash_attn_interface")
    monkeypatch.setattr(peers.importlib, "import_module", fails(absent))
    assert usable()[1] == {}
    assert usable(["flex", "fa3"]) == (("flex",), {"fa3": "flash_attn_interface is not installed"})


def test_a_shape_that_a_peer_refuses_is_said_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("head_dim must be\nless")

    module(monkeypatch, "flash_attn_interface", flash_attn_func=refuse)
    with pytest.raises(LeftOutError, match=r"^AssertionError: head_dim must be$"):
        run_of("fa3", *tensors(), causal=False)
    assert left_out_notes({"fa2": "gone"}, {"fa3": ["a", "b", "a"]}, 9) == [
        "fa2: left out. gone", "fa3: left out of 3 of 9 shapes. a; b"
    ]  # fmt: skip
