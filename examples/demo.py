"""``make demo``: from a head dim that no library ships to attention in PyTorch, step by step.

Writes a config for head dim 72, compiles its kernels (no GPU needed), then runs attention with them and compares with
torch. Without a Hopper GPU the same tiles run on the CPU.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import flashgen

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "demo"
HEAD_DIM = 72


def flashgen_command(*arguments: str) -> None:
    """Show and run a ``flashgen`` command; the demo ends where it fails."""
    print(f"\n$ flashgen {shlex.join(arguments)}", flush=True)
    done = subprocess.run([sys.executable, "-m", "flashgen", *arguments], cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def torch_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention by torch, in flashgen's (batch, seqlen, heads, head dim)."""
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(*heads_first, is_causal=True, enable_gqa=True).transpose(1, 2)


def main() -> None:
    """Config, build, call, compare."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    config = FOLDER / "attention_d72.yaml"
    config.unlink(missing_ok=True)
    name = str(config.relative_to(ROOT))
    out = str(FOLDER.relative_to(ROOT))
    flashgen_command("new", "--head-dim", str(HEAD_DIM), "--arch", "sm90a", "--dtype", "bf16", "--output", name)
    flashgen_command("explain", name, "--only", "*_causal")
    flashgen_command("build", name, "--output", out)

    hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    device = "cuda" if hopper else "cpu"
    seqlen = 4096 if hopper else 512
    flashgen.load(FOLDER)
    print(f"\n>>> flashgen.load({out!r})")
    torch.manual_seed(0)
    q = torch.randn(2, seqlen, 8, HEAD_DIM, device=device, dtype=torch.bfloat16)
    k, v = (torch.randn(2, seqlen, 2, HEAD_DIM, device=device, dtype=torch.bfloat16) for _ in range(2))
    result = flashgen.attention(q, k, v, causal=True)
    assert isinstance(result, Tensor)
    print(f">>> flashgen.attention(q, k, v, causal=True)  # q {tuple(q.shape)}, k, v {tuple(k.shape)}, bf16, {device}")

    exact = torch_attention(q.float(), k.float(), v.float())
    error = (result.float() - exact).abs().max().item()
    torch_error = (torch_attention(q, k, v).float() - exact).abs().max().item()
    where = torch.cuda.get_device_name() if hopper else "the CPU, the kernel's tiles in PyTorch (no Hopper GPU here)"
    print(f"\nran on {where}")
    print(f"largest error against torch in float32: {error:.2e} (torch's own bf16: {torch_error:.2e})")
    limit = 2 * torch_error + 1e-3
    if not error <= limit:
        sys.exit(f"demo failed: the error is above {limit:.2e}")
    print("right. Files:")
    for path in sorted(p for p in FOLDER.rglob("*") if p.is_file() and not p.name.startswith(".")):
        print(f"  {path.relative_to(ROOT)}  {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
