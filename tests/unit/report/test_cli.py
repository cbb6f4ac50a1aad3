"""`labctl report` and `labctl run` as a user calls them."""

from __future__ import annotations

import fcntl
import json
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from labctl.analysis.verdicts.looks import until
from labctl.base import paths
from labctl.base.errors import BrokenError, HostError, LabctlError, UsageError
from labctl.base.stopping import UntilWidth
from labctl.cli.report import command as report_command
from labctl.cli.runs import command as run_command
from labctl.store.jsonfile import write_json
from labctl.store.run_folder import RunFolder
from tests.unit.analysis.alter import with_run
from tests.unit.factor_runs import factorial_run
from tests.unit.synthetic import synthetic_run, write_run


def call(command: click.Command, *arguments: str) -> Result:
    """Runs a command; what it raises is raised here, as labctl's own main() sees it."""
    result = CliRunner().invoke(command, arguments, standalone_mode=False)
    if isinstance(result.exception, LabctlError):
        raise result.exception
    assert result.exception is None, result.exception
    return result


@pytest.fixture
def results(folder: RunFolder) -> str:
    return str(folder.path.parent)


def test_a_run_is_found_by_name_and_by_path(folder: RunFolder, results: str) -> None:
    by_name = call(report_command, "example", "--results", results).output
    by_path = call(report_command, str(folder.path), "--results", "/nowhere").output
    assert by_name == by_path
    assert "Typical values" not in by_name
    full = call(report_command, "example", "--full", "--results", results).output
    assert "Typical values" in full


def test_an_unknown_run_gets_the_nearest_name(results: str) -> None:
    with pytest.raises(UsageError) as caught:
        call(report_command, "exmple", "--results", results)
    assert "example" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["/", "./", "..", "../"])
def test_a_folder_that_is_no_run_is_refused(results: str, name: str) -> None:
    with pytest.raises(UsageError, match="no run"):
        call(report_command, name, "--results", results)


def test_json_is_all_that_is_printed(results: str) -> None:
    output = call(report_command, "example", "--results", results, "--json").output
    assert json.loads(output)["run"] == "example"


def test_the_page_goes_where_it_is_asked_to(results: str, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    output = call(report_command, "example", "--results", results, "--html", str(target)).output
    assert output == f"Wrote {target}\n"
    assert target.read_text().startswith("<!DOCTYPE html>")


def test_a_page_without_a_folder_to_lie_in_is_refused(results: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        call(report_command, "example", "--results", results, "--html", str(tmp_path / "no" / "p"))


def test_the_table_says_where_the_runs_own_page_lies(folder: RunFolder, results: str) -> None:
    (folder.path / "report.html").write_text("")
    output = call(report_command, "example", "--results", results).output
    assert "".join(output.split()).endswith(str(folder.path / "report.html"))


def test_what_is_whole_is_reported_and_what_is_not_is_named(
    folder: RunFolder, results: str
) -> None:
    trial = folder.trial(7).path
    (trial / "trial.json").write_text('{"schema": 1, "num')
    (folder.trial(8).path / "samples.json").write_text("[]")
    output = call(report_command, "example", "--full", "--results", results).output
    report = json.loads(call(report_command, "example", "--results", results, "--json").output)
    assert "Typical values" in output
    assert any("0007/trial.json cannot be read" in text for text in report["problems"])
    assert any("0008/samples.json is incomplete" in text for text in report["problems"])
    assert "0007/trial.jsoncannotberead" in "".join(output.split())


@pytest.mark.parametrize("name", ["plan.json", "run.json"])
@pytest.mark.parametrize("text", ["", '{"schema": 1,', "[]", "\x00"])
def test_a_broken_record_is_named_and_the_rest_is_reported(
    folder: RunFolder, results: str, name: str, text: str
) -> None:
    (folder.path / name).write_text(text)
    report = json.loads(call(report_command, "example", "--results", results, "--json").output)
    assert any(name in problem for problem in report["problems"])
    assert report["levels"]
    for words in ([], ["--html", f"{results}/page.html"]):
        if name == "run.json":
            call(report_command, "example", "--results", results, *words)
            continue
        with pytest.raises(BrokenError, match=r"can't be judged: .*plan.json"):
            call(report_command, "example", "--results", results, *words)
    assert (Path(results) / "page.html").exists() is (name == "run.json")


def test_a_newer_runs_schema_is_refused(folder: RunFolder, results: str) -> None:
    write_json(folder.path / "run.json", {"schema": 99})
    with pytest.raises(UsageError, match="newer labctl") as caught:
        call(report_command, "example", "--results", results)
    assert caught.value.hint == "Update labctl."


def test_the_list_has_every_run_also_unreadable_ones(folder: RunFolder, results: str) -> None:
    newer = RunFolder.create(folder.path.parent, "newer")
    write_json(newer.path / "run.json", {"schema": 99})
    listed = json.loads(call(run_command, "list", "--results", results, "--json").output)
    runs = {run["run"]: run for run in listed["runs"]}
    assert {name: run["status"] for name, run in runs.items()} == {
        "newer": "unreadable",
        "example": "done",
    }
    assert runs["example"]["trials"] == {"planned": 176, "done": 175}
    assert "175 of 176" in call(run_command, "list", "--results", results).output


def test_an_empty_list_says_how_to_make_a_run(tmp_path: Path) -> None:
    output = call(run_command, "list", "--results", str(tmp_path)).output
    assert "labctl sweep" in output


def test_show_names_invalid_trials_with_their_reasons(results: str) -> None:
    output = call(run_command, "show", "example", "--results", results).output
    assert "vCPU 0 ran on CPUs 0-1, asked for CPU 1" in output
    shown = json.loads(call(run_command, "show", "example", "--results", results, "--json").output)
    assert len(shown["invalid_trials"]) == 2


def test_list_and_show_say_by_what_rule_a_run_may_end_and_did(tmp_path: Path) -> None:
    rule = UntilWidth(width=0.02, most_blocks=12)
    made = synthetic_run(blocks=12, stopping=rule, primary_only=True)
    stopped = {"blocks": 11, "why": "every one was narrow"}
    ended = replace(made, trials=until(made, 11).trials)
    write_run(tmp_path / "ended", with_run(ended, stopped=stopped))
    write_run(tmp_path / "going", with_run(made, status="running"))
    results = ("--results", str(tmp_path))
    listed = call(run_command, "list", *results).output
    assert "176 of 176" in listed
    assert "192 of at most 192" in listed
    shown = call(run_command, "show", "ended", *results).output
    assert "The run ended after 11 of up to 12 blocks: every one was narrow." in shown
    going = json.loads(call(run_command, "show", "going", *results, "--json").output)
    assert going["ending"].startswith("The run ends when every primary interval is within ±2 %")
    assert going["extensions"] == []


def test_rm_removes_nothing_without_being_told(folder: RunFolder, results: str) -> None:
    with pytest.raises(UsageError, match="would remove"):
        call(run_command, "rm", "example", "--results", results)
    assert folder.path.exists()


def test_rm_yes_removes(folder: RunFolder, results: str) -> None:
    call(run_command, "rm", "example", "--results", results, "--yes")
    assert not folder.path.exists()


def test_rm_removes_nothing_when_one_of_the_names_is_unknown(
    folder: RunFolder, results: str
) -> None:
    with pytest.raises(UsageError):
        call(run_command, "rm", "example", "other", "--results", results, "--yes")
    assert folder.path.exists()


def test_rm_refuses_a_run_that_is_being_measured(
    folder: RunFolder, results: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "lock"
    holder = {"pid": 4711, "since": "today", "what": "sweep", "run_folder": str(folder.path)}
    lock.write_text(json.dumps(holder))
    monkeypatch.setattr(paths, "host_lock", lambda: lock)
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(HostError, match="being measured by process 4711"):
            call(run_command, "rm", "example", "--results", results, "--yes")
    # After SIGKILL the text stays in the file, the kernel's lock doesn't.
    call(run_command, "rm", "example", "--results", results, "--yes")
    assert not folder.path.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--csv", "--parquet"], "expected one --format"),
        (["--out", "x"], "--out needs a format"),
        (["--csv", "--html", "x", "--out", "/no/such/folder/x"], "there is no folder"),
    ],
)
def test_a_format_asked_for_in_no_way_to_give_it_is_refused_before_anything_is_written(
    results: str, options: list[str], said: str
) -> None:
    with pytest.raises((click.UsageError, UsageError), match=said):
        CliRunner().invoke(
            report_command,
            ["example", "--results", results, *options],
            standalone_mode=False,
            catch_exceptions=False,
        )
    assert not Path("x").exists()


def test_the_page_and_a_format_can_be_had_at_once(results: str, tmp_path: Path) -> None:
    page, metrics = tmp_path / "page.html", tmp_path / "labctl.prom"
    options = ("--html", str(page), "--prometheus", "--out", str(metrics))
    output = call(report_command, "example", "--results", results, *options).output
    assert output == f"Wrote {page}\nWrote {metrics}\n"
    assert page.is_file()
    assert metrics.is_file()


def test_pictures_show_the_two_factors_that_are_asked_for(tmp_path: Path) -> None:
    write_run(tmp_path / "whole", factorial_run())
    page = tmp_path / "page.html"
    asked = ("whole", "--results", str(tmp_path), "--html", str(page))
    for words, title in (
        ((), "policy by processes"),
        (("--factors", "kernel,policy"), "kernel by"),
    ):
        call(report_command, *asked, *words)
        assert f'id="factors-interaction">{title}' in page.read_text()
    with pytest.raises(UsageError, match="the run has no factor 'polcy'"):
        call(report_command, *asked, "--factors", "kernel,polcy")
