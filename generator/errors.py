"""The generator's errors. Every message says what was got, what is legal, and the closest legal choice."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class FlashgenError(Exception):
    """Base of every error that flashgen raises on purpose.

    ``key`` is the YAML key that is at fault, where there is one, so that a reader of YAML can add the line.
    """

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.key = key

    def at(self, where: str) -> FlashgenError:
        """The same error with a position (``file:line``) in front of its message."""
        return type(self)(f"{where}: {self.message}", key=self.key)

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword arguments do not survive the default pickling, and builds send errors between processes.
        return _rebuild, (type(self), self.message, self.key)


class ConfigError(FlashgenError, ValueError):
    """Words that are not legal: an unknown key or value, a wrong type, unreadable YAML."""


class PlanError(FlashgenError, ValueError):
    """Legal words that cannot be built together: it does not fit, or the schedule does not take it."""


class NotAvailableError(FlashgenError, NotImplementedError):
    """The schema knows it, and no kernel does it yet."""


def _rebuild(kind: type[FlashgenError], message: str, key: str | None) -> FlashgenError:
    return kind(message, key=key)


def closest(got: object, legal: Iterable[str]) -> str:
    """``"; closest match: x"`` when one of the legal words resembles what was got, else an empty string."""
    words = {word.lower(): word for word in legal}
    found = difflib.get_close_matches(str(got)[:100].lower(), list(words), n=1, cutoff=0.5)
    return f"; closest match: {words[found[0]]}" if found else ""


def shown(value: object, limit: int = 60) -> str:
    """A value as it may stand in a message: one line, and short however long it is."""
    text = ascii(value)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"
