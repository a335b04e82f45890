"""``bind``: everything about a call decided once, so that running it again costs a launch and no more."""

from __future__ import annotations

import torch
from torch import Tensor

from flashgen import calls
from flashgen.calls import Launcher, addresses_of
from flashgen.counters import PER_THREAD_STREAM
from flashgen.cpu import attend
from flashgen.launch import Call, Launch
from flashgen.loading import kernel_for
from flashgen.outputs import new_lse, new_out
from flashgen.select import check_no_grad, check_out, check_scale, select

_launcher = Launcher(lambda spec, keys: kernel_for(spec, keys).loaded)


class BoundAttention:
    """Attention over tensors that are fixed: calling it reads what q, k and v hold now and overwrites ``out``.

    Every call gives the same ``out`` (and ``lse``): copy it to keep it. It runs on the current stream and may be
    captured in a CUDA graph. The tensors are kept alive. Several threads may call it if they do not mind that all of
    them write one ``out``.
    """

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None, causal: bool, softmax_scale: float
    ) -> None:
        self.q, self.k, self.v, self.out, self.lse = q, k, v, out, lse
        self.causal, self.softmax_scale = causal, softmax_scale
        self._result: Tensor | tuple[Tensor, Tensor] = out if lse is None else (out, lse)
        self._device = q.get_device()
        self._addresses = addresses_of(q, k, v, out, lse)
        self._launches: dict[int, Launch] = {}  # by stream
        self._call: Call | None = None
        if q.is_cuda:
            with torch.cuda.device(self._device):
                call = _launcher.call_for(q, k, v, out, causal, softmax_scale)
            self._call = call if isinstance(call, Call) else None

    def __call__(self) -> Tensor | tuple[Tensor, Tensor]:
        """Launch, and give out, or (out, lse) if it was bound with return_lse."""
        call = self._call
        if call is None or calls._current_device() != self._device:
            return self._slowly()
        stream = calls._raw_stream(self._device)
        launch = self._launches.get(stream)
        if launch is None or (call.counts_tiles and calls._capturing()):
            launch = _launcher.launch_for(call, self._addresses)
            if launch is None:
                return self._slowly()
            if not calls._capturing() and stream != PER_THREAD_STREAM:
                self._launches[stream] = launch
        status = launch.run()
        if status:
            call.failed(status, launch)
        return self._result

    def _slowly(self) -> Tensor | tuple[Tensor, Tensor]:
        """CPU tensors, another current device, tensors that are copied first, and nothing to compute."""
        if self.q.is_cuda:
            _launcher.into(self.q, self.k, self.v, self.out, self.lse, self.causal, self.softmax_scale)
        else:
            kernel = kernel_for(select(self.q, self.k, self.v, causal=self.causal), self.k.shape[1])
            out, lse = attend(kernel.plan, self.q, self.k, self.v, self.softmax_scale)
            self.out.copy_(out)
            if self.lse is not None:
                self.lse.copy_(lse)
        return self._result


def bind(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    out: Tensor | None = None,
    return_lse: bool = False,
) -> BoundAttention:
    """Check, choose and compile now; the BoundAttention then only launches. Arguments as for ``flashgen.attention``.

    ``out`` is where results go, (batch, seqlen_q, heads_q, d_v) of q's dtype and device; a new tensor unless given. It
    must not overlap q, k or v, which are read until the end: interleaved views of one storage are refused too.
    """
    check_no_grad(q, k, v)
    select(q, k, v, causal=causal)
    scale = check_scale(softmax_scale, q.shape[3])
    if out is None:
        out = new_out(q, v.shape[3])
    lse = new_lse(q) if return_lse else None
    check_out(out, lse, q, k, v)
    return BoundAttention(q, k, v, out, lse, causal, scale)
