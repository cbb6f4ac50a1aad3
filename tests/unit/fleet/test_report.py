"""`labctl fleet report` on folders as a fleet sweep leaves them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_of
from prometheus_client.parser import text_string_to_metric_families as plain_of

from labctl.base.errors import LabctlError
from labctl.cli.main import cli
from labctl.fleet import table as landing
from labctl.fleet.table import pieces
from labctl.store.archive import RunArchive
from tests.unit.example import ARCHIVE
from tests.unit.fleet.fleets import MadeHost, add_host, hosts, make_fleet

GAIN = {"pinned": 1.2}
DONE = '{"schema": 1, "status": "done", "batch": 1}'
DOCUMENTED = Path(__file__).parents[3] / "docs/fleet-report.md"


def run(*words: object) -> Result:
    result = CliRunner().invoke(cli, ["fleet", *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def said(*words: object) -> Any:
    return json.loads(run("report", *words, "--json").stdout)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    members = hosts(6)
    members[4] = replace(members[4], speed=0.5)
    lost = MadeHost(name="h7", status="unreachable", reason="no route to host")
    return make_fleet(tmp_path_factory.mktemp("fleets") / "fleet-1", [*members, lost], effects=GAIN)


@pytest.fixture
def copy(fleet: Path, tmp_path: Path) -> Path:
    """The fleet before its first report."""
    kept = shutil.ignore_patterns("data")
    return Path(shutil.copytree(fleet, tmp_path / "fleet-2", ignore=kept))


def test_hosts_that_gain_may_take_the_tuning_and_the_slow_one_is_named(fleet: Path) -> None:
    found = said(fleet)
    assert [(one["tuning"], one["code"]) for one in found["answers"]] == [("pinned", "may take it")]
    slow = {
        point["host"] for level in found["levels"] for point in level["by_host"] if point["apart"]
    }
    assert slow == {"h5"}
    assert not any(point["apart"] for one in found["effects"] for point in one["by_host"])
    assert (found["hosts"], found["measured"]) == (7, 6)


def _keys(value: Any) -> set[str]:
    if isinstance(value, list):
        return {key for item in value for key in _keys(item)}
    if isinstance(value, dict):
        return {*value} | {key for item in value.values() for key in _keys(item)}
    return set()


def test_every_key_of_the_json_is_documented(fleet: Path) -> None:
    found = said(fleet)
    values_of_facts = {value for values in found["facts"].values() for value in values}
    keys = _keys(found) - values_of_facts - {*found["facts"]}
    text = DOCUMENTED.read_text().partition("## `--json`")[2]
    assert {key for key in keys if f"`{key}`" not in text} == set()


def test_the_terminal_says_the_same(fleet: Path, tmp_path: Path) -> None:
    text = run("report", fleet).stdout
    assert "The A/A control failed on 0 of 6 hosts." in text.splitlines()[1]
    policy = tmp_path / "policy.yaml"
    rule = "rules: [{tuning: pinned, metric: ipc, above: 1}]"
    policy.write_text(f"undecided: open\nleast_hosts: 80 %\n{rule}\n")
    assert said(fleet, "--policy", policy)["least_share"] == 0.8
    assert "All hosts may take 'pinned'" in text
    assert "h5" in text.partition("Outlier hosts")[2]
    assert "no route to host" in text


def test_recorded_runs_of_real_guests_are_pooled(tmp_path: Path) -> None:
    """The same run four times, so that its own effect and interval come back."""
    folder = make_fleet(tmp_path / "real", [replace(one, status="waiting") for one in hosts(4)])
    content = json.loads((folder / "fleet.json").read_text())
    recorded = RunArchive(ARCHIVE).json_and_digest("plan.json")[0]
    content |= {"study_digest": recorded["study_digest"]}
    (folder / "fleet.json").write_text(json.dumps(content))
    for one in hosts(4):
        shutil.copy(ARCHIVE, folder / "hosts" / one.name / "run.tar.xz")
        (folder / "hosts" / one.name / "state.json").write_text(DONE)
    found = said(folder)
    report = json.loads(CliRunner().invoke(cli, ["report", str(ARCHIVE), "--json"]).stdout)
    primary = [one for one in report["comparisons"] if one["role"] == "primary"]
    assert len(found["effects"]) == len(primary) > 0
    for here, there in zip(found["effects"], primary, strict=True):
        assert (here["tuning"], here["workload"]) == (there["tuning"], there["workload"])
        estimate = there.get("ratio", there.get("difference"))
        assert [point["estimate"] for point in here["by_host"]] == pytest.approx([estimate] * 4)
        assert here["mean"] == pytest.approx(estimate)


@pytest.mark.parametrize(
    ("kind", "parse"), [("openmetrics", openmetrics_of), ("prometheus", plain_of)]
)
def test_monitoring_reads_the_same_numbers(
    fleet: Path, tmp_path: Path, kind: str, parse: Callable[[str], Iterable[Metric]]
) -> None:
    file = tmp_path / "fleet.prom"
    run("report", fleet, "--format", kind, "--out", file)
    families = {family.name: family for family in parse(file.read_text())}
    samples = {
        name: [(dict(one.labels), one.value) for one in family.samples]
        for name, family in families.items()
    }
    assert all(
        labels["fleet"] == "fleet-1" and labels["study"] == "pinning"
        for found in samples.values()
        for labels, _ in found
    )
    states = {labels["status"]: value for labels, value in samples["labctl_fleet_hosts"]}
    assert states == {"done": 6, "unreachable": 1}
    [answer] = [
        labels["labctl_fleet_answer"]
        for labels, value in samples["labctl_fleet_answer"]
        if value == 1
    ]
    assert answer == "may take it"
    assert {labels["host"] for labels, _ in samples["labctl_fleet_outlier"]} == {"h5"}
    json_of = {(one["tuning"], one["workload"]): one for one in said(fleet)["effects"]}
    for key, name in (("mean", ""), ("high", "_high"), ("prediction_low", "_prediction_low")):
        for labels, value in samples[f"labctl_fleet_effect{name}_ratio"]:
            assert value == json_of[labels["tuning"], labels["workload"]][key]


def test_the_page_is_whole_and_loads_nothing(fleet: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run("report", fleet, "--html", page)
    text = page.read_text()
    assert "All hosts may take" in text
    assert text.count('class="estimate"') == 12
    for outside in ("<script", "http://", "https://", "url("):
        assert outside not in text


def test_a_host_that_arrives_later_is_taken_in_with_the_next_report(copy: Path) -> None:
    assert said(copy)["measured"] == 6
    shutil.rmtree(copy / "hosts/h7")
    add_host(copy, MadeHost(name="h7"), 7, effects=GAIN)
    assert said(copy)["measured"] == 7


def test_runs_that_were_taken_in_are_not_read_again(copy: Path) -> None:
    first = said(copy)
    for archive in copy.glob("hosts/*/run.tar.xz"):
        archive.unlink()
    assert said(copy) == first


def test_rows_have_the_runs_own_name_and_not_that_of_its_archive(copy: Path) -> None:
    said(copy)
    state = json.loads((copy / "hosts/h2/state.json").read_text())
    table = pq.read_table(copy / "data/effects/day=2024-01-01/host-h2.parquet", partitioning=None)
    assert set(table["run"].to_pylist()) == {state["run"]}


def test_files_are_looked_at_a_second_time_only_when_a_run_has_arrived(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []

    def counting(*args: Any) -> Any:
        looked.append(args)
        return pieces(*args)

    monkeypatch.setattr(landing, "pieces", counting)
    said(copy)
    assert len(looked) == 2
    said(copy)
    assert len(looked) == 3


def test_tables_of_before_a_column_came_are_read(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = landing._effects_table
    monkeypatch.setattr(landing, "_effects_table", lambda run: whole(run).drop(["control"]))
    assert said(copy)["measured"] == 6
    monkeypatch.undo()
    assert said(copy)["measured"] == 6


def _cut(folder: Path) -> None:
    archive = folder / "hosts/h2/run.tar.xz"
    archive.write_bytes(archive.read_bytes()[:2000])


def _garbage(folder: Path) -> None:
    (folder / "hosts/h2/run.tar.xz").write_bytes(b"\xfd7zXZ\0 and nothing that was packed")


def _gone(folder: Path) -> None:
    (folder / "hosts/h2/run.tar.xz").unlink()


def _other_study(folder: Path) -> None:
    content = json.loads((folder / "fleet.json").read_text())
    (folder / "fleet.json").write_text(json.dumps(content | {"study_digest": "1" * 64}))


def _state_cut(folder: Path) -> None:
    (folder / "hosts/h2/state.json").write_text('{"status": "do')


def _state_unfit(folder: Path) -> None:
    (folder / "hosts/h2/state.json").write_text('{"status": 7}')


@pytest.mark.parametrize("damage", [_cut, _garbage, _gone, _state_cut, _state_unfit])
def test_a_host_whose_run_cannot_be_read_is_named_and_the_others_are_pooled(
    copy: Path, damage: Callable[[Path], None]
) -> None:
    damage(copy)
    found = said(copy)
    assert found["measured"] == 5
    state = next(one for one in found["states"] if one["host"] == "h2")
    assert state["status"] == "failed"
    assert state["reason"]


def test_runs_of_another_study_are_not_pooled(copy: Path) -> None:
    _other_study(copy)
    found = said(copy)
    assert found["measured"] == 0
    assert "another study" in found["states"][0]["reason"]
    with pytest.raises(LabctlError, match="no host of fleet-2"):
        run("report", copy)


def test_a_fleet_is_found_by_its_name_among_the_runs(fleet: Path) -> None:
    assert "h5" in run("report", fleet.name, "--results", fleet.parent).stdout


def test_no_outliers_are_spoken_of_where_no_host_was_measured(tmp_path: Path) -> None:
    lost = [MadeHost(name=f"h{n}", status="unreachable", reason="no route") for n in (1, 2)]
    folder = make_fleet(tmp_path / "lost", lost)
    result = CliRunner().invoke(cli, ["fleet", "report", str(folder)])
    assert isinstance(result.exception, LabctlError)
    assert "no route" in result.stdout
    assert "outlier" not in result.stdout.lower()


def test_a_folder_that_is_no_fleets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabctlError, match=r"has no fleet\.json"):
        run("report", tmp_path)


def test_a_host_named_as_a_path_leads_nowhere(copy: Path) -> None:
    content = json.loads((copy / "fleet.json").read_text())
    content["batches"].append(["../../elsewhere", "..", ""])
    (copy / "fleet.json").write_text(json.dumps(content))
    assert said(copy)["hosts"] == 7


def test_what_a_host_says_is_text_on_the_page_and_on_a_terminal(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\x1b[31m"
    members = [replace(one, facts={"kernel_release": evil}) for one in hosts(4)]
    lost = MadeHost(name="h5", status="unreachable", reason=evil)
    folder = make_fleet(tmp_path / "evil", [*members, lost], effects=GAIN)
    run("report", folder, "--html", tmp_path / "page.html")
    page, terminal = (tmp_path / "page.html").read_text(), run("report", folder).stdout
    assert page.count("&lt;script&gt;alert(1)") >= 2, "the fact and the reason"
    assert "<script" not in page
    # A terminal takes a tag for the text that it is.
    assert "<script>alert(1)</script>" in terminal
    for text in (page, terminal):
        assert "\x1b" not in text
