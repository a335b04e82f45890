"""What is wrong with a config, in words: which key, what was got, what is legal, the closest match."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from .errors import closest, shown
from .schema import INNER, KernelConfig, yaml_keys
from .spec import Mask


def first_error(error: ValidationError, data: dict[str, Any]) -> tuple[list[str | int], str]:
    """The path in the data and the message of the error that says most about what was meant."""
    # A union reports every branch; the one that got furthest into the data is the one that was meant.
    details = max(
        error.errors(), key=lambda e: (len(_path(e["loc"], data)), e["type"] in ("extra_forbidden", "missing"))
    )
    path = _path(details["loc"], data)
    name = " ".join(str(step) for step in path if isinstance(step, str))
    last = details["loc"][-1]
    if details["type"] == "missing":
        return path, f"{name + ': ' if name else ''}the key {last} is missing"
    if details["type"] == "extra_forbidden":
        inner = len(details["loc"]) > 1
        keys = yaml_keys(INNER[str(path[0])] if inner else KernelConfig)
        where = f"{path[0]}: " if inner else ""
        return [*path[:1], *([last] if inner else [])], (
            f"{where}unknown key {shown(last)}; legal: {', '.join(keys)}{closest(last, keys)}"
        )
    got: Any = data
    for step in path:
        got = got[step]
    words = legal_words(path)
    hint = closest(got, [word for word in words if " " not in word]) if isinstance(got, str) else ""
    if path[0] == "features" and got in list(Mask):
        hint = f"; a mask has a key of its own: `mask: {got}`"
    return path, f"{name}: got {_got(got)}; legal: {', '.join(words)}{hint}"


def legal_words(path: list[str | int]) -> list[str]:
    """What may stand at a key, in words, from the JSON Schema itself."""
    schema = KernelConfig.model_json_schema()
    rule: dict[str, Any] = schema
    for step in path:
        rule = rule["items"] if isinstance(step, int) else _fields(rule, schema)[step]
    return _words(rule, schema)


def _fields(rule: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    for branch in [rule, *rule.get("anyOf", [])]:
        target = schema["$defs"][branch["$ref"].rpartition("/")[2]] if "$ref" in branch else branch
        if "properties" in target:
            fields: dict[str, Any] = target["properties"]
            return fields
    return {}


def _words(rule: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    if "anyOf" in rule:
        return [word for branch in rule["anyOf"] for word in _words(branch, schema)]
    if "$ref" in rule:
        return _words(schema["$defs"][rule["$ref"].rpartition("/")[2]], schema)
    if "enum" in rule or "const" in rule:
        return [str(word) for word in rule.get("enum", [rule.get("const")])]
    if "properties" in rule:
        return ["{" + ", ".join(f"{key}: integer" for key in rule["properties"]) + "}"]
    if rule.get("type") == "array":
        return [f"a list of {' '.join(_words(rule['items'], schema))}"]
    return {"integer": ["an integer"], "boolean": ["true", "false"], "null": ["nothing"]}[rule["type"]]


def _path(loc: tuple[int | str, ...], data: Any) -> list[str | int]:
    """The steps of a pydantic location that exist in the data: it also names branches of unions, which look alike."""
    if not loc or loc[0] not in data:
        return []
    path: list[str | int] = [loc[0]]
    data = data[loc[0]]
    fields = yaml_keys(INNER[str(loc[0])]) if loc[0] in INNER else []
    for step in loc[1:]:
        known = isinstance(data, dict) and step in data and step in fields
        if isinstance(data, list) if isinstance(step, int) else known:
            path.append(step)
            data = data[step]
    return path


def _got(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true (a boolean)", False: "false (a boolean)"}[value]
    kinds = {int: "an integer", float: "a float", str: "a string", list: "a list", dict: "a mapping"}
    return f"{shown(value)} ({kinds[type(value)]})"
