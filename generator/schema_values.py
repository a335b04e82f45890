"""The YAML values that are mappings themselves, such as ``tile: {m, n}``."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, StrictInt


class Strict(BaseModel):
    """A mapping of known keys."""

    # Strict: no number from a string, no integer from a boolean. Enums alone are read from their words.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class HeadDim(Strict):
    """Different head dims of q and k, and of v and out."""

    qk: StrictInt = Field(description="Head dim of q and k: a multiple of 8 from 8 to 256.")
    v: StrictInt = Field(description="Head dim of v and out: a multiple of 8 from 8 to 256.")


class Tile(Strict):
    """Rows and columns of the score matrix that a thread block works on at a time."""

    m: StrictInt = Field(description="Query rows: 64 for each consumer warpgroup, to 192; backward: 64, 80 or 128.")
    n: StrictInt = Field(description="Keys of a block: 16, 32, ... 256; in the backward 128, with split_roles 64.")


class Registers(Strict):
    """Registers a thread for the two kinds of warpgroup (setmaxnreg)."""

    producer: StrictInt = Field(description="Registers of a producer thread: a multiple of 8 from 24 to 256.")
    consumer: StrictInt = Field(description="Registers of a consumer thread: a multiple of 8 from 24 to 256.")


class Swizzle(Strict):
    """Bytes of a row that are permuted together in shared memory, and so the width of a copy."""

    qk: StrictInt = Field(description="Bytes of a row of q and k: 32, 64 or 128.")
    v: StrictInt = Field(description="Bytes of a row of v and out: 32, 64 or 128.")


class Keys(Strict):
    """For how many keys a kernel is meant. It is right for any number: the range decides which kernel a call takes."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, validate_by_name=False)

    first: StrictInt = Field(default=0, alias="from", description="The fewest keys it is meant for.")
    below: StrictInt | None = Field(default=None, description="One more than the most keys; left out: no end.")
