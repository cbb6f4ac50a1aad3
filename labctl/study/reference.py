"""Write the reference of all tunings as Markdown, for `docs/tunings.md`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from labctl.base.tuning import Kind, Tuning
from labctl.study.changes import GROUPS, changes, dotted, group, word

COMMAND = "labctl tuning list --markdown > docs/tunings.md"
"""Command that writes the file again."""

_HEAD = f"""\
# The tunings

This page is for anyone who chooses a tuning or writes one. Afterwards you know what each changes, \
what it needs and risks, and which workloads show it.

<!-- Written by '{COMMAND}': change the files in domains/ instead. -->

One file in `domains/` each: what it is, the keys that differ from the baseline, what it needs and \
what it risks, and where that comes from. What can be checked of its needs is checked before a \
run: a sweep leaves out what the host can't have and says why, and refuses it when it was asked \
for by name. Tunings combine by their names (`vcpupin+cache-none`). \
*Exercised by* are the [workloads](workloads.md) that use what it changes: with others it may well \
be found equal to the baseline.

A tuning that is *restored* starts from the boot that its block shares; one that is *booted* boots \
for itself in each block, because a restored guest would not be what a booted one is \
([why](decisions/boots-and-blocks.md)). Compare those with `booted`, the baseline that boots as \
well.
"""


def reference(tunings: Mapping[str, Tuning], baseline: Tuning) -> str:
    """Return all of `tunings`, by group."""
    parts = [_HEAD]
    for heading in GROUPS:
        members = [t for t in tunings.values() if group(t, baseline) == heading]
        if members:
            parts.append(f"\n## {heading}\n\n")
            parts += [f"{line}\n" for tuning in members for line in _lines(tuning, baseline)]
    return "".join(parts)


def _lines(tuning: Tuning, baseline: Tuning) -> Iterator[str]:
    changed = changes(tuning, baseline).items()
    keys = ", ".join(f"`{dotted(key)}: {word(value)}`" for key, value in changed)
    start = "" if tuning.kind is Kind.NATIVE else "restored" if tuning.restore else "booted"
    marks = "; ".join(filter(None, (start, keys)))
    yield f"- **`{tuning.name}`**{f' ({marks})' if marks else ''}: {tuning.description}"
    for heading, texts in (
        ("Needs", tuning.needs),
        ("Risks", tuning.risks),
        ("Exercised by", tuning.exercised_by),
        ("Sources", tuning.sources),
    ):
        if texts:
            yield f"  - {heading}: {'; '.join(texts)}."
