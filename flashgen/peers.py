"""Attention by others, to be timed beside flashgen: torch's own, and that of packages which happen to be installed."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashgen.peer_adapters import Adapter, Forward, flash_attn, flashinfer, flex, sdpa

if TYPE_CHECKING:
    from torch import Tensor

Run = Callable[[], "Tensor | tuple[Tensor, ...]"]  # to be timed: gives out, or dq, dk and dv


class LeftOutError(RuntimeError):
    """A peer cannot be timed on a shape; the message is why."""


@dataclass(frozen=True)
class Peer:
    """``title``: as a legend has it. ``module``: what must import. ``by_default``: timed unless others are named."""

    title: str
    module: str
    adapter: Adapter
    by_default: bool = True


def usable(names: Iterable[str] | None = None) -> tuple[tuple[str, ...], dict[str, str]]:
    """The peers that import here, and why the others do not. ``names``: these; None: all that are by default.

    A peer that nobody named and that is not installed is not mentioned.
    """
    wanted = [name for name, peer in PEERS.items() if peer.by_default] if names is None else list(names)
    found, notes = [], {}
    for name in wanted:
        module = PEERS[name].module
        try:
            importlib.import_module(module)
            found.append(name)
        except (ImportError, RuntimeError, OSError) as error:
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            if missing is None or not f"{module}.".startswith(f"{missing}."):
                notes[name] = _first_line(error)
            elif names is not None:
                notes[name] = f"{module} is not installed"
    return tuple(found), notes


def run_of(name: str, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, dout: Tensor | None = None) -> Run:
    """The peer's attention over these tensors, after a first run, which compiles; LeftOutError where it cannot.

    With ``dout``, the gradient of out, its backward instead, and that alone.
    """
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns why a backend refuses, and then raises
            run = _forward(name, q, k, v, causal) if dout is None else _backward(name, (q, k, v), causal, dout)
            run()
            if q.is_cuda:
                torch.cuda.synchronize()
    except LeftOutError:
        raise
    except Exception as error:  # each of them refuses shapes in its own way: assertions, errors of compilers
        raise LeftOutError(_first_line(error)) from error
    return run


def gradients_of(out: Tensor, leaves: Sequence[Tensor], dout: Tensor) -> Run:
    """The backward of what gave ``out``, as autograd runs it, as often as one likes."""
    import torch

    return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)


def _forward(name: str, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Forward:
    run = PEERS[name].adapter(q, k, v, causal)
    if run is None:
        raise LeftOutError("it does not take the shape")
    return run


def _backward(name: str, tensors: Sequence[Tensor], causal: bool, dout: Tensor) -> Run:
    q, k, v = (x.detach().requires_grad_() for x in tensors)
    out = _forward(name, q, k, v, causal)()
    if not out.requires_grad:
        raise LeftOutError("it has no backward")
    return gradients_of(out, (q, k, v), dout)


def left_out_notes(absent: Mapping[str, str], refused: Mapping[str, Sequence[str]], shapes: int) -> list[str]:
    """A line for each peer that is absent, and for each that refused some of that many shapes, with its reasons."""
    return [f"{name}: left out. {reason}" for name, reason in absent.items()] + [
        f"{name}: left out of {len(reasons)} of {shapes} shapes. {'; '.join(dict.fromkeys(reasons))}"
        for name, reasons in refused.items()
    ]


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or 'no reason given').splitlines()[0]}"


PEERS: dict[str, Peer] = {
    "cudnn": Peer("cuDNN (torch SDPA)", "torch", sdpa("cudnn")),
    "flash": Peer("FlashAttention-2 (torch SDPA)", "torch", sdpa("flash")),
    "efficient": Peer("efficient (torch SDPA)", "torch", sdpa("efficient")),
    "flex": Peer("flex_attention (torch)", "torch.nn.attention.flex_attention", flex, by_default=False),
    "fa2": Peer("FlashAttention-2", "flash_attn", flash_attn("flash_attn", one_head_dim=True)),
    "fa3": Peer("FlashAttention-3", "flash_attn_interface", flash_attn("flash_attn_interface")),
    "fa4": Peer("FlashAttention-4", "flash_attn.cute", flash_attn("flash_attn.cute")),
    "flashinfer": Peer("FlashInfer", "flashinfer", flashinfer),
}
