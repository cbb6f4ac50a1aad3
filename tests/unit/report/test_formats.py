"""Every format of `labctl report`, by its table: printed, written, and what none of them does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from labctl.base.wording import printable
from labctl.cli.report import command
from labctl.report.export.formats import FORMATS, Format
from labctl.store.records.plan_record import PlanRecord
from labctl.store.records.run_record import RunRecord
from labctl.store.run_folder import LoadedRun
from labctl.store.samples import Unavailable
from tests.unit.analysis.alter import with_run
from tests.unit.synthetic import synthetic_run, write_run

HOSTILE = "-\x1b]0;title\x07\u202e\x9b31m"

every_format = pytest.mark.parametrize("one", FORMATS, ids=[one.name for one in FORMATS])


def hostile_run() -> LoadedRun:
    """A run in which all that comes from elsewhere would speak to a terminal."""
    run = with_run(synthetic_run(blocks=1), study=HOSTILE, accelerator=HOSTILE, status=HOSTILE)
    trials = [
        replace(
            trial,
            record=replace(trial.record, cell={**trial.record.cell, "condition": HOSTILE}),
            readings=(*trial.readings, Unavailable(metric="ipc", reason=HOSTILE)),
        )
        for trial in run.trials
    ]
    return replace(run, trials=tuple(trials))


@every_format
def test_it_is_printed_or_written_whole(tmp_path: Path, one: Format) -> None:
    folder = write_run(tmp_path / "example", synthetic_run(blocks=2))
    asked = [str(folder.path), one.option]
    printed = CliRunner().invoke(command, asked, standalone_mode=False).stdout_bytes
    target = tmp_path / "out" / "file"
    target.parent.mkdir()
    answer = CliRunner().invoke(command, [*asked, "--out", str(target)], standalone_mode=False)
    assert answer.output == f"Wrote {target}\n"
    assert target.read_bytes() == printed == b"".join(one.pieces(folder.load(), ()))
    assert [path.name for path in target.parent.iterdir()] == ["file"]


@every_format
def test_it_has_a_name_for_format_and_an_older_option(tmp_path: Path, one: Format) -> None:
    run = str(write_run(tmp_path / "example", synthetic_run(blocks=2)).path)
    by_name, by_option = (
        CliRunner().invoke(command, [run, *words], standalone_mode=False).stdout_bytes
        for words in (("--format", one.name), (one.option,))
    )
    assert by_name == by_option != b""


def test_the_page_is_a_format_for_a_file(tmp_path: Path) -> None:
    run = str(write_run(tmp_path / "example", synthetic_run(blocks=2)).path)
    pages = [tmp_path / "new.html", tmp_path / "old.html"]
    for words in (("--format", "html", "--out", str(pages[0])), ("--html", str(pages[1]))):
        CliRunner().invoke(command, [run, *words], standalone_mode=False, catch_exceptions=False)
    assert pages[0].read_text() == pages[1].read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--format", "html"), "needs '--out FILE'"),
        (("--format", "html", "--html", "x", "--out", "y"), "not '--html'"),
        (("--format", "json", "--csv"), "one --format"),
        (("--format", "html", "--csv", "--out", "y"), "one --format"),
        (("--out", "y"), "--out needs a format"),
        (("--format", "junit"), "'junit' is not one of"),
    ],
    ids=lambda words: "_".join(words) if isinstance(words, tuple) else "",
)
def test_formats_that_exclude_each_other_are_wrong_usage(words: tuple[str, ...], says: str) -> None:
    error = CliRunner().invoke(command, ["run", *words], standalone_mode=False).exception
    assert says in str(error)


@every_format
def test_it_stands_in_the_help(one: Format) -> None:
    text = CliRunner().invoke(command, ["--help"]).output
    assert " ".join((one.option, one.help)) in " ".join(text.split())


@every_format
def test_no_control_character_reaches_a_terminal_through_it(one: Format) -> None:
    data = b"".join(one.pieces(hostile_run(), ()))
    if one.is_text:
        for line in data.decode().splitlines():
            assert printable(line) == line


@every_format
@pytest.mark.parametrize("of", ["run.json", "trials"])
def test_it_holds_of_a_run_what_is_there(one: Format, of: str) -> None:
    run = synthetic_run(blocks=2)
    left = (
        replace(run, run=RunRecord(), plan=PlanRecord())
        if of == "trials"
        else replace(run, trials=())
    )
    assert b"".join(one.pieces(left, ()))
