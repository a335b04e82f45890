"""YAML that is refused: each case with one clear message, at its position."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashgen.generator import ConfigError, FlashgenError, NotAvailableError, PlanError, load_config
from flashgen.generator.yaml_nodes import MAX_BYTES

BASE = "kernel: attention_fwd\narch: sm90a\ndtype: bf16\nhead_dim: 128\n"


def refused(text: str | Path, kind: type[FlashgenError] = ConfigError) -> str:
    with pytest.raises(kind) as caught:
        load_config(text)
    assert type(caught.value) is kind
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


def test_a_file_is_named_in_messages(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(BASE.replace("bf16", "bf15"))
    assert refused(path).startswith(f"{path}:3: dtype")
    assert refused(str(path)).startswith(f"{path}:3: dtype")
    path.write_text("\ufeff" + BASE.replace("\n", "\r\n"), encoding="utf-8", newline="")
    assert load_config(path)[0].origin == f"{path}:1"
    assert load_config(path, origin="other.yaml")[0].origin == "other.yaml:1"


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("tlie: auto", ("unknown key 'tlie'", "legal: kernel, arch", "closest match: tile")),
        ("tile: {m: 128, n: 128, k: 3}", ("tile: unknown key 'k'", "legal: m, n")),
        ("tile: {m: 128}", ("tile: the key n is missing",)),
        ("tile: 128", ("tile: got 128 (an integer)", "{m: integer, n: integer}, auto")),
        ("tile: {m: 128, n: true}", ("tile n: got true (a boolean)", "legal: an integer")),
        ("tile: {m: 128, n: '128'}", ("tile n: got '128' (a string)",)),
        ("tile: []", ("tile: the sweep is empty",)),
        ("tile:", ("tile: got nothing",)),
        ("stages: 2.0", ("stages: got 2.0 (a float)", "an integer, auto")),
        ("stages: true", ("stages: got true (a boolean)",)),
        ("stages: 010", ("stages: got '010' (a string)",)),
        ("stages: 1:30", ("stages: got '1:30' (a string)",)),
        ("stages: .inf", ("stages: got '.inf' (a string)",)),
        ("stages: " + "9" * 5000, ("stages: got '999", "(5002 characters)")),
        ("overlap: 1", ("overlap: got 1 (an integer)", "true, false, auto")),
        ("pingpong: yes", ("pingpong: got 'yes' (a string)", "true, false, auto")),
        ("scheduler: dynmic", ("got 'dynmic'", "single, static, dynamic, auto", "closest match: dynamic")),
        ("rescale: Late", ("got 'Late'", "closest match: late")),
        ("mask: [[full]]", ("mask: got ['full'] (a list)",)),
        ("features: varlen", ("features: got 'varlen' (a string)", "a list of")),
        ("features: [varln]", ("got 'varln'", "closest match: varlen")),
        ("keys: {from: x}", ("keys from: got 'x' (a string)", "legal: an integer")),
        ("keys: {below: x}", ("keys below: got 'x' (a string)", "legal: an integer, nothing")),
        ("keys: {form: 8}", ("keys: unknown key 'form'", "legal: from, below", "closest match: from")),
        ("keys: {from: 8, below: 8}", ("from less than below",)),
        ("keys: auto", ("keys: got 'auto' (a string)", "{from: integer, below: integer}")),
        ("features: [window]", ("a mask has a key of its own: `mask: window`",)),
        ("head_dim: 64", ("duplicate key 'head_dim', first at (text):4",)),
        ("registers: {producer: 24, producer: 32}", ("duplicate key 'producer'",)),
        ("mask: &a full", ("anchors and aliases (&a, *a) are not legal",)),
        ("mask: *a", ("anchors and aliases",)),
        ("mask: !!str full", ("the tag 'tag:yaml.org,2002:str' is not legal",)),
        ("mask: !!python/object/apply:os.system [ls]", ("the tag", "is not legal")),
        ("tile: !tile {m: 128, n: 128}", ("the tag '!tile' is not legal",)),
        ("mask: '{{ mask }}'", ("got '{{ mask }}'", "template text is not expanded")),
        ("mask: {{ mask }}", ("template text such as {{ }} is not expanded",)),
        ("mask: '{% include x %}'", ("template text is not expanded",)),
        ("'{{ key }}': 1", ("template text is not expanded",)),
        ('mask: "full\\n#include <x>"', ("line breaks and control codes are not legal",)),
        ("mask: |\n  full", ("line breaks and control codes are not legal",)),
        ('mask: "fu\\0ll"', ("line breaks and control codes are not legal",)),
        ("<<: {mask: full}", ("unknown key '<<'",)),
        ("1: 2", ("got the key 1", "a plain word")),
        ("? [a]\n: b", ("a key must be a plain word",)),
        ("\tmask: full", ("not YAML", "tab")),
        ("mask: 'full", ("not YAML",)),
        ("x: " + "[" * 50 + "]" * 50, ("nested more than 8 deep",)),
        ("x: [" + "1, " * 30_000 + "]", ("more than 20000 values",)),
    ],
)
def test_a_bad_line_is_refused_where_it_stands(line: str, parts: tuple[str, ...]) -> None:
    message = refused(BASE + line + "\n")
    for part in parts:
        assert part in message
    if "not YAML" not in message:
        assert message.startswith("(text):5: ")


@pytest.mark.parametrize(
    ("old", "new", "kind", "place", "part"),
    [
        ("128", "63", ConfigError, 4, "head_dim: got 63; legal: multiples of 8 from 8 to 256; nearest: 56 or 64"),
        ("128", "[64, 63]", ConfigError, 4, "got 63"),
        ("128", "\n  - 64\n  - 63", ConfigError, 6, "got 63"),
        ("128", "{qk: 192, v: 100}", ConfigError, 4, "head_dim v: got 100"),
        ("128", "{qk: 192}", ConfigError, 4, "head_dim: the key v is missing"),
        ("128", "'128'", ConfigError, 4, "got '128' (a string); legal: an integer, {qk: integer, v: integer}"),
        ("128", "true", ConfigError, 4, "got true (a boolean)"),
        ("128", "[]", ConfigError, 4, "head_dim: the sweep is empty"),
        ("128", "512", NotAvailableError, 4, "head_dim 512 is not available yet"),
        ("head_dim: 128\n", "", ConfigError, 1, "the key head_dim is missing"),
        ("sm90a", "sm80", NotAvailableError, 2, "arch sm80 is not available yet (available: sm90a)"),
        ("sm90a", "sm80\nschedule: fa3", PlanError, 2, "schedule fa3 does not run on arch sm80; legal: sm90a"),
        ("sm90a", "sm90a\nschedule: fa2", NotAvailableError, 3, "schedule fa2 is not available yet (available: fa3)"),
        ("bf16", "e4m3", NotAvailableError, 3, "dtype e4m3 is not available yet (available: fp16, bf16)"),
        ("bf16", "[bf16, fp61]", ConfigError, 3, "got 'fp61' (a string); legal: fp16, bf16, e4m3; closest match: fp16"),
        ("bf16", "bf16\nmask: window", NotAvailableError, 4, "mask window is not available yet"),
        ("bf16", "bf16\nfeatures: [paged]", NotAvailableError, 4, "features paged is not available yet"),
        ("bf16", "[bf16, bf16]", ConfigError, 1, "is given twice, first at (text):1"),
        ("128", "128\ntile: [auto, {m: 128, n: 64}]", ConfigError, 1, "is given twice"),
    ],
)
def test_bad_values(old: str, new: str, kind: type[FlashgenError], place: int, part: str) -> None:
    message = refused(BASE.replace(old, new), kind)
    assert message.startswith(f"(text):{place}: ")
    assert part in message


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "the file is empty"),
        ("\n# nothing\n", "the file is empty"),
        ("---\n---\n", "(text):2: got an empty document"),
        (BASE + "---\n", "got an empty document"),
        ("- a\n- b\n", "(text):1: got ['a', 'b']"),
        ("just words\n", "(text):1: got 'just words'"),
        ("[" * 5000 + "\n", "nest"),
        ("a: \0\n", "not YAML"),
        ("a: b\n%YAML 9.9\n", "not YAML"),
        ("a: " + "x" * MAX_BYTES + "\n", "larger than"),
        (f"{BASE}---\n{BASE}", "(text):6: attention_fwd_fa3_sm90a_bf16_d128_full is given twice, first at (text):1"),
        (BASE.replace("128", "[" + "64, " * 5000 + "]"), "the sweep makes 5000 kernels; the limit is 4096"),
    ],
)
def test_bad_texts(text: str, part: str) -> None:
    assert part in refused(text)
