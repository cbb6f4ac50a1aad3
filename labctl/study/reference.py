"""Write the reference of all tunings as Markdown, for `docs/tunings.md`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from labctl.base.tuning import Kind, Tuning
from labctl.study.changes import GROUPS, changes, dotted, group, word

COMMAND = "labctl tuning list --markdown > docs/tunings.md"
"""Command that writes the file again."""

_HEAD = f"""\
# Tunings

Each tuning is a file in `domains/`, listed here with the keys that differ from the baseline.

<!-- Written by '{COMMAND}': change the files in domains/ instead. -->

Combine tunings with `+` (`vcpupin+cache-none`). A sweep skips a tuning that the host does not \
support and says why; naming it with `--tuning` is an error. With [workloads](workloads.md) other \
than those in *Exercised by* a tuning may be equivalent to the baseline.

A *restored* tuning starts from the boot that its block shares. A *booted* one boots in each \
block, because a restored guest would differ from a booted one; compare it with `booted`, the \
baseline that boots too.
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
