"""Files that several processes write: whole or not at all, one writer at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

POLL = 0.05  # seconds between two tries for a lock


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, finds the old content or the new and nothing between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def locked(path: Path, timeout: float | None = None) -> Iterator[bool]:
    """Hold the lock that ``path`` stands for, over processes and threads; the system drops a killed holder's lock.

    Yields whether it was got: after ``timeout`` seconds (None: never), or on a file system that knows no locks, the
    body runs without it. Raises OSError when the file cannot be made.
    """
    end = None if timeout is None else time.monotonic() + timeout
    with open(path, "wb") as file:
        while True:
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                got = True
                break
            except BlockingIOError:
                got = False
                if end is not None and time.monotonic() > end:
                    break
                time.sleep(POLL)
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                    raise
                got = False
                break
        try:
            yield got
        finally:
            if got:  # closing is not enough: a child that was forked meanwhile holds the file, and so the lock, too
                fcntl.flock(file.fileno(), fcntl.LOCK_UN)
