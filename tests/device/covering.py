"""Selections that hold every pair of values of any two factors, small enough to run."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

Row = dict[str, Any]
Pair = tuple[str, Any, str, Any]


def pairs_of(row: Row, names: Sequence[str]) -> set[Pair]:
    """Every pair of values in a row."""
    return {(a, row[a], b, row[b]) for a, b in combinations(names, 2)}


def all_pairs(factors: Mapping[str, Sequence[Any]]) -> set[Pair]:
    """Every pair of values that a selection should hold."""
    return {(a, x, b, y) for a, b in combinations(factors, 2) for x in factors[a] for y in factors[b]}


def covering(factors: Mapping[str, Sequence[Any]], starts: Iterable[Row] = (), seed: int = 0) -> list[Row]:
    """Rows that hold every pair at least once: first ``starts``, filled in greedily, then what is still missing."""
    names = list(factors)
    luck = random.Random(seed)
    missing = all_pairs(factors)
    uses: dict[tuple[str, Any], int] = {}
    rows = []

    def gain(row: Row, name: str, value: Any) -> tuple[int, int, float]:
        found = 0
        for other, given in row.items():
            before = names.index(other) < names.index(name)
            found += ((other, given, name, value) if before else (name, value, other, given)) in missing
        return found, -uses.get((name, value), 0), luck.random()

    def add(row: Row) -> None:
        for name in luck.sample(names, len(names)):
            if name not in row:
                row[name] = max(factors[name], key=lambda value: gain(row, name, value))
        missing.difference_update(pairs_of(row, names))
        for item in row.items():
            uses[item] = uses.get(item, 0) + 1
        rows.append(row)

    for start in starts:
        add(dict(start))
    while missing:
        a, x, b, y = min(missing, key=str)
        add({a: x, b: y})
    return rows
