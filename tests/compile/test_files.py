"""Atomic writes and locks."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from flashgen.files import locked, write_atomic


def test_failed_write_leaves_the_old_content_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")
    with pytest.raises(TypeError):
        write_atomic(path, "not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_lock_excludes_and_gives_up(tmp_path: Path) -> None:
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(tmp_path / "lock") as got:
            assert got
            held.set()
            release.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(10)
    with locked(tmp_path / "lock", 0.01) as got:
        assert not got
    release.set()
    with locked(tmp_path / "lock", 10) as got:
        assert got
    holder.join()


def test_a_child_forked_under_a_lock_does_not_keep_it(tmp_path: Path) -> None:
    read, write = os.pipe()
    with locked(tmp_path / "lock"):
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)  # lives until the parent is done
            os._exit(0)
    try:
        with locked(tmp_path / "lock", 0.01) as got:
            assert got
    finally:
        os.close(write)
        os.close(read)
        os.waitpid(child, 0)


def test_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path / "lock") as got:
        assert not got
