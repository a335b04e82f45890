"""Draw a `flashgen bench --json` document again, without a GPU: plot.py FILE.json OUT.png."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a checkout that is not installed

from flashgen.plot import save_plot

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    save_plot(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
