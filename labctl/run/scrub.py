"""Takes out of texts what identifies a host, and keeps their form: parsers must still read them.

Pure. The same text gets the same stand-in everywhere, so that what belongs together still does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

UUID, MAC, PATH = "uuid", "mac", "path"

_UUID = re.compile(
    rb"(?<![0-9A-Fa-f-])[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}(?![0-9A-Fa-f-])"
)
_MAC = re.compile(rb"(?<![0-9A-Fa-f:])[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5}(?![0-9A-Fa-f:])")
_EDGE = rb"[0-9A-Za-z]"


class Scrubber:
    """`known`: text to what it is, as `host.identity.read_identity` says. `paths`: folder of this
    host to what stands for it; it may hold a user's name."""

    def __init__(self, known: Mapping[str, str], paths: Mapping[str, str]) -> None:
        self._paths = {old.encode(): new.encode() for old, new in paths.items() if old != new}
        self._kinds = {text.encode(): kind for text, kind in known.items()}
        # The longest first: a host's full name holds its short one.
        self._known = _any_of(self._kinds)
        self._folders = _any_of(self._paths)
        self._stand_ins: dict[tuple[str, bytes], bytes] = {}
        self.taken_out: Counter[str] = Counter()
        """How often each kind was found."""

    def scrubbed(self, data: bytes) -> bytes:
        """The same without what identifies the host."""
        if self._folders is not None:
            data = self._folders.sub(lambda found: self._path(found.group()), data)
        if self._known is not None:
            data = self._known.sub(lambda found: self._named(found.group()), data)
        data = _UUID.sub(lambda found: self._numbered(UUID, found.group()), data)
        return _MAC.sub(lambda found: self._numbered(MAC, found.group()), data)

    def _path(self, text: bytes) -> bytes:
        self.taken_out[PATH] += 1
        return self._paths[text]

    def _named(self, text: bytes) -> bytes:
        return self._numbered(self._kinds[text], text)

    def _numbered(self, kind: str, text: bytes) -> bytes:
        self.taken_out[kind] += 1
        key = (kind, text.lower())
        if key not in self._stand_ins:
            number = 1 + sum(other == kind for other, _ in self._stand_ins)
            self._stand_ins[key] = _stand_in(kind, number)
        return self._stand_ins[key]


def _stand_in(kind: str, number: int) -> bytes:
    if kind == UUID:
        return f"00000000-0000-4000-8000-{number:012x}".encode()
    if kind == MAC:
        return f"52:54:00:00:{number >> 8 & 255:02x}:{number & 255:02x}".encode()
    return f"{kind}-{number}".encode()


def _any_of(texts: Mapping[bytes, object]) -> re.Pattern[bytes] | None:
    """Any of the texts as a word of its own."""
    if not texts:
        return None
    longest_first = sorted(texts, key=len, reverse=True)
    either = b"|".join(re.escape(text) for text in longest_first)
    return re.compile(b"(?<!" + _EDGE + b")(?:" + either + b")(?!" + _EDGE + b")")
