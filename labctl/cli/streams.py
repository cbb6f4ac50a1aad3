"""Make the standard streams fit to print on, whatever the terminal or the caller made of them."""

from __future__ import annotations

import codecs
import io
import os
import sys
import unicodedata

_SIMPLER = {"−": "-", "…": "...", "×": "x", "–": "-", "·": "*", "─": "-", "━": "-", "│": "|"}
"""Letters of labctl's texts, and those that a terminal with few letters shows for them."""

_FAILING = ("strict", "surrogateescape")
"""Error handlers of streams that raise on a letter which the encoding lacks."""


def prepare() -> None:
    """Replace streams that were closed before labctl began, and let none fail on a letter that its
    encoding lacks."""
    codecs.register_error("simpler", _simpler)
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None:
            # Files that are opened later would get its number, and what is printed.
            null = os.open(os.devnull, os.O_WRONLY)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, open(number, "w", encoding="utf-8"))  # noqa: SIM115 - until the end
        elif isinstance(stream, io.TextIOWrapper) and stream.errors in _FAILING:
            stream.reconfigure(errors="simpler")


def _simpler(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_letter(letter) for letter in lacking), error.end


def _letter(letter: str) -> str:
    plain = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
    return _SIMPLER.get(letter) or plain or "?"
