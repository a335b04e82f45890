"""Files stay small enough to be read in one go. Prints the tally (pytest -rP)."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
# What -> (folders, patterns, most lines a file).
KINDS = {
    "generator": (("generator",), ("*.py",), 200),
    "runtime": (("flashgen",), ("*.py",), 200),
    "tests": (("tests",), ("*.py",), 200),
    "headers": (("templates/include",), ("*.h", "*.cuh"), 300),
    "templates": (("templates",), ("*.jinja", "*.cu"), 60),
}


def lines(kind: str) -> dict[str, int]:
    """Lines of each file of a kind. The links below flashgen/ are not followed: their files are counted at home."""
    folders, patterns, _ = KINDS[kind]
    found = [path for folder in folders for pattern in patterns for path in sorted((ROOT / folder).rglob(pattern))]
    links = [ROOT / "flashgen" / name for name in ("generator", "templates", "configs")]
    own = [path for path in found if not any(path.is_relative_to(link) for link in links)]
    return {path.relative_to(ROOT).as_posix(): len(path.read_text("utf-8").splitlines()) for path in own}


@pytest.mark.parametrize("kind", KINDS)
def test_no_file_is_longer_than_its_limit(kind: str) -> None:
    counted = lines(kind)
    limit = KINDS[kind][2]
    print(f"{kind}: {sum(counted.values())} lines in {len(counted)} files, longest {max(counted.values())} of {limit}")
    assert {name: count for name, count in counted.items() if count > limit} == {}
