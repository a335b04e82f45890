"""What ships: the tuned choices of a spec, read from the one config file that is named after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from . import paths
from .config import load_config
from .errors import PlanError
from .request import AnyRequest, BackwardRequest, Origin, PlanRequest
from .spec import KernelSpec

Request = TypeVar("Request", PlanRequest, BackwardRequest)
Made = TypeVar("Made")


def shipped_path(spec: KernelSpec) -> Path:
    """Where the shipped config of a spec lies, whether or not it exists: ``configs/sm90/attention_fwd_d128.yaml``."""
    return paths.CONFIGS / spec.arch.removesuffix("a") / f"{spec.op}_{spec.head_dim_name}.yaml"


def shipped_request(spec: KernelSpec) -> AnyRequest | None:
    """The shipped choices of a spec, or None when no config ships for it.

    A problem that ships with several ranges of keys has, without one, those of the longest sequences.
    """
    requests = _shipped(spec)
    if spec in requests:
        return requests[spec]
    unbounded = [other for other in requests if other.any_length == spec and other.keys_below is None]
    return requests[unbounded[0]] if unbounded else None


def shipped_spec(spec: KernelSpec, keys: int) -> KernelSpec:
    """The shipped spec of that problem which is meant for so many keys; the spec itself when none is."""
    fitting = (other for other in _shipped(spec) if other.any_length == spec.any_length and other.meant_for(keys))
    return next(fitting, spec)


def solve_with_shipped(
    spec: KernelSpec, request: Request, solve: Callable[[KernelSpec, Request, Origin], Made]
) -> Made:
    """What ``solve`` makes of the explicit choices first, then the shipped config's, then its own."""
    if not request.names_tile:
        shipped = shipped_request(spec)
        if isinstance(shipped, type(request)):
            try:
                return solve(spec, replace(shipped, **request.explicit), "config" if request.explicit else "shipped")
            except PlanError:
                if not request.explicit:
                    raise
                # The shipped tile does not go with what was asked for; another tile may.
    return solve(spec, request, "config" if request.explicit else "model")


def _shipped(spec: KernelSpec) -> dict[KernelSpec, AnyRequest]:
    path = shipped_path(spec)
    try:
        stamp = path.stat().st_mtime_ns
    except FileNotFoundError:
        return {}
    return _requests(path, stamp)


@lru_cache(maxsize=64)
def _requests(path: Path, _stamp: int) -> dict[KernelSpec, AnyRequest]:
    return {entry.spec: entry.request for entry in load_config(path)}
