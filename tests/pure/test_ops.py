"""The ops under attention: opcheck, torch.compile, layouts, no autograd, and an import that does nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import flashgen
from flashgen.errors import NotAvailableError
from flashgen.outputs import dense

ROOT = Path(__file__).resolve().parents[2]


def tensors(dv: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 5, 4, 16).half(), torch.randn(2, 7, 2, 16).half(), torch.randn(2, 7, 2, dv).half()


@pytest.mark.parametrize("op", ["attention_fwd", "attention_fwd_lse"])
@pytest.mark.parametrize("transposed", [False, True])
def test_opcheck(op: str, transposed: bool) -> None:
    assert flashgen.attention is not None  # registers the ops
    q, k, v = tensors()
    if transposed:
        q = q.transpose(1, 2).contiguous().transpose(1, 2)
    result = torch.library.opcheck(getattr(torch.ops.flashgen, op).default, (q, k, v, True, 0.3))
    assert set(result.values()) == {"SUCCESS"}


def test_it_compiles_in_one_graph_with_dynamic_shapes() -> None:
    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, lse = flashgen.attention(q * 2, k, v, causal=True, return_lse=True)
        return out.float().sum(-1).transpose(1, 2) + lse.clamp(min=-1e3)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True)
    q, k, v = tensors()
    torch.testing.assert_close(compiled(q, k, v), step(q, k, v))
    torch.testing.assert_close(compiled(q[:, :3], k[:, :4], v[:, :4]), step(q[:, :3], k[:, :4], v[:, :4]))


@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_input_that_requires_grad_is_never_detached(which: int) -> None:
    inputs = list(tensors())
    inputs[which].requires_grad_()
    assert flashgen.attention(*inputs).requires_grad
    assert all(x.requires_grad for x in flashgen.attention(*inputs, return_lse=True))
    for call in (
        lambda: torch.ops.flashgen.attention_fwd(*inputs),
        lambda: torch.ops.flashgen.attention_fwd_lse(*inputs),
        lambda: flashgen.bind(*inputs),
    ):
        with pytest.raises(NotAvailableError, match="requires_grad=True, and this has no backward pass: call flashgen"):
            call()
    with torch.no_grad():
        assert not flashgen.attention(*inputs).requires_grad
    with torch.inference_mode():
        assert flashgen.attention(*inputs).shape == (2, 5, 4, 16)


def test_meta_tensors_give_shapes() -> None:
    out, lse = flashgen.attention(*(x.to("meta") for x in tensors(24)), return_lse=True)
    assert (out.shape, out.dtype, lse.shape, lse.dtype) == ((2, 5, 4, 24), torch.half, (2, 4, 5), torch.float32)


def test_out_follows_the_layout_of_a_dense_q_alone() -> None:
    q, k, v = tensors()
    transposed = q.transpose(1, 2).contiguous().transpose(1, 2)
    assert flashgen.attention(transposed, k, v).stride() == transposed.stride()
    assert flashgen.attention(torch.cat((q, q), dim=2)[:, :, :4], k, v).is_contiguous()
    assert flashgen.attention(q[:, :1].expand(2, 5, 4, 16), k, v).is_contiguous()
    assert flashgen.attention(transposed, k, tensors(24)[2]).is_contiguous()


@pytest.mark.parametrize(
    ("shape", "strides", "is_dense"),
    [((2, 3, 4), (12, 4, 1), True), ((2, 3, 4), (4, 8, 1), True), ((2, 3, 4), (24, 8, 1), False),
     ((2, 1, 4), (4, 999, 1), True), ((2, 3, 4), (0, 4, 1), False), ((2, 3, 4), (12, 4, 2), False)],
)  # fmt: skip
def test_dense(shape: tuple[int, ...], strides: tuple[int, ...], is_dense: bool) -> None:
    assert dense(shape, strides) is is_dense


def test_bound_attention_reads_what_the_inputs_hold_and_writes_the_given_out() -> None:
    q, k, v = tensors()
    out = torch.full_like(q, float("nan"))
    bound = flashgen.bind(q, k, v, causal=True, out=out, return_lse=True)
    given, lse = bound()
    assert given is out
    assert lse.shape == (2, 4, 5)
    assert torch.equal(out, flashgen.attention(q, k, v, causal=True))
    v.mul_(2)
    assert bound()[0] is out
    assert torch.equal(out, flashgen.attention(q, k, v, causal=True))


@pytest.mark.parametrize(
    ("out", "said"),
    [
        (torch.zeros(2, 5, 4, 8).half(), "out: got shape"),
        (torch.zeros(2, 5, 4, 16), "out: got dtype torch.float32"),
        (torch.zeros(2, 5, 4, 16, device="meta").half(), "out: got device meta"),
        (torch.zeros(2, 5, 4, 17).half()[..., :16], "out: got strides"),
        (torch.zeros(1, 5, 4, 16).half().expand(2, 5, 4, 16), "not 0"),
        (torch.zeros(640).half().as_strided((2, 5, 4, 16), (320, 16, 16, 1)), "elements overlap; expected strides"),
        (torch.zeros(641).half()[1:].view(2, 5, 4, 16), "address that is a multiple of 16"),
    ],
)
def test_an_out_that_cannot_be_written_is_refused(out: Tensor, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        flashgen.bind(*tensors(), out=out)


def test_importing_does_nothing(tmp_path: Path) -> None:
    code = (
        "import os, sys; before = dict(os.environ); import flashgen; "
        "loaded = {name.split('.')[0] for name in sys.modules}; "
        "assert not loaded & {'torch', 'cuda', 'numpy', 'jinja2', 'pydantic'}, loaded; "
        "assert dict(os.environ) == before; assert 'attention' in dir(flashgen); print(flashgen.__version__)"
    )
    environment = {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "PATH": "/usr/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == flashgen.__version__
    assert list(tmp_path.iterdir()) == []


def test_every_public_name_is_there_and_an_unknown_one_is_not() -> None:
    for name in flashgen.__all__:
        assert getattr(flashgen, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'atention'"):
        flashgen.atention  # noqa: B018
