"""Memos that are bounded: the oldest entry goes first."""

from __future__ import annotations

from typing import Any


def make_room(memo: dict[Any, Any], limit: int) -> None:
    """Let go of the oldest entries until one more fits."""
    while len(memo) >= limit:
        del memo[next(iter(memo))]
