"""YAML text to nodes with positions. Plain data alone: no tags, anchors or duplicate keys; bounded size and depth."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml
from yaml import MappingNode, Node, ScalarNode, SequenceNode

from .errors import ConfigError, shown

MAX_BYTES = 256 * 1024
MAX_NODES = 20_000
MAX_DEPTH = 8
TEMPLATE_MARKS = ("{{", "}}", "{%", "%}", "{#", "#}")
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def documents(text: str, label: str) -> list[MappingNode]:
    """The documents of a YAML text, each a mapping. ``label`` is the file's name in messages."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise ConfigError(f"{label}: the text is larger than {MAX_BYTES} bytes, the limit for a config")
    try:
        _check_events(text, label)
        nodes = list(yaml.compose_all(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{label}:{mark.line + 1}" if mark else label
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(f"{where}: not YAML: {reason}") from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise ConfigError(f"{label}: not YAML: {str(error).splitlines()[0]}") from None
    if not nodes:
        raise ConfigError(f"{label}: the file is empty; a config starts with `kernel: attention_fwd`")
    found = []
    for node in nodes:
        if not isinstance(node, MappingNode):
            value = plain(node, label)
            got = "an empty document" if value is None else shown(value)
            legal = "`key: value` lines, as in `kernel: attention_fwd`"
            raise ConfigError(f"{position(label, node)}: got {got}; legal: {legal}")
        found.append(node)
    return found


def _check_events(text: str, label: str) -> None:
    """Refuse what would make the tree larger than the text, or other than plain data, before any tree is built."""
    depth = count = 0
    for event in yaml.parse(text, Loader=_LOADER):
        where = position(label, event)
        anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
        if anchor is not None:
            raise ConfigError(f"{where}: anchors and aliases (&{anchor}, *{anchor}) are not legal in a config")
        if tag is not None:
            raise ConfigError(f"{where}: the tag {shown(tag)} is not legal in a config; write the plain value")
        if isinstance(event, yaml.NodeEvent):
            count += 1
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ConfigError(f"{where}: nested more than {MAX_DEPTH} deep")
        if count > MAX_NODES:
            raise ConfigError(f"{where}: more than {MAX_NODES} values")


def position(label: str, node: Node | yaml.Event) -> str:
    """``file:line`` of a node or event."""
    return f"{label}:{node.start_mark.line + 1}" if node.start_mark else label


def entries(node: MappingNode, label: str) -> dict[str, tuple[Node, Node]]:
    """Key -> (key node, value node) of a mapping; a key that is no word or comes twice is refused."""
    found: dict[str, tuple[Node, Node]] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, ScalarNode):
            raise ConfigError(
                f"{position(label, key_node)}: a key must be a plain word, got a list or mapping "
                "(template text such as {{ }} is not expanded in a config)"
            )
        key = plain(key_node, label)
        if not isinstance(key, str):
            raise ConfigError(f"{position(label, key_node)}: got the key {shown(key)}; legal: a plain word")
        if key in found:
            first = position(label, found[key][0])
            raise ConfigError(f"{position(label, key_node)}: duplicate key {shown(key)}, first at {first}")
        found[key] = (key_node, value_node)
    return found


def plain(node: Node, label: str) -> Any:
    """The node as plain data: dict, list, str, int, float, bool or None."""
    if isinstance(node, MappingNode):
        return {key: plain(value, label) for key, (_, value) in entries(node, label).items()}
    if isinstance(node, SequenceNode):
        return [plain(item, label) for item in node.value]
    text = str(node.value)
    if any(mark in text for mark in TEMPLATE_MARKS):
        raise ConfigError(f"{position(label, node)}: got {shown(text)}; template text is not expanded in a config")
    if not text.isprintable():
        raise ConfigError(f"{position(label, node)}: got {shown(text)}; line breaks and control codes are not legal")
    return _scalar(node.tag.rpartition(":")[2], text)


def _scalar(kind: str, text: str) -> Any:
    if kind == "null":
        return None
    if kind == "bool":
        # YAML 1.1 also reads yes, no, on and off as booleans; a config means the word it says.
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind == "int":
        # 010 and 1:30 would be 8 and 90 in YAML 1.1: such text stays text, and is refused as a wrong type.
        return int(text) if _INTEGER.fullmatch(text) else text
    if kind == "float":
        try:
            return float(text)
        except ValueError:
            return text
    return text


def locate(node: Node, path: Sequence[str | int]) -> Node:
    """The node at a path, or the deepest one on the way that exists; for a mapping's entry, its key."""
    for step in path:
        if isinstance(node, MappingNode):
            match = [(key, value) for key, value in node.value if getattr(key, "value", None) == step]
            if not match:
                break
            node = match[0][0] if step == path[-1] else match[0][1]
        elif isinstance(node, SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
        else:
            break
    return node
