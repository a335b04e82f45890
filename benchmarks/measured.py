"""Write configs/measured.json, which `flashgen explain` shows, from `bench --json` documents: measured.py FILE..."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a checkout that is not installed

from flashgen.figures import MEASURED, Measured, from_document, write_measured
from flashgen.generator import load_config, plan_entry, shipped_configs


def shipped_figures(paths: list[Path]) -> tuple[list[Measured], list[str]]:
    """The figures of the kernels that ship as they are planned now, and the names of kernels with others alone.

    Of a kernel in several files it is the last one's.
    """
    plans = {entry.spec.name: plan_entry(entry) for path in shipped_configs() for entry in load_config(path)}
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    # The host's figures are a list of calls, not a document of kernels.
    found = [each for document in documents if isinstance(document, dict) for each in from_document(document)]
    kept = {each.kernel: each for each in found if each.kernel in plans and each.is_of(plans[each.kernel])}
    return list(kept.values()), sorted({each.kernel for each in found} - set(kept))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    figures, stale = shipped_figures([Path(name) for name in sys.argv[1:]])
    write_measured(figures, MEASURED)
    print(f"figures of {len(figures)} kernels in {MEASURED}")
    if stale:
        print(f"left out, for another plan ships now: {', '.join(stale)}", file=sys.stderr)
