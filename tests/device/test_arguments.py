"""Arguments on CUDA: what is wrong raises before a launch, what is empty or extreme gives the contract's answer."""

from __future__ import annotations

from itertools import product

import pytest
import torch

import flashgen
from flashgen.generator import KernelPlan
from flashgen.testing import judge
from tests.device.helpers import MASKS, NAN, difference, inputs, kernel_of, plan_for, run


def kernels() -> list[KernelPlan]:
    return [plan_for(64, "bf16", mask, 300) for mask in MASKS]


@pytest.mark.parametrize("places", [p for p in product(("cuda", "cpu"), repeat=3) if len(set(p)) == 2])
def test_tensors_on_several_devices_raise(places: tuple[str, str, str]) -> None:
    tensors = inputs(plan_for(64, "bf16", "full", 300), 2, (5, 7), (4, 2))
    flashgen.attention(*tensors)
    q, k, v = (x.to(place) for x, place in zip(tensors, places, strict=True))
    for call in (
        lambda: flashgen.attention(q, k, v),
        lambda: flashgen.attention(q, k, v, return_lse=True),
        lambda: flashgen.bind(q, k, v),
        lambda: kernel_of(plan_for(64, "bf16", "full", 300))(q, k, v),
    ):
        with pytest.raises(flashgen.ArgumentError, match="expected one device"):
            call()


def test_wrong_arguments_raise_however_often_and_launch_nothing() -> None:
    q, k, v = inputs(plan_for(64, "bf16", "full", 300), 2, (5, 7), (4, 2))
    wrong = {
        "dimensions": (q[0], k, v), "dtype": (q, k.half(), v), "batch": (q, k[:1], v), "seqlen": (q, k, v[:, :6]),
        "heads of k and v": (q, k, v[:, :, :1]), "multiple": (q[:, :, :3], k, v), "head dim": (q[..., :56], k, v),
        "nearest": (q[..., :60], k[..., :60], v), "torch.float32": (q.float(), k.float(), v.float()),
    }  # fmt: skip
    for said, tensors in wrong.items():
        for _ in range(2):
            with pytest.raises(flashgen.ArgumentError, match=said):
                flashgen.attention(*tensors)
    torch.cuda.synchronize()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sizes", [(0, 5, 7, 4, 2), (2, 0, 7, 4, 2), (2, 5, 0, 4, 2), (2, 5, 7, 0, 2), (2, 5, 7, 0, 0)])
def test_empty_tensors(sizes: tuple[int, int, int, int, int], mask: str) -> None:
    batch, sq, sk, heads_q, heads_kv = sizes
    plan = plan_for(64, "bf16", mask, 300)
    q, k, v = inputs(plan, batch, (sq, sk), (heads_q, heads_kv))
    bound = flashgen.bind(q, k, v, causal=mask == "causal", return_lse=True)
    bound.out.fill_(NAN)
    for out, lse in (
        flashgen.attention(q, k, v, causal=mask == "causal", return_lse=True), bound(), run(kernel_of(plan), q, k, v)
    ):  # fmt: skip
        assert (tuple(out.shape), tuple(lse.shape)) == ((batch, sq, heads_q, 64), (batch, heads_q, sq))
        assert not bool(out.any())
        assert bool((lse == float("-inf")).all())


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("scale", [1e-50, 1e-42, 1e-30, 1e-3, 1.0, 30.0, 1e39])
def test_any_scale_is_right_or_refused(scale: float, mask: str) -> None:
    """float32 has neither 1e-50 nor 1e39: a scale of 0 would make NaN of the mask's minus infinities."""
    plan = plan_for(64, "bf16", mask, 300)
    q, k, v = inputs(plan, 2, (129, 203), (4, 2))
    try:
        out, lse = flashgen.attention(q, k, v, causal=mask == "causal", softmax_scale=scale, return_lse=True)
    except flashgen.ArgumentError:
        assert not 1e-30 <= scale <= 30.0, "an ordinary scale was refused"
        return
    assert not bool(out.isnan().any()), f"{int(out.isnan().sum())} of {out.numel()} numbers are NaN"
    if scale <= 1.0:
        verdict = judge(out, lse, q, k, v, causal=mask == "causal", softmax_scale=scale)
        assert verdict.ok, str(verdict)


def test_scales_and_masks_are_not_mixed_up_between_calls() -> None:
    q, k, v = inputs(plan_for(64, "bf16", "full", 300), 2, (129, 203), (4, 2))
    kinds = [(causal, scale) for causal in (False, True) for scale in (None, 0.125, 0.25, 1.0, 2.0)]
    first = [flashgen.attention(q, k, v, causal=c, softmax_scale=s, return_lse=True) for c, s in kinds]
    for (causal, scale), (out, lse) in zip(kinds, first, strict=True):
        again = flashgen.attention(q, k, v, causal=causal, softmax_scale=scale, return_lse=True)
        assert not difference(again, (out, lse)), f"causal {causal}, scale {scale}: {difference(again, (out, lse))}"
        verdict = judge(out, lse, q, k, v, causal=causal, softmax_scale=scale)
        assert verdict.ok, f"causal {causal}, scale {scale}: {verdict}"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("mask", MASKS)
def test_a_device_that_is_not_the_current_one(mask: str) -> None:
    causal = mask == "causal"
    here = inputs(plan_for(64, "bf16", mask, 300), 2, (203, 239), (4, 2))
    expected = flashgen.attention(*here, causal=causal, return_lse=True)
    there = [x.to("cuda:1") for x in here]
    torch.cuda.set_device(0)
    for call in (
        lambda: flashgen.attention(*there, causal=causal, return_lse=True),
        flashgen.bind(*there, causal=causal, return_lse=True),
    ):
        for _ in range(2):
            result = call()
            assert torch.cuda.current_device() == 0
            assert {x.device for x in result} == {torch.device("cuda", 1)}
            assert not difference([x.to("cuda:0") for x in result], expected)
    with pytest.raises(flashgen.ArgumentError, match="expected one device"):
        flashgen.attention(here[0], *there[1:])
