"""The same source compiled from headers in two folders gives the same bytes, and no folder's name is in them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from flashgen.compiler import compile_source
from flashgen.generator import KernelSpec, plan, render
from flashgen.generator.paths import INCLUDE
from flashgen.toolchain import Toolchain


def test_same_bytes_from_two_folders(tmp_path: Path, toolchain: Toolchain) -> None:
    chosen = plan(KernelSpec.forward(head_dim=64))
    cubins = []
    for name in ("here", "somewhere/else"):
        copies = [shutil.copytree(INCLUDE, tmp_path / name / "own")]
        for index, folder in enumerate(folder for folder in toolchain.include_dirs if folder != INCLUDE):
            link = tmp_path / name / f"other{index}"
            link.symlink_to(folder, target_is_directory=True)
            copies.append(link)
        moved = replace(toolchain, include_dirs=tuple(copies))
        cubins.append(compile_source(render(chosen), chosen.name, chosen.spec.arch, moved).cubin)
    assert cubins[0] == cubins[1]
    for folder in (tmp_path, *toolchain.include_dirs):
        assert str(folder).encode() not in cubins[0]
