"""JSON and text altered at random, as damage, people and strangers alter them."""

from __future__ import annotations

import json
import random
from typing import Any

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 1.5, -0.0, 1e308, 10**30, 10**400, 2**63, float("nan")),
    *("", "x", "0", "1e999", "null", "../../etc/passwd", "/dev/zero", "a\nb", "\x1b[31m", "\u2028"),
    *("0-99999999999", "native", "baseline", "pinned", "guest", "kvm", "tcg", "9" * 5000),
    *("<script>", "$(touch X)", "%s%n{}", "\ud7ff", "ä" * 300, "2026-13-45T99:00:00", "a" * 70_000),
    *([], {}, [[]], [None], {"": None}, [[[[[]]]]], {"a": {"b": {"c": []}}}, ["x"] * 300),
    *([1, "x", None], {"schema": 99}, {"tuning": "x"}, [{"tuning": "pinned"}]),
)


def altered_json(value: Any, chance: random.Random, changes: int) -> Any:
    """`value` with so many changes: values, keys and items replaced, taken out, doubled, moved."""
    holder = [value]
    for _ in range(changes):
        places = list(_places(holder))
        # Half of them near the top, where a change reaches far.
        near = [place for place in places if place[2] <= 3]
        of, key, _ = chance.choice(near if chance.random() < 0.5 else places)
        _change(of, key, places, chance)
        if not holder:
            holder.append(chance.choice(VALUES))
    return holder[0]


def _places(value: Any, deep: int = 0) -> list[tuple[Any, Any, int]]:
    found: list[tuple[Any, Any, int]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        found.append((value, key, deep))
        if isinstance(item, dict | list):
            found += _places(item, deep + 1)
    return found


def _change(of: Any, key: Any, places: list[tuple[Any, Any, int]], chance: random.Random) -> None:
    what = chance.randrange(6)
    if what == 0:
        del of[key]
    elif what == 1:
        other, name, _ = chance.choice(places)
        of[key] = json.loads(json.dumps(other[name]))
    elif what == 2 and isinstance(of, dict):
        of[str(chance.choice(VALUES))[:100_000]] = of.pop(key)
    elif what == 2:
        of.append(of[key])
    elif what == 3 and isinstance(of[key], int | float) and abs(of[key]) < 1e18:
        of[key] = chance.choice((-of[key], of[key] * 1000, of[key] + 0.5, str(of[key]), [of[key]]))
    elif what == 4 and isinstance(of[key], str):
        text = of[key]
        of[key] = chance.choice(
            (text + "x", text[1:], text.upper(), [text], {text: text}, text * 2)
        )
    else:
        of[key] = json.loads(json.dumps(chance.choice(VALUES)))


def altered_bytes(data: bytes, chance: random.Random) -> bytes:
    """The bytes with one to four changes: cut, doubled, flipped, or filled with what is none."""
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + chance.randrange(200))
        data = chance.choice(
            (
                data[:at],
                data[:at] + data[end:],
                data[:end] + data[at:],
                data[:at] + bytes((chance.randrange(256),)) + data[at + 1 :],
                data[:at]
                + chance.choice((b"\0", b"\xff", b"[" * 500, b'"', b"\n", b","))
                + data[at:],
            )
        )
    return data
