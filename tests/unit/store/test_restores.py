"""What runs have shown of restored guests, kept for later ones on the same class of host."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from labctl.store.restores import Checked, remember, shown
from tests.unit.records import plan_of, run_of

RUN: dict[str, Any] = {
    "labctl": "0.1.0",
    "accelerator": "kvm",
    "host": {"kernel_release": "6.1", "qemu": "7.2", "libvirt": "9.0", "cpu_model": "A", "thp": ""},
    "image": {"name": "debian-13", "digest": "i"},
    "vcpus": 2,
    "memory_mib": 1024,
}
PLAN: dict[str, Any] = {
    "baseline": "baseline",
    "tunings": {
        "native": {"kind": "native", "restore": True, "digest": "n"},
        "baseline": {"kind": "guest", "restore": True, "digest": "b"},
        "pinned": {"kind": "guest", "restore": True, "digest": "p"},
        "pinned+booted": {"kind": "guest", "restore": False, "digest": "pb"},
    },
    "workloads": {
        "cpu": {"program": "sysbench-cpu", "parameters": {}, "primary": "e", "margin": 0.05}
    },
    "conditions": ["quiet", "neighbour"],
}
PASSED = Checked("pinned", "cpu", "quiet", passed=True)
FAILED = PASSED._replace(passed=False)
SHOWN = {"tuning": "pinned", "workload": "cpu", "condition": "quiet", "run": "r1"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where it is remembered that 'pinned' passed when all was quiet."""
    path = tmp_path / "state" / "checks.json"
    remember(path, "r1", run_of(RUN), plan_of(PLAN), [PASSED])
    return path


def changed(of: dict[str, Any], *keys: str, to: Any) -> dict[str, Any]:
    copy = deepcopy(of)
    inner = copy
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = to
    return copy


def test_what_passed_is_known_to_the_next_run_there_and_only_that(file: Path) -> None:
    assert shown(file, run_of(RUN), plan_of(PLAN)) == [SHOWN]


@pytest.mark.parametrize(
    ("keys", "to"),
    [
        (("host", "kernel_release"), "6.2"),
        (("host", "qemu"), "8.0"),
        (("host", "libvirt"), "10.0"),
        (("host", "cpu_model"), "B"),
        (("labctl",), "0.2.0"),
        (("accelerator",), "tcg"),
        (("image", "digest"), "other"),
        (("vcpus",), 4),
    ],
)
def test_on_another_class_of_host_it_was_not_shown(
    file: Path, keys: tuple[str, ...], to: Any
) -> None:
    assert shown(file, run_of(changed(RUN, *keys, to=to)), plan_of(PLAN)) == []


@pytest.mark.parametrize(
    ("keys", "to"),
    [
        (("tunings", "pinned", "digest"), "other"),
        (("tunings", "baseline", "digest"), "other"),
        (("tunings", "pinned", "restore"), False),
        (("workloads", "cpu", "parameters"), {"max_prime": 1}),
        (("workloads", "cpu", "primary"), "latency_p95"),
        (("workloads", "cpu", "margin"), 0.02),
        (("conditions",), ["neighbour"]),
    ],
)
def test_of_another_question_it_was_not_shown(file: Path, keys: tuple[str, ...], to: Any) -> None:
    assert shown(file, run_of(RUN), plan_of(changed(PLAN, *keys, to=to))) == []


def test_facts_that_change_by_themselves_and_larger_margins_make_no_difference(file: Path) -> None:
    run = changed(RUN, "host", "thp", to="never")
    assert shown(
        file, run_of(run), plan_of(changed(PLAN, "workloads", "cpu", "margin", to=0.1))
    ) == [SHOWN]


def test_a_tuning_of_the_same_definition_is_the_same_whatever_its_name(file: Path) -> None:
    tunings = {**PLAN["tunings"], "mine": PLAN["tunings"]["pinned"]}
    del tunings["pinned"]
    assert shown(file, run_of(RUN), plan_of({**PLAN, "tunings": tunings})) == [
        {**SHOWN, "tuning": "mine"}
    ]


def test_what_fails_later_is_forgotten_and_what_could_not_be_told_changes_nothing(
    file: Path,
) -> None:
    remember(file, "r2", run_of(RUN), plan_of(PLAN), [PASSED._replace(passed=None)])
    assert shown(file, run_of(RUN), plan_of(PLAN)) == [SHOWN]
    remember(
        file, "r3", run_of(RUN), plan_of(PLAN), [FAILED, PASSED._replace(condition="neighbour")]
    )
    assert shown(file, run_of(RUN), plan_of(PLAN)) == [
        {**SHOWN, "condition": "neighbour", "run": "r3"}
    ]


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 1}', '{"schema": 1, "checks": [7]}'])
def test_a_damaged_memory_shows_nothing_and_is_written_anew(file: Path, text: str) -> None:
    file.write_text(text)
    assert shown(file, run_of(RUN), plan_of(PLAN)) == []
    remember(file, "r2", run_of(RUN), plan_of(PLAN), [PASSED])
    assert shown(file, run_of(RUN), plan_of(PLAN)) == [{**SHOWN, "run": "r2"}]


def test_nothing_is_remembered_before_something_was_shown(tmp_path: Path) -> None:
    remember(
        tmp_path / "checks.json", "r1", run_of(RUN), plan_of(PLAN), [PASSED._replace(passed=None)]
    )
    assert list(tmp_path.iterdir()) == []
