"""The README is true: its commands, options, configs, names, files and environment variables exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

import flashgen
from flashgen import env
from flashgen.cli.app import app
from flashgen.generator import load_config, plan_entry

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    """Every ``flashgen ...`` of the shell blocks and of the text, as words."""
    lines = [line.split("#")[0] for block in blocks("sh") for line in block.splitlines()]
    inline = re.findall(r"`(flashgen [^`]*)`", README)
    pieces = [piece.strip() for line in [*lines, *inline] for piece in re.split(r"&&|;|\|", line)]
    return [shlex.split(piece) for piece in pieces if piece.startswith("flashgen ")]


def test_commands_and_options_exist() -> None:
    group = get_command(app)
    used = set()
    for words in commands():
        command = group
        for word in words[1:]:
            subcommands = getattr(command, "commands", {})
            if word == "COMMAND":
                continue
            if not word.startswith("-") and subcommands:
                assert word in subcommands, words
                command = subcommands[word]
                used.add(word)
            elif word.startswith("-") and word != "--help":
                assert word in {option for parameter in command.params for option in parameter.opts}, words
    assert used >= set(group.commands), "every command is in the README"  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", blocks("yaml"))
def test_configs_load_and_plan(text: str) -> None:
    assert [plan_entry(entry).name for entry in load_config(text)]


def test_python_names_exist() -> None:
    code = "\n".join(blocks("python"))
    compile(code, "README.md", "exec")
    names = set(re.findall(r"flashgen\.([a-z_]\w*)", code))
    assert names
    assert names <= set(flashgen.__all__)


def test_environment_variables_are_those_of_env() -> None:
    rows = re.findall(r"^\| `(FLASHGEN_\w+)` \| `?([^|`]*)`?.* \| (.*) \|$", README, re.MULTILINE)
    assert {name for name, _, _ in rows} == {variable.name for variable in env.VARIABLES}
    assert len(env.VARIABLES) <= 6
    others = set(re.findall(r"environ\.get\(\"(\w+)\"\)", Path(env.__file__).read_text("utf-8")))
    assert others == set(re.findall(r"^\| `([A-Z_]+)` \|", README, re.MULTILINE)) - {name for name, _, _ in rows}


def test_shipped_head_dims_are_all_named() -> None:
    (sentence,) = re.findall(r"ships head\s+dims ([^.]*)\.", README)
    shipped = {
        path.stem.removeprefix("attention_fwd_d") for path in (ROOT / "configs/sm90").glob("attention_fwd_d*.yaml")
    }
    named = set(re.findall(r"\d+", re.sub(r"\(.*?\)", "", sentence))) | {
        "x".join(pair) for pair in re.findall(r"\((\d+), (\d+)\)", sentence)
    }
    assert named == shipped


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target
