"""Make the study of a question: tunings and workloads that a command line names."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labctl.base.errors import UsageError
from labctl.base.yamltext import YamlMapping
from labctl.store.records.plan_record import AbLabels
from labctl.study.programs import Programs
from labctl.study.studyfile import STANDARD_ROLES
from labctl.study.tunings import load_tuning

PLACE = Path("the command line")
"""Stands for a file in errors about a question."""

_SPARE_BLOCKS = 3
_QUICK_S = 2
_LOOKS = [10, 20]
_QUICK: Mapping[str, object] = {"duration_s": _QUICK_S, "looks": [10, 20, 30]}
"""Length and rules of benchmarks/pinning.yaml, which ends at the look that decides."""

_LONGEST_NAME = 60
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9+._-]*|native[+].*")
_WORDS = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Hold a study that no file has. `content`: the keys of its file; `words`: those of the command
    line that asks it, without its options."""

    name: str
    content: Mapping[str, object]
    words: tuple[str, ...] = ("sweep",)
    ab: AbLabels | None = None

    @property
    def mapping(self) -> YamlMapping:
        """Return the content as a file's reader gives it, without lines."""
        made = as_read(self.content)
        assert isinstance(made, YamlMapping)
        return made

    def fitted(self, programs: Programs) -> Question:
        """Return it with a quick trial that is long enough for each of its programs."""
        workloads, quick = self.content["workloads"], self.content["quick"]
        assert isinstance(workloads, Mapping | list)
        assert isinstance(quick, Mapping)
        given = workloads if isinstance(workloads, Mapping) else {}
        names = (given.get(name, {}).get("program", name) for name in workloads)
        least_s = (programs[name].least_s for name in names if name in programs)
        seconds = max([_QUICK_S, *map(math.ceil, least_s)])
        return replace(self, content={**self.content, "quick": {**quick, "duration_s": seconds}})

    @property
    def file_text(self) -> str:
        """Return the file that keeps it."""
        return "".join(f"{key}: {_flow(value)}\n" for key, value in self.content.items())


def as_read(value: Any) -> Any:
    """Return a value as a file's reader makes it, so that errors name keys."""
    if not isinstance(value, Mapping):
        return value
    return YamlMapping({key: as_read(item) for key, item in value.items()})


B = "B"
"""Arm of B, in a comparison of two programs or builds."""

_A = "A"
_NATIVE_B = f"native+{B}"


def ab_programs(
    name: str,
    a: Mapping[str, object],
    b: Mapping[str, object],
    labels: AbLabels,
    *,
    words: Sequence[str],
) -> Question:
    """Return the study that compares two programs, in the guest and natively.

    `a`, `b`: keys of their workloads in a study, of which the cells have the `name`; `words`: the
    command line that asks it.
    """
    other = f"{name}.{B}"
    content = {
        "title": f"Is B better than A in {name}?",
        "tunings": [_NATIVE_B, B],
        "define": {
            _NATIVE_B: {
                "extends": "native",
                "description": "Program B without a guest.",
                "workload": other,
            },
            B: {
                "extends": "baseline",
                "description": "Program B in the guest.",
                "twin": _NATIVE_B,
                "workload": other,
            },
        },
        "workloads": {name: dict(a), other: dict(b)},
        "conditions": ["quiet"],
        **_rest({B: [name]}),
    }
    return Question(
        name=_study_name(["ab", name]), content=content, words=("ab", *words), ab=labels
    )


def ab_builds(
    a: Mapping[str, str],
    b: Mapping[str, str],
    workloads: Mapping[str, Mapping[str, object]],
    labels: AbLabels,
    *,
    words: Sequence[str],
) -> Question:
    """Return the study that compares two builds of QEMU or of the guest's kernel. `a`, `b`: keys of
    a tuning, with the files. Each guest boots for itself, and none runs natively."""
    content = {
        "title": f"Is B better than A in {' and '.join(workloads)}?",
        "roles": {
            "baseline": _A,
            "control": _with(_A, "control"),
            "handicap": _with(_A, "handicap"),
            "native": None,
        },
        "tunings": [B],
        "define": {
            name: {
                "extends": "baseline",
                "description": f"The guest with build {name}.",
                "restore": False,
                **keys,
            }
            for name, keys in ((_A, a), (B, b))
        },
        "workloads": {one: dict(keys) for one, keys in workloads.items()},
        "conditions": ["quiet"],
        **_rest({B: list(workloads)}),
    }
    return Question(
        name=_study_name(["ab", *workloads]), content=content, words=("ab", *words), ab=labels
    )


def ab_images(
    a: str,
    b: str,
    workloads: Mapping[str, Mapping[str, object]],
    labels: AbLabels,
    *,
    words: Sequence[str],
) -> Question:
    """Return the study that compares two images, in guests and natively in their trees. Each guest
    boots for itself. Raises UsageError for an image compared with itself."""
    if a == b:
        raise UsageError(f"A and B are both '{a}'", hint="Name two images.")
    content = {
        "title": f"Is B better than A in {' and '.join(workloads)}?",
        "roles": {
            "native": STANDARD_ROLES.native,
            "baseline": _A,
            "control": _with(_A, "control"),
            "handicap": _with(_A, "handicap"),
        },
        "tunings": [_NATIVE_B, B],
        "define": {
            _A: {
                "extends": "baseline",
                "description": f"The guest of image {a}.",
                "restore": False,
            },
            _NATIVE_B: {
                "extends": "native",
                "description": f"The tree of image {b}.",
                "image": b,
            },
            B: {
                "extends": "baseline",
                "description": f"The guest of image {b}.",
                "restore": False,
                "twin": _NATIVE_B,
                "image": b,
            },
        },
        "guest": {"image": a},
        "workloads": {one: dict(keys) for one, keys in workloads.items()},
        "conditions": ["quiet"],
        **_rest({B: list(workloads)}),
    }
    return Question(
        name=_study_name(["ab", a, b, *workloads]), content=content, words=("ab", *words), ab=labels
    )


def ab_tunings(
    a: str, b: str, workloads: Mapping[str, Mapping[str, object]], *, words: Sequence[str]
) -> Question:
    """Return the study that compares tuning B with tuning A, which is its baseline. Raises
    UsageError for unknown ones, and for one compared with itself."""
    if a == b:
        raise UsageError(f"A and B are both '{a}'", hint="Name two tunings.")
    native = STANDARD_ROLES.native
    twins = dict.fromkeys(load_tuning(one).twin for one in (a, b))
    content = {
        "title": f"Is '{b}' better than '{a}' in {' and '.join(workloads)}?",
        "roles": {
            "native": native,
            "baseline": a,
            "control": _with(a, "control"),
            "handicap": _with(a, "handicap"),
        },
        "tunings": [*(twin for twin in twins if twin not in (None, native)), b],
        "workloads": {one: dict(keys) for one, keys in workloads.items()},
        **_rest({b: list(workloads)}),
    }
    return Question(
        name=_study_name(["ab", a, b, *workloads]),
        content=content,
        words=("ab", *words),
        ab=AbLabels(a=a, b=b, arm=b),
    )


def _with(tuning: str, role: str) -> str:
    """Return the name of a tuning in a role that checks the run."""
    return role if tuning == STANDARD_ROLES.baseline else f"{tuning}+{role}"


def _study_name(words: Iterable[str]) -> str:
    made = re.sub(r"[^A-Za-z0-9+._-]+", "-", "-".join(words))
    return made[:_LONGEST_NAME].strip("-+._")


def _rest(exercises: Mapping[str, Sequence[str]]) -> dict[str, object]:
    return {
        "spare_blocks": _SPARE_BLOCKS,
        # The question itself says what exercises them.
        "exercises": {name: list(workloads) for name, workloads in exercises.items()},
        "quick": dict(_QUICK),
    }


def question(
    tunings: Sequence[str],
    workloads: Mapping[str, Mapping[str, object]],
    *,
    name: str | None = None,
) -> Question:
    """Return the study that compares tunings with the baseline in these workloads, with the native
    twin of each tuning, the standard roles, and the looks of the study `pinning`.

    `workloads`: name to the keys of the workload in a study. Raises UsageError for an unknown
    tuning, and if none is left to compare.
    """
    roles = dict(STANDARD_ROLES).values()
    asked = [one for one in dict.fromkeys(tunings) if one not in roles]
    if not asked:
        raise UsageError(
            "no tuning to compare with the baseline",
            hint="Name one: --tuning pinned. 'labctl tuning list' lists them.",
        )
    twins = [load_tuning(one).twin for one in asked]
    arms = dict.fromkeys([*(twin for twin in twins if twin and twin not in roles), *asked])
    verb = "does" if len(asked) == 1 else "do"
    named = " and ".join(f"'{one}'" for one in asked)
    content = {
        "title": f"What {verb} {named} do in {' and '.join(workloads)}?",
        "tunings": list(arms),
        "workloads": {one: dict(keys) for one, keys in workloads.items()}
        if any(workloads.values())
        else list(workloads),
        "looks": _LOOKS,
        **_rest({one: list(workloads) for one in asked}),
    }
    return Question(name=name or _study_name([*asked, *workloads]), content=content)


def _flow(value: Any) -> str:
    """Return a value as one line of YAML."""
    match value:
        case Mapping():
            return f"{{{', '.join(f'{_flow(key)}: {_flow(item)}' for key, item in value.items())}}}"
        case list():
            return f"[{', '.join(map(_flow, value))}]"
        case str() if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
            return value
        case _:
            return json.dumps(value, ensure_ascii=False)
