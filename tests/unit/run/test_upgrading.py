"""What older versions wrote is read by this one: runs, half-finished sweeps, the undo journal.

The files are those of `tests/unit/fixtures/versions`; docs/upgrading.md says how one is added.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from labctl.analysis.judge import judge
from labctl.analysis.verdicts.table import Verdict
from labctl.base.errors import BrokenError
from labctl.host.settings.journal import Journal
from labctl.report.export.json_report import report_json
from labctl.report.page.report_page import page
from labctl.run.commands import sweep as module
from labctl.run.commands.sweep import sweep
from labctl.run.planning.planned import Planned
from labctl.store.run_folder import RunFolder, RunLog
from labctl.study.load_study import Overrides
from tests.unit.domain import hosts
from tests.unit.records import write_run_json
from tests.unit.run.asked import plan_on, request

VERSIONS = Path(__file__).parents[1] / "fixtures" / "versions"
RUNS = sorted(path.parent.name for path in VERSIONS.glob("*/run.json"))
JOURNALS = sorted(path.name for path in VERSIONS.glob("*journal*.jsonl"))

LEFT = {
    "0.1.0-extension-interrupted": (20, 15),
    "0.1.0-interrupted": (160, 9),
    "0.1.0-looks": (75, 5),
}
"""Planned trials of each half-finished run, and those that are done."""
TOO_OLD = "0.1.0-draft"
"""Written before plans had all that goes into their digest: read, and not gone on with."""


@pytest.fixture
def _host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The two CPUs that the runs were planned for; nothing real is started or changed."""
    plan_on(monkeypatch, hosts.TWO_CPUS)
    monkeypatch.setattr(module, "host_lock", lambda: tmp_path / "lock")
    monkeypatch.setattr(module, "clean_up", lambda places, listener: None)
    monkeypatch.setattr(module, "check_host", lambda request, planned, path: None)


def old_run(tmp_path: Path, name: str) -> RunFolder:
    shutil.copytree(VERSIONS / name, tmp_path / "results" / name)
    return RunFolder(tmp_path / "results" / name)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_each_version_is_read_whole_judged_and_shown(tmp_path: Path, name: str) -> None:
    folder = old_run(tmp_path, name)
    loaded = folder.load()
    assert [text for text in loaded.problems if "0010" not in text] == []
    judgement = judge(loaded)
    assert {c.verdict for c in judgement.comparisons} <= {None, *Verdict}
    assert report_json(loaded, judgement)["labctl"] == "0.1.0"
    assert "Reproducing the run" in page(loaded, judgement, folder.path)


@pytest.mark.usefixtures("_host")
@pytest.mark.parametrize("name", LEFT)
def test_a_half_finished_sweep_goes_on_with_what_is_left_and_its_plan_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = old_run(tmp_path, name)
    before = {path.name: path.read_bytes() for path in folder.path.glob("plan*.json")}
    found: list[tuple[int, int]] = []

    def carry_out(asked: Any, planned: Planned, log: RunLog, *others: Any) -> None:
        whole, damaged = log.folder.records(planned.plan.record())
        assert damaged == []
        found.append((len(planned.plan.trials), len(whole)))

    monkeypatch.setattr(module, "measure", carry_out)
    sweep(request(tmp_path, resume=name), lambda event: None)
    assert found == [LEFT[name]]
    assert {path.name: path.read_bytes() for path in folder.path.glob("plan*.json")} == before
    assert folder.read_run().to_json()["status"] == "done"


@pytest.mark.usefixtures("_host")
def test_a_run_of_an_older_version_is_extended_beside_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "0.1.0-extension-interrupted"
    folder = old_run(tmp_path, name)
    # As it was before it was extended: finished after two blocks.
    (folder.path / "plan.2.json").unlink()
    for number in range(11, 16):
        shutil.rmtree(folder.trial(number).path)
    write_run_json(folder, {**folder.read_run().to_json(), "status": "done"})
    plans: list[Planned] = []
    monkeypatch.setattr(module, "measure", lambda asked, planned, *others: plans.append(planned))
    asked = request(tmp_path, extend=name, overrides=Overrides(blocks=1))
    sweep(asked, lambda event: None)
    (planned,) = plans
    assert planned.added is not None
    assert (planned.plan.blocks, len(planned.plan.trials)) == (3, 15)


@pytest.mark.usefixtures("_host")
def test_a_plan_from_before_the_promise_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    folder = old_run(tmp_path, TOO_OLD)
    before = (folder.path / "run.json").read_bytes()
    with pytest.raises(BrokenError, match="the plan was changed"):
        sweep(request(tmp_path, resume=TOO_OLD), lambda event: None)
    assert (folder.path / "run.json").read_bytes() == before


def test_every_recorded_run_is_tried() -> None:
    assert {*LEFT, TOO_OLD} == {*RUNS}


@pytest.mark.parametrize("name", JOURNALS)
def test_a_journal_of_each_version_tells_what_is_pending(tmp_path: Path, name: str) -> None:
    shutil.copy(VERSIONS / name, tmp_path / "journal.jsonl")
    (entry,) = Journal(tmp_path / "journal.jsonl").pending()
    assert (entry.id, entry.old, entry.new) == ("b", "10", "1")
