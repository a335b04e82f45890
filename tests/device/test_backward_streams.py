"""Backwards in a fixed order on two streams at once: none waits for blocks of keys that no multiprocessor has."""

from __future__ import annotations

import pytest
import torch

import flashgen

pytestmark = pytest.mark.device


@pytest.mark.parametrize(
    ("head_dim", "causal"),
    [(64, False), (64, True), (96, False), (128, False), (128, True), (160, True), (192, True), (224, True)],
)
def test_two_at_once_end_and_give_the_same_bits(head_dim: int, causal: bool) -> None:
    torch.manual_seed(0)
    shape = (2, 1600, 16, head_dim)
    streams = [torch.cuda.Stream() for _ in range(2)]
    given = []
    for _ in streams:
        q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3))
        given.append((flashgen.attention(q, k, v, causal=causal, deterministic=True), (q, k, v), torch.randn_like(q)))
    expected = [torch.autograd.grad(out, inputs, dout, retain_graph=True) for out, inputs, dout in given]
    torch.cuda.synchronize()
    found = []
    for _ in range(20):
        for stream, (out, inputs, dout) in zip(streams, given, strict=True):
            with torch.cuda.stream(stream):
                found.append(torch.autograd.grad(out, inputs, dout, retain_graph=True))
    torch.cuda.synchronize()
    for i, gradients in enumerate(found):
        assert all(torch.equal(got, want) for got, want in zip(gradients, expected[i % 2], strict=True))
