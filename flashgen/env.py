"""Every environment variable flashgen reads, each on use and never at import."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Variable:
    """One environment variable."""

    name: str
    default: str
    meaning: str

    def get(self) -> str | None:
        """The value now, or None when it is unset or empty."""
        return os.environ.get(self.name) or None


CACHE_DIR = Variable("FLASHGEN_CACHE_DIR", "~/.cache/flashgen", "folder of the kernels compiled on first use")
NO_COMPILE = Variable("FLASHGEN_NO_COMPILE", "0", "1: a kernel that is neither loaded nor cached is an error")
CUTLASS_INCLUDE = Variable("FLASHGEN_CUTLASS_INCLUDE", "from nvidia-cutlass", "include folder of another CUTLASS")
DUMP = Variable("FLASHGEN_DUMP", "off", "folder to write the source, cubin and report of each kernel built to")
LOG = Variable("FLASHGEN_LOG", "warning", "what is said on stderr: debug, info, warning, error")

VARIABLES = (CACHE_DIR, NO_COMPILE, CUTLASS_INCLUDE, DUMP, LOG)

_OFF = ("0", "false", "no", "off")


def cache_dir() -> Path | None:
    """Where compiled kernels are kept, or None when there is no home folder to keep them in."""
    if value := CACHE_DIR.get():
        return Path(os.path.expanduser(value)).absolute()
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # no HOME, and the user has no entry in the password file: common in containers
        return None
    return Path(base).absolute() / "flashgen"


def no_compile() -> bool:
    """Whether compiling is forbidden."""
    return (NO_COMPILE.get() or "0").lower() not in _OFF


def dump_dir() -> Path | None:
    """Where to write each kernel that is built, or None."""
    value = DUMP.get()
    return None if value is None or value.lower() in _OFF else Path(os.path.expanduser(value)).absolute()


def cutlass_include() -> Path | None:
    """Include folder of a CUTLASS of the user's own, or None."""
    value = CUTLASS_INCLUDE.get()
    return Path(os.path.expanduser(value)).absolute() if value else None


def logger() -> logging.Logger:
    """The ``flashgen`` logger; FLASHGEN_LOG gives it a handler on stderr and a level."""
    log = logging.getLogger("flashgen")
    wanted = LOG.get()
    if wanted and not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("flashgen: %(message)s"))
        log.addHandler(handler)
        level = logging.getLevelNamesMapping().get(wanted.upper())
        log.setLevel(level if level is not None else logging.INFO)
        if level is None:
            log.warning("FLASHGEN_LOG: got %r; legal: debug, info, warning, error; taking info", wanted)
    return log
