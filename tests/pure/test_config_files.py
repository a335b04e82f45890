"""Files that cannot be read as a config, and texts that nobody thought of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.generator import ConfigEntry, ConfigError, FlashgenError, load_config
from flashgen.generator.schema import KernelConfig

BASE = "kernel: attention_fwd\narch: sm90a\ndtype: bf16\nhead_dim: 128\n"
WORDS = st.sampled_from(
    [
        "auto",
        "bf16",
        "full",
        "128",
        "true",
        "~",
        "{}",
        "[]",
        "[1]",
        "{m: 1}",
        "{qk: 8, v: 8}",
        "{Tile: {m: 1}}",
        "{int: 8}",
        "{from: 8}",
        "{below: x}",
        "{from: 9, below: 3}",
        "{first: 1}",
    ]
)


def refused(path: Path | str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    return str(caught.value)


def test_missing_file_names_the_closest(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(BASE)
    assert refused(tmp_path / "mien.yaml").endswith("mien.yaml: no such file; closest match: mine.yaml")
    assert "no such file" in refused("nowhere/at_all.yaml")


def test_what_is_no_text_file(tmp_path: Path) -> None:
    assert "directory" in refused(tmp_path)
    path = tmp_path / "a.yaml"
    path.write_bytes(b"a: 1\nb: \xff\n")
    assert refused(path) == f"{path}:2: not UTF-8 text"
    path.write_bytes(b"a" * 300_000)
    assert "larger than 262144 bytes" in refused(path)
    path.write_bytes(b"")
    assert "the file is empty" in refused(path)
    assert "cannot be read" in refused("a\0b.yaml")


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs /dev/zero")
def test_an_endless_file_is_not_read_to_its_end() -> None:
    assert "larger than" in refused("/dev/zero")


def test_a_yaml_bomb_is_refused_before_it_grows() -> None:
    bomb = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
    assert refused(bomb).startswith("(text):1: anchors and aliases (&a, *a)")


def outcome(text: str) -> list[ConfigEntry] | str:
    """The entries, or the message; any other exception is the test's failure."""
    try:
        return load_config(text)
    except FlashgenError as error:
        return str(error)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=80))
def test_any_text_is_refused_on_one_line(text: str) -> None:
    message = outcome(text + "\n")
    assert isinstance(message, str)
    assert message.startswith("(text)")
    assert "\n" not in message


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from([*KernelConfig.model_fields, "x", "int"]), WORDS, max_size=6))
def test_any_mix_of_known_words_loads_or_is_refused(extra: dict[str, str]) -> None:
    rows = dict(line.split(": ", 1) for line in BASE.splitlines()) | extra
    found = outcome("".join(f"{key}: {value}\n" for key, value in rows.items()))
    assert found
    assert isinstance(found, list) or found.startswith("(text):")
