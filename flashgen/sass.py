"""Counts the machine instructions of a cubin with NVIDIA's disassembler."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from flashgen.errors import ToolchainError

PACKAGE = "nvidia-cuda-nvdisasm"
# "        /*0470*/              @!P0 WGMMA.64x128x16.F32 ... ;" -> WGMMA
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][A-Z0-9_]*)", re.MULTILINE)


def find_disassembler() -> str | None:
    """The path of nvdisasm, from pip's package or a CUDA toolkit, or None."""
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError:
        return None
    return find_nvidia_binary_utility("nvdisasm")


def count_instructions(cubin: bytes) -> dict[str, int]:
    """How often each instruction stands in a cubin, the most frequent first; ToolchainError without nvdisasm."""
    program = find_disassembler()
    if program is None:
        raise ToolchainError(f"nvdisasm not found: instruction counts need it. Install with: pip install {PACKAGE}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([program, "-c", str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolchainError(f"{program} refused the cubin: {done.stderr.strip()}")
    return parse_listing(done.stdout)


def parse_listing(listing: str) -> dict[str, int]:
    """Instructions of a disassembly by name without modifiers, the most frequent first."""
    return dict(Counter(_INSTRUCTION.findall(listing)).most_common())
