"""Print docs/studies.md: every key of a study's file, from its models (`make docs`)."""

from __future__ import annotations

import sys

from labctl.study import conditionfile, factorfile, studyfile, tuningfile
from tools.key_tables import sections

_PARTS = (
    ("A study", studyfile.StudyFile),
    ("`roles`", studyfile.RolesFile),
    ("`workloads.NAME`", studyfile.WorkloadFile),
    ("`conditions.NAME`", conditionfile.ConditionFile),
    ("`conditions.NAME.neighbours`", conditionfile.NeighbourFile),
    ("`factors.NAME`", factorfile.FactorFile),
    ("`factors.NAME.levels.LEVEL`", factorfile.LevelFile),
    ("`stop`", studyfile.StopFile),
    ("`guest`", studyfile.GuestFile),
    ("`limits`", studyfile.LimitsFile),
    ("`expects`", studyfile.ExpectsFile),
    ("`quick`", studyfile.QuickFile),
    ("`requires.NAME`", tuningfile.RequiresFile),
)

_HEAD = """\
# The keys of a study

This page is for anyone who writes a study, in `benchmarks/` of a lab folder or of labctl. \
Afterwards you know each key, what it takes and what it is when you leave it out; \
`labctl lint FILE` checks a file, `labctl study show FILE` says what it compares, and \
`labctl sweep FILE --plan-only` what it would do here.

<!-- Written by 'make docs' from labctl/study/studyfile.py: change the texts there instead. -->

An editor with a YAML language server completes and checks keys where a file's first line is \
`# yaml-language-server: $schema=PATH`; `labctl schema study` prints that schema \
(`labctl schema` lists the other kinds of file).

A key in **bold** must be there. A key that isn't here is refused, with the nearest that is. This \
is a whole study; `benchmarks/pinning.yaml` is one that says more:

    title: Does pinning help the database host?
    tunings: [pinned, pinned+fifo]
    workloads: [sysbench-cpu, cyclictest]

[Factors](factors.md) vary what a study has beside its tunings. \
[How labctl judges](method.md) says what `no_worse_than`, `stop` and `looks` do to the verdicts.
"""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join([_HEAD, *sections(_PARTS)])


if __name__ == "__main__":
    sys.stdout.write(page())
