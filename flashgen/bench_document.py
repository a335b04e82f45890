"""One run of ``bench`` as JSON takes it, with what it ran on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from flashgen.bench import Row
from flashgen.driver import driver
from flashgen.toolchain import nvrtc_version

DRIVER_FILE = Path("/proc/driver/nvidia/version")


def document(rows: Iterable[Row], product_tflops: float, repetitions: int) -> dict[str, Any]:
    """``rows`` and the machine. ``product_tflops``: of ``matrix_product_tflops`` in the same run."""
    cudnn = torch.backends.cudnn.version()  # 91900: 9.19.0
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": _driver_version(),
        "torch": torch.__version__,
        "cudnn": None if cudnn is None else f"{cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}",
        "nvrtc": nvrtc_version(),
        "date": datetime.now(UTC).date().isoformat(),
        "matrix_product_tflops": product_tflops,
        "repetitions": repetitions,
        "rows": [asdict(row) for row in rows],
    }


def _driver_version() -> str:
    try:
        found = re.search(r"\s(\d+\.\d+(\.\d+)?)\s", DRIVER_FILE.read_text(encoding="utf-8"))
    except OSError:
        found = None
    return found[1] if found else "takes CUDA {}.{}".format(*driver().version())
