"""``flashgen schema``: the JSON Schema of the YAML."""

from __future__ import annotations

from flashgen.cli import shared


def schema() -> None:
    """Print the JSON Schema of the YAML, for editors that complete and check it.

    Example: flashgen schema > flashgen.schema.json
    """
    from flashgen.generator import json_schema

    shared.print_json(json_schema())
