"""Alter inputs as damage, people and strangers alter them, so that they mostly keep their form."""

from __future__ import annotations

import json
import lzma
import random
from functools import cache
from typing import Any

from labctl.base.yamltext import YamlError, parse_yaml
from labctl.cli.lint import KINDS as FILE_KINDS
from tests.unit.altered import altered_bytes, altered_json
from tests.unit.domain.test_foreign_allowed import damaged
from tests.unit.test_yaml_readers import altered


def as_bytes(data: bytes, chance: random.Random) -> bytes:
    return altered_bytes(data, chance)


def as_json(data: bytes, chance: random.Random) -> bytes:
    """Alter lines that are JSON, or the whole; some bytes besides."""
    if chance.random() < 0.15:
        return altered_bytes(data, chance)
    try:
        whole = altered_json(json.loads(data), chance, chance.randint(1, 4))
        return json.dumps(whole).encode()
    except (ValueError, RecursionError):
        pass
    lines = data.split(b"\n")
    at = chance.randrange(len(lines))
    try:
        lines[at] = json.dumps(altered_json(json.loads(lines[at]), chance, 2)).encode()
    except (ValueError, RecursionError):
        return altered_bytes(data, chance)
    return b"\n".join(lines)


def as_yaml(data: bytes, chance: random.Random) -> bytes:
    """Alter the text, or the values: JSON is YAML."""
    if chance.random() < 0.5:
        text = data.decode(errors="replace")
        return altered(text, str(chance.random())) if text else b"a: b\n"
    try:
        value = json.loads(json.dumps(parse_yaml(data.decode())))
    except (YamlError, ValueError, TypeError, RecursionError):
        return altered_bytes(data, chance)
    if isinstance(value, dict | list) and chance.random() < 0.6:
        _put(value, chance)
    else:
        value = altered_json(value, chance, chance.randint(1, 3))
    return json.dumps(value).encode()


def _put(value: Any, chance: random.Random) -> None:
    """Put a value of the file's own JSON Schema anywhere into it, or a key."""
    keys, values = vocabulary()
    places: list[tuple[Any, Any]] = []
    left = [value]
    while left:
        node = left.pop()
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, inner in items:
            places.append((node, key))
            if isinstance(inner, dict | list):
                left.append(inner)
    for _ in range(chance.randint(1, 3)):
        if not places:
            return
        node, key = chance.choice(places)
        if isinstance(node, dict) and chance.random() < 0.4:
            key = chance.choice(keys)
        node[key] = json.loads(json.dumps(chance.choice(values)))


@cache
def vocabulary() -> tuple[list[str], list[Any]]:
    """Keys and values of the JSON Schemas of all kinds of files, with their bounds and beyond."""
    keys: set[str] = set()
    values: list[Any] = [None, True, 0, -1, 1.5, "", "x", [], {}, ["x"], {"x": "y"}]
    left: list[Any] = [make() for make, _ in FILE_KINDS.values()]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            keys.update(map(str, node.get("properties", {})))
            values += node.get("enum", [])
            values += [node[name] for name in ("const", "default") if name in node]
            for name in ("minimum", "maximum", "exclusiveMinimum", "maxItems", "maxLength"):
                if isinstance(bound := node.get(name), int | float):
                    values += [bound - 1, bound, bound + 1]
            left += node.values()
        elif isinstance(node, list):
            left += node
    return sorted(keys), values


def as_xml(data: bytes, chance: random.Random) -> bytes:
    text = data.decode(errors="replace")
    try:
        return damaged(text, chance).encode(errors="surrogatepass")
    except (IndexError, ValueError):
        return altered_bytes(data, chance)


def as_parts(data: bytes, chance: random.Random) -> bytes:
    """Alter what an archive holds, below its compression and its checksums."""
    if chance.random() < 0.3:
        return altered_bytes(data, chance)
    try:
        decoder = lzma.LZMADecompressor()
        parts = [decoder.decompress(data, 1 << 20)]
        parts.append(lzma.decompress(decoder.unused_data)[: 1 << 20])
    except (lzma.LZMAError, EOFError):
        return altered_bytes(data, chance)
    at = chance.randrange(2)
    parts[at] = altered_bytes(parts[at], chance)
    return b"".join(lzma.compress(part, preset=0, check=lzma.CHECK_SHA256) for part in parts)
