"""The cache: one compile per key, and nothing that happens to its folder makes a call fail."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from flashgen.cache import CubinCache
from flashgen.compiler import Compiled, compile_source
from flashgen.errors import CompileError
from flashgen.toolchain import Toolchain

Start = Callable[..., subprocess.Popen[str]]

# A child takes the small source through the cache and prints whether it was there, and how many compilations it did.
CHILD = """
import os, resource, signal, time
import cuda.core.utils
from pathlib import Path
from flashgen.cache import CubinCache
from flashgen.compiler import compile_source
from flashgen.toolchain import find_toolchain
count = 0
def compiler(*arguments):
    global count
    count += 1
    time.sleep({slow})
    return compile_source(*arguments)
source = '''{source}'''
toolchain = find_toolchain()
compile_source(source, "small", "sm90a", toolchain)  # loads every library before the limits below
cache = CubinCache(Path({folder!r}), compiler)
{before}
found = cache.get_or_compile(source, "small", "sm90a", toolchain)
again = cache.get_or_compile(source, "small", "sm90a", toolchain)
assert again.cubin == found.cubin and again.cached
print(found.cached, count, found.sha256)
"""


class Counting:
    """A compiler that counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, source: str, name: str, arch: str, toolchain: Toolchain) -> Compiled:
        self.count += 1
        return compile_source(source, name, arch, toolchain)


def child(small: str, folder: Path, before: str = "", slow: float = 0) -> str:
    return CHILD.format(source=small, folder=str(folder), before=before, slow=slow)


def test_second_call_is_cached_with_its_resources(tmp_path: Path, small: str, toolchain: Toolchain) -> None:
    compiler = Counting()
    first = CubinCache(tmp_path, compiler).get_or_compile(small, "small", "sm90a", toolchain)
    second = CubinCache(tmp_path, compiler).get_or_compile(small, "small", "sm90a", toolchain)
    assert (first.cached, second.cached, compiler.count) == (False, True, 1)
    assert (first.cubin, first.sha256, first.resources) == (second.cubin, second.sha256, second.resources)
    assert first.cubin[:4] == b"\x7fELF"
    assert first.resources.registers > 0
    assert [entry["name"] for entry in CubinCache(tmp_path).entries()] == ["small"]


def test_key_depends_on_source_arch_and_headers(tmp_path: Path, small: str, toolchain: Toolchain) -> None:
    cache = CubinCache(tmp_path)
    other = Toolchain(**(vars(toolchain) | {"header_digest": "1" * 64}))
    moved = Toolchain(**(vars(toolchain) | {"include_dirs": (tmp_path,)}))
    key = cache.key(small, "small", "sm90a", toolchain)
    assert (
        len({key, cache.key(small + " ", "small", "sm90a", toolchain), cache.key(small, "small", "sm90", toolchain)})
        == 3
    )
    assert cache.key(small, "small", "sm90a", other) != key
    assert cache.key(small, "small", "sm90a", moved) == key, "no path may be part of a key"


def test_six_processes_compile_once(tmp_path: Path, small: str, start: Start) -> None:
    children = [start(child(small, tmp_path / "cache", slow=1)) for _ in range(6)]
    answers = [process.communicate(timeout=120) for process in children]
    cached, counts, digests = zip(*(out.split() for out, _ in answers), strict=True)
    assert (sum(map(int, counts)), cached.count("False"), len(set(digests))) == (1, 1, 1)


@pytest.mark.parametrize("moment", ["os.fsync = lambda fd: kill()", "cache._facts = lambda key: kill() or Path('x')"])
def test_killed_mid_write(tmp_path: Path, small: str, toolchain: Toolchain, start: Start, moment: str) -> None:
    """Killed while the cubin is written, and between the cubin and its facts: the next call compiles and heals."""
    # The first look-up must miss as usual, so the trap is laid when the compiler is called.
    trap = f"""
kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
def compiler_then_trap(*arguments):
    done = compile_source(*arguments)
    {moment}
    return done
cache._compiler = compiler_then_trap
"""
    process = start(child(small, tmp_path, trap))
    assert (process.communicate(timeout=60), process.returncode)[1] == -signal.SIGKILL
    compiler = Counting()
    healed = CubinCache(tmp_path, compiler).get_or_compile(small, "small", "sm90a", toolchain)
    assert (healed.cached, compiler.count) == (False, 1)
    assert CubinCache(tmp_path, compiler).get_or_compile(small, "small", "sm90a", toolchain).cached


@pytest.mark.parametrize("content", [b"", b"garbage", None])
@pytest.mark.parametrize("part", ["entries", "facts"])
def test_corrupt_entry_is_compiled_again(
    tmp_path: Path, small: str, toolchain: Toolchain, part: str, content: bytes | None
) -> None:
    good = CubinCache(tmp_path).get_or_compile(small, "small", "sm90a", toolchain)
    (path,) = (p for p in (tmp_path / part).rglob("*") if p.is_file())
    if content is None:  # one bit of the machine code, or of the facts' sha256
        path.write_bytes(path.read_bytes().replace(b"\x7fELF", b"\x7fELG").replace(good.sha256.encode(), b"0" * 64))
    else:
        path.write_bytes(content)
    compiler = Counting()
    healed = CubinCache(tmp_path, compiler).get_or_compile(small, "small", "sm90a", toolchain)
    assert (healed.cached, compiler.count, healed.sha256) == (False, 1, good.sha256)
    assert CubinCache(tmp_path, compiler).get_or_compile(small, "small", "sm90a", toolchain).cached


def test_full_disk(tmp_path: Path, small: str, start: Start) -> None:
    """Every write fails (a limit on file sizes stands in for the disk): compiled, kept in the process, said once."""
    full = "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))"
    process = start(child(small, tmp_path, full))
    out, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    assert out.split()[:2] == ["False", "1"]
    assert error.count("cannot keep compiled kernels") == 1
    assert "FLASHGEN_CACHE_DIR" in error


# Root may write anywhere: it gives up all its capabilities (for others, who have none, this changes nothing).
ORDINARY = "import ctypes; ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())"


def test_read_only_cache_is_read_and_not_needed(tmp_path: Path, small: str, toolchain: Toolchain, start: Start) -> None:
    folder = tmp_path / "cache"
    CubinCache(folder).get_or_compile(small, "small", "sm90a", toolchain)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    hit, _ = start(child(small, folder, ORDINARY)).communicate(timeout=60)
    miss, warning = start(child(small.replace("small", "other"), folder, ORDINARY)).communicate(timeout=60)
    folder.chmod(0o755)
    assert (hit.split()[:2], miss.split()[:2]) == (["True", "0"], ["False", "1"]), warning


def test_folder_that_cannot_be(tmp_path: Path, small: str, toolchain: Toolchain) -> None:
    (tmp_path / "file").write_text("not a folder")
    compiler = Counting()
    cache = CubinCache(tmp_path / "file" / "cache", compiler)
    assert not cache.get_or_compile(small, "small", "sm90a", toolchain).cached
    assert cache.get_or_compile(small, "small", "sm90a", toolchain).cached
    assert compiler.count == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user who has no home")
def test_no_home_folder(start: Start) -> None:
    program = """
import os, pwd
from pathlib import Path
from flashgen import env
from flashgen.cache import CubinCache, cubin_cache
del os.environ["HOME"]
os.setuid(54321)
print(env.cache_dir(), cubin_cache().folder, cubin_cache().get("0"), cubin_cache().entries())
"""
    out, error = start(program, XDG_CACHE_HOME="").communicate(timeout=60)
    assert out.strip() == "None None None []", error


def test_cache_without_folder_lives_as_long_as_the_process(small: str, toolchain: Toolchain) -> None:
    compiler = Counting()
    cache = CubinCache(None, compiler)
    assert not cache.get_or_compile(small, "small", "sm90a", toolchain).cached
    assert cache.get_or_compile(small, "small", "sm90a", toolchain).cached
    assert compiler.count == 1


def test_failure_is_remembered(cache_dir: Path, toolchain: Toolchain) -> None:
    compiler = Counting()
    cache = CubinCache(cache_dir, compiler)
    with pytest.raises(CompileError) as first:
        cache.get_or_compile("#error no such tile\n", "bad", "sm90a", toolchain)
    with pytest.raises(CompileError) as second:
        cache.get_or_compile("#error no such tile\n", "bad", "sm90a", toolchain)
    assert (second.value is first.value, compiler.count) == (True, 1)
    assert "no such tile" in first.value.log
    assert first.value.source_path is not None
    assert first.value.source_path.read_text() == "#error no such tile\n"
    assert str(first.value.source_path) in str(first.value)
    assert first.value.source_path.is_relative_to(cache_dir)
