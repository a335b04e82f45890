"""``Kernel``: one forward kernel as its callers hold it, and what it has in common with a ``BackwardKernel``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from flashgen.errors import ArgumentError
from flashgen.generator import KernelPlan, KernelSpec
from flashgen.loaded import LoadedKernel, Plan

if TYPE_CHECKING:
    from torch import Tensor

    from flashgen.calls import Launcher


@dataclass(frozen=True)
class Code:
    """Machine code and the versions of what made it."""

    cubin: bytes
    sha256: str
    toolchain: Mapping[str, str]


class BaseKernel(Generic[Plan]):
    """A kernel's plan and its machine code, which is compiled or read when it is first asked for: once."""

    def __init__(self, plan: Plan, build: Callable[[], Code]) -> None:
        self.plan: Plan = plan
        self._build = build
        self._code: Code | None = None
        self._loaded: LoadedKernel[Plan] | None = None
        self._lock = threading.Lock()

    @property
    def spec(self) -> KernelSpec:
        """What it computes."""
        return self.plan.spec

    @property
    def name(self) -> str:
        """The canonical name."""
        return self.plan.name

    @property
    def code(self) -> Code:
        """Its machine code, compiled now if nobody has; raises what build_kernel raises."""
        if self._code is None:
            with self._lock:
                if self._code is None:
                    self._code = self._build()
        return self._code

    @property
    def loaded(self) -> LoadedKernel[Plan]:
        """It as launches need it."""
        code = self.code
        with self._lock:
            if self._loaded is None:
                self._loaded = LoadedKernel(self.plan, code.cubin)
        return self._loaded

    def _serve(self, spec: KernelSpec, _keys: int) -> LoadedKernel[Plan]:
        self._check(spec)
        return self.loaded

    def _check(self, spec: KernelSpec) -> None:
        if spec != self.spec.any_length:
            raise ArgumentError(f"kernel {self.name}: got tensors of {spec.name}; expected tensors of this kernel")

    def __repr__(self) -> str:
        return f"<flashgen.{type(self).__name__} {self.name} {self.plan.label}>"


class Kernel(BaseKernel[KernelPlan]):
    """One kernel to call. Its machine code is compiled or read when a CUDA tensor first needs it; CPU tensors do not.

    Safe to use from several threads: it is built once.
    """

    _launcher: Launcher | None = None

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float | None = None, return_lse: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attention as ``flashgen.attention`` does it, by this kernel; ArgumentError for tensors of another spec."""
        from flashgen.outputs import new_lse, new_out
        from flashgen.select import check_tensors

        check_tensors(q, k, v)
        out, lse = new_out(q, v.shape[3]), new_lse(q) if return_lse else None
        self.into(q, k, v, out, lse, softmax_scale=softmax_scale)
        return out if lse is None else (out, lse)

    def into(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None = None, *,
        softmax_scale: float | None = None,
    ) -> None:  # fmt: skip
        """The same into tensors of the caller's: ``out`` as ``flashgen.bind`` takes it, ``lse`` contiguous float32.

        Neither may share memory with q, k or v, which are read until the end.
        """
        from flashgen.calls import Launcher
        from flashgen.cpu import attend
        from flashgen.select import check_no_grad, check_out, check_scale, check_tensors, select

        check_tensors(q, k, v)
        check_no_grad(q, k, v)
        check_out(out, lse, q, k, v)
        causal = self.spec.mask == "causal"
        if q.is_cuda:
            if self._launcher is None:
                self._launcher = Launcher(self._serve)
            self._launcher.into(q, k, v, out, lse, causal, softmax_scale)
            return
        self._check(select(q, k, v, causal=causal, arch=self.spec.arch))
        results = attend(self.plan, q, k, v, check_scale(softmax_scale, q.shape[3]))
        out.copy_(results[0])
        if lse is not None:
            lse.copy_(results[1])
