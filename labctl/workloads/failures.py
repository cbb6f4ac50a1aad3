"""Say what a failed program said, and what that means where it doesn't say so itself."""

from __future__ import annotations

import re

_KNOWN = (
    (
        # rtla looks for the tracer's files only, and names none of them.
        re.compile(
            r"Could not apply config|Failed to enable (?:timerlat|osnoise) tracer|"
            r"Could not init (?:timerlat|osnoise) hist"
        ),
        "rtla needs a kernel with CONFIG_OSNOISE_TRACER=y and CONFIG_TIMERLAT_TRACER=y, which this "
        "one seems to lack (of Debian's, linux-image-rt-amd64 has both)",
    ),
)


def last_words(stderr: bytes, lines: int = 1) -> str:
    """Return the last lines of a failed program's standard error, with their meaning where it is
    known.
    """
    text = stderr.decode(errors="replace").strip()
    said = text.splitlines()[-lines:]
    meant = [meaning for pattern, meaning in _KNOWN if pattern.search(text)]
    return ". ".join(("; ".join(said), *meant)) if meant else "; ".join(said)
