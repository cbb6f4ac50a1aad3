"""Print docs/studies.md: every key of a study's file, from its models (`make docs`)."""

from __future__ import annotations

import sys

from labctl.base.tuning import Requires
from labctl.base.yaml import keys_of
from labctl.study import conditions, factorfile, studyfile
from tools.key_tables import sections

_PARTS = (
    ("A study", studyfile.StudyFile),
    ("`roles`", studyfile.RolesFile),
    ("`workloads.NAME`", studyfile.WorkloadFile),
    ("`conditions.NAME`", conditions.ConditionFile),
    ("`conditions.NAME.neighbours`", conditions.NeighbourFile),
    ("`factors.NAME`", factorfile.FactorFile),
    ("`factors.NAME.levels.LEVEL`", factorfile.LevelFile),
    ("`stop`", studyfile.StopFile),
    ("`guest`", studyfile.GuestFile),
    ("`limits`", studyfile.LimitsFile),
    ("`expects`", studyfile.ExpectsFile),
    ("`quick`", studyfile.QuickFile),
    ("`requires.NAME`", keys_of(Requires)),
)

_HEAD = """\
# Keys of a study

A study is a YAML file in `benchmarks/` of a lab folder; these are its keys and their defaults.

<!-- Written by 'make docs' from labctl/study/studyfile.py: change the texts there instead. -->

    title: Does pinning help the database host?
    tunings: [pinned, pinned+fifo]
    workloads: [sysbench-cpu, cyclictest]

This is a complete study; `benchmarks/pinning.yaml` is a longer one. Keys in **bold** are \
required. An unknown key is refused with the nearest known one.

| command | task |
|---|---|
| `labctl lint FILE` | check the file |
| `labctl study show FILE` | list its arms |
| `labctl sweep FILE --plan-only` | print the plan on this host |
| `labctl schema study` | print the JSON schema for editors: start the file with \
`# yaml-language-server: $schema=PATH`. `labctl schema` lists the other kinds |

[Factors](factors.md) vary more than the tunings. [The method](method.md) explains the effect of \
`no_worse_than`, `stop` and `looks` on verdicts.
"""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join([_HEAD, *sections(_PARTS)])


if __name__ == "__main__":
    sys.stdout.write(page())
