"""Results in rooms of NaN, so that what is not written shows and what is written outside shows too."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

NAN = float("nan")
GUARD = 128  # rows of NaN before and behind a result, or numbers behind it, that no kernel may touch


def guarded_rows(like: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """(room, result in it), (batch, seqlen, heads, d) of the dtype and device of ``like``."""
    batch, seqlen, heads, head_dim = shape
    room = like.new_full((batch, seqlen + 2 * GUARD, heads, head_dim), NAN)
    return room, room[:, GUARD : GUARD + seqlen]


def rows_kept(room: Tensor) -> bool:
    """Whether everything around the result in a room of guarded_rows is NaN still."""
    return bool(room[:, :GUARD].isnan().all()) and bool(room[:, room.shape[1] - GUARD :].isnan().all())


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equality bit by bit, so that NaN equals itself and 0 is not -0."""
    kind = {2: torch.int16, 4: torch.int32}[a.element_size()]
    return torch.equal(a.view(kind), b.view(kind))
