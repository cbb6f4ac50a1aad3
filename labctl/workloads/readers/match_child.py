"""Find regular expressions in texts, in a process of its own that ends itself beyond its limits: a
pattern can take forever, and the text comes from an unknown program.

It runs by its path, with only Python's standard library, so that it starts in 20 ms. It reads a
request as JSON, and prints a line of JSON for each job, so that the first job without one is the
culprit.
"""

import json
import re
import resource
import sys
from typing import Any

CPU_S = 5
MEMORY = 512 << 20
MOST_MATCHES = 200_000
MOST_SHOWN = 100
"""Number of matches whose text is kept, for errors."""
MOST_CHARACTERS = 200
"""Limit for one group's text."""


def found(pattern: str, text: str) -> dict[str, object]:
    """Return all matches: where each begins, its first line, and its groups by name."""
    matches: list[Any] = []
    compiled = re.compile(pattern, re.MULTILINE)
    plain = compiled.groups == 1 and not compiled.groupindex
    for match in compiled.finditer(text):
        if len(matches) == MOST_MATCHES:
            return {"error": f"it has more than {MOST_MATCHES} matches"}
        groups = {"value": match[1]} if plain else match.groupdict()
        kept = {n: t[: MOST_CHARACTERS + 1] for n, t in groups.items() if t is not None}
        shown = match[0][:MOST_CHARACTERS] if len(matches) < MOST_SHOWN else ""
        matches.append([match.start(), shown, kept])
    return {"matches": matches}


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    request = json.load(sys.stdin)
    for pattern, number in request["jobs"]:
        try:
            answer = found(pattern, request["texts"][number])
        except (re.error, RecursionError, OverflowError) as error:
            answer = {"error": str(error)}
        except MemoryError:
            answer = {"error": f"it needs more than {MEMORY >> 20} MiB of memory"}
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
