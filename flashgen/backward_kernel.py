"""``BackwardKernel``: one backward as its callers hold it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashgen.callable_kernel import BaseKernel
from flashgen.generator import BackwardPlan

if TYPE_CHECKING:
    from torch import Tensor

    from flashgen.backward_calls import BackwardLauncher


class BackwardKernel(BaseKernel[BackwardPlan]):
    """One backward to call: three kernels in one cubin. Safe to use from several threads."""

    _launcher: BackwardLauncher | None = None

    def __call__(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dlse: Tensor | None = None, *,
        softmax_scale: float | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """(dq, dk, dv), from what a forward took and gave and the gradients of that."""
        from flashgen.outputs import new_gradients
        from flashgen.select import check_tensors

        check_tensors(q, k, v)
        gradients = new_gradients(q, k, v)
        self.into(dout, q, k, v, out, lse, dlse, *gradients, softmax_scale=softmax_scale)
        return gradients

    def into(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dlse: Tensor | None,
        dq: Tensor, dk: Tensor, dv: Tensor, *, softmax_scale: float | None = None,
    ) -> None:  # fmt: skip
        """The same into tensors of the caller's, in rows of 16 bytes, that share memory with no operand."""
        from flashgen.backward_calls import BackwardLauncher, Operands
        from flashgen.backward_select import check_backward, check_gradients, select_backward
        from flashgen.cpu_backward import attend_backward
        from flashgen.select import check_no_grad, check_scale

        given = Operands(dout, q, k, v, out, lse, dlse)
        check_backward(*given)
        check_no_grad(*(x for x in (*given, dq, dk, dv) if x is not None))
        check_gradients(dq, dk, dv, *given)
        causal, deterministic = self.spec.mask == "causal", self.spec.deterministic
        if q.is_cuda:
            if self._launcher is None:
                self._launcher = BackwardLauncher(self._serve)
            self._launcher.into(given, (dq, dk, dv), softmax_scale, causal, deterministic)
            return
        self._check(select_backward(q, k, v, causal=causal, deterministic=deterministic, arch=self.spec.arch))
        results = attend_backward(self.plan, *given, check_scale(softmax_scale, q.shape[3]))
        for to, result in zip((dq, dk, dv), results, strict=True):
            to.copy_(result)
