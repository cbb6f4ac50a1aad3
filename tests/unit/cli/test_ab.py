"""`labctl ab` as a user calls it, short of guests."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from labctl.cli.ab import command
from labctl.cli.parts import plan_only
from labctl.run.commands import sweep as module
from labctl.run.commands.sweep import command as recorded_command
from labctl.run.planning import builds
from labctl.run.planning.plan import plan_sweep
from labctl.store.run_folder import RunFolder
from tests.unit.analysis.test_ab import ab_run
from tests.unit.cli.conftest import Labctl
from tests.unit.domain import hosts
from tests.unit.records import plan_from_file
from tests.unit.run.asked import plan_on
from tests.unit.synthetic import write_run

PROGRAMS = ("ab", "--command", "sh -c 'echo 1'", "--command", "sh -c 'echo 2'", "--once")


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_on(monkeypatch, hosts.FOUR_CPUS)


def planned(labctl: Labctl, *words: str) -> dict[str, Any]:
    said = labctl(*words, "--plan-only", "--seed", "5", "--json")
    assert said.code == 0, said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


def test_two_programs_are_arms_on_both_sides_in_one_place(labctl: Labctl) -> None:
    plan = planned(labctl, *PROGRAMS)
    assert [*plan["tunings"]] == ["native", "baseline", "control", "handicap", "native+B", "B"]
    assert plan["tunings"]["B"]["twin"] == "native+B"
    (name,) = {trial["cell"]["workload"] for trial in plan["trials"]}
    assert [*plan["workloads"]] == [name, f"{name}.B"]
    assert plan["conditions"] == ["quiet"]
    assert len(plan["trials"]) == 10 * 6
    assert plan["ab"] == {"a": "sh -c 'echo 1'", "b": "sh -c 'echo 2'", "arm": "B"}
    for key in ("foreseen", "expected_time", "commands"):
        del plan[key]
    made = plan_from_file(plan)
    for arm, runs in (("baseline", name), ("native", name), ("control", name), ("handicap", name)):
        assert made.workload_of({"tuning": arm, "workload": name}) == runs
    for arm in ("B", "native+B"):
        assert made.workload_of({"tuning": arm, "workload": name}) == f"{name}.B"


@pytest.mark.parametrize(
    "words",
    [
        (*PROGRAMS, "--margin", "2%", "--looks", "10,20"),
        ("ab", "--tuning", "pinned", "--tuning", "pinned+fifo", "redis-get", "--quick"),
        ("ab", "--image", "debian-12", "--image", "debian-13", "sysbench-cpu", "--margin", "2%"),
    ],
)
def test_the_command_that_a_run_records_plans_the_same(
    labctl: Labctl, words: tuple[str, ...]
) -> None:
    plan = planned(labctl, *words)
    asked = asked_by(labctl, *words)
    line = recorded_command(asked, plan_sweep(asked).plan)
    assert line[:2] == ["labctl", "ab"]
    assert planned(labctl, *line[1:])["digest"] == plan["digest"]


def test_two_tunings_are_baseline_and_arm_with_checks_of_the_first(labctl: Labctl) -> None:
    plan = planned(labctl, "ab", "--tuning", "pinned", "--tuning", "pinned+fifo", "redis-get")
    assert (plan["baseline"], plan["control"]) == ("pinned", "pinned+control")
    assert plan["handicap"] == "pinned+handicap"
    assert {"native", "native+pinned", "native+fifo", "pinned+fifo"} <= {*plan["tunings"]}
    assert plan["ab"]["arm"] == "pinned+fifo"
    plan = planned(labctl, "ab", "--tuning", "baseline", "--tuning", "pinned", "redis-get")
    assert (plan["control"], plan["handicap"]) == ("control", "handicap")


def test_two_images_have_arms_on_both_sides_and_boot_for_themselves(labctl: Labctl) -> None:
    words = ("ab", "--image", "debian-12", "--image", "debian-13", "sysbench-cpu")
    plan = planned(labctl, *words)
    arms = plan["tunings"]
    assert [*arms] == ["native", "A", "A+control", "A+handicap", "native+B", "B"]
    assert not any(arms[name]["restore"] for name in ("A", "A+control", "A+handicap", "B"))
    assert (arms["A"]["twin"], arms["B"]["twin"]) == ("native", "native+B")
    assert plan["guest"]["image"] == "debian-12"
    assert {name: one.get("image") for name, one in plan["define"].items()} == {
        "A": None,
        "native+B": "debian-13",
        "B": "debian-13",
    }
    made = plan_sweep(asked_by(labctl, *words))
    assert made.recipe.name == "debian-12"
    assert {name: one.name for name, one in made.recipes.items()} == {
        "native+B": "debian-13",
        "B": "debian-13",
    }


def asked_by(labctl: Labctl, *words: str) -> Any:
    """Return the request of a command line."""
    asked: list[Any] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plan_only, "show_plan", lambda request, as_json: asked.append(request))
        assert labctl(*words, "--plan-only", "--seed", "5").code == 0
    return asked[0]


@pytest.fixture
def qemus(tmp_path: Path) -> tuple[str, str]:
    """Two programs that say that they are QEMU."""
    for name in ("old", "new"):
        path = tmp_path / f"qemu-{name}"
        path.write_text(f"#!/bin/sh\necho 'QEMU emulator version 9.0 ({name})'\n")
        path.chmod(0o755)
    return str(tmp_path / "qemu-old"), str(tmp_path / "qemu-new")


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "doubt", lambda path: None)
    monkeypatch.setattr(builds, "is_script", lambda path: False)


@pytest.mark.usefixtures("trusted")
def test_two_builds_of_qemu_boot_for_themselves_and_are_hashed(
    labctl: Labctl, qemus: tuple[str, str]
) -> None:
    old, new = qemus
    plan = planned(labctl, "ab", "--qemu", old, "--qemu", new, "sysbench-cpu")
    assert [*plan["tunings"]] == ["A", "A+control", "A+handicap", "B"]
    assert not any(arm["restore"] for arm in plan["tunings"].values())
    assert plan["native"] is None
    assert [plan["builds"][path]["version"] for path in (old, new)] == ["9.0 (old)", "9.0 (new)"]
    digest = hashlib.sha256(Path(new).read_bytes()).hexdigest()
    assert plan["builds"][new]["sha256"] == digest
    assert plan["define"]["B"]["emulator"] == new
    Path(new).write_text(Path(new).read_text() + "# another\n")
    again = planned(labctl, "ab", "--qemu", old, "--qemu", new, "sysbench-cpu")
    assert again["digest"] != plan["digest"]


@pytest.mark.usefixtures("trusted")
def test_what_is_not_a_qemu_is_refused(labctl: Labctl, qemus: tuple[str, str]) -> None:
    said = labctl("ab", "--qemu", qemus[0], "--qemu", "/bin/true", "sysbench-cpu", "--plan-only")
    assert (said.code, "is not a QEMU binary" in said.err) == (125, True)
    said = labctl("ab", "--kernel", "/bin/true", "--kernel", qemus[0], "hackbench", "--plan-only")
    assert (said.code, "is not a Linux kernel" in said.err) == (125, True)


def test_a_script_that_starts_qemu_is_refused_with_the_remedy(
    labctl: Labctl, qemus: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds, "doubt", lambda path: None)
    said = labctl("ab", "--qemu", qemus[0], "--qemu", qemus[1], "sysbench-cpu", "--plan-only")
    assert (said.code, "is a script" in said.err, "patchelf" in said.err) == (125, True, True)


def test_a_build_that_others_can_change_is_not_run(
    labctl: Labctl, qemus: tuple[str, str], tmp_path: Path
) -> None:
    Path(qemus[0]).chmod(0o777)
    said = labctl("ab", "--qemu", qemus[0], "--qemu", qemus[1], "sysbench-cpu", "--plan-only")
    assert said.code == 125
    assert "is not trusted" in said.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--command", "true"), "got 1 --command"),
        (("--command", "true", "--tuning", "pinned"), "got 1 --command, 1 --tuning"),
        (("--qemu", "/none", "--qemu", "/none"), "/none"),
        ((), "expected A and B"),
        (("--tuning", "pinned", "--tuning", "pinned+fifo"), "a workload is missing"),
        (("--tuning", "pinned", "--tuning", "pinned", "redis-get"), "A and B are both 'pinned'"),
        (("--image", "debian-12", "--image", "debian-12", "redis-get"), "both 'debian-12'"),
        (("--image", "debian-12", "--image", "debian-14", "redis-get"), "image recipe 'debian-14'"),
        (("--image", "debian-12", "--image", "debian-13"), "a workload is missing"),
        (("--tuning", "pined", "--tuning", "pinned", "redis-get"), "no tuning 'pined'"),
        (("--command", "true", "--command", "false", "redis-get"), "exclude each other"),
        (("--tuning", "pinned", "--tuning", "booted", "redis-get", "--once"), "needs --command"),
        (("--command", "true", "--command", "false", "--margin", "much"), "--margin"),
        (("--colour",), "--colour"),
    ],
)
def test_what_cannot_be_compared_is_skipped_by_bisect(
    labctl: Labctl, words: tuple[str, ...], said: str
) -> None:
    found = labctl("ab", *words)
    assert found.code == 125
    assert said in found.err


@pytest.mark.parametrize(("speed", "code"), [(1.2, 0), (1.0, 0), (0.8, 1)])
def test_the_status_of_a_run_is_that_of_its_answer(
    labctl: Labctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, speed: float, code: int
) -> None:
    def sweep(request: Any, listener: Any, judging: Any) -> RunFolder:
        return write_run(tmp_path / "results" / "made-up", ab_run(speed, speed))

    monkeypatch.setattr(module, "sweep", sweep)
    said = labctl(*PROGRAMS, "--quiet")
    assert said.code == code
    assert "(interaction" in " ".join(said.out.split())


def test_the_json_report_holds_the_answer(
    labctl: Labctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def sweep(request: Any, listener: Any, judging: Any) -> RunFolder:
        return write_run(tmp_path / "results" / "made-up", ab_run(1.2, 1.2))

    monkeypatch.setattr(module, "sweep", sweep)
    report = json.loads(labctl(*PROGRAMS, "--json", "--quiet").out)
    (place,) = report["ab"]["places"]
    assert (report["ab"]["outcome"], place["depends_on_virtualization"]) == ("better", "no")


def test_its_options_are_those_of_a_sweep() -> None:
    names = [option for one in command.params for option in one.opts]
    assert {"--quick", "--looks", "--metric", "--accel", "--plan-only"} <= {*names}
    assert len(names) == len({*names})
