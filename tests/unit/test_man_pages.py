"""The man pages, which come from the commands."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from tools import man_pages


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return dict(man_pages.pages())


def test_each_command_with_options_has_a_page(pages: dict[str, str]) -> None:
    assert {"labctl.1", "labctl-sweep.1", "labctl-run.1", "labctl-run-import.1"} <= set(pages)
    assert "labctl-completion.1" not in pages


def test_a_page_names_each_option_under_its_heading(pages: dict[str, str]) -> None:
    page = pages["labctl-report.1"]
    formats = page.partition(".SS Formats\n")[2].partition(".SS")[0]
    assert "\\fB\\-\\-format\\fR [\\fIjson\\fR|" in formats
    assert "\\fB\\-\\-metric\\fR \\fITEXT\\fR\nShow only this metric" in page
    assert ".SH SEE ALSO\n\\fBlabctl\\fR(1)\n" in page


def test_a_group_refers_to_the_pages_of_its_commands(pages: dict[str, str]) -> None:
    assert "\\fBlabctl\\-run\\-import\\fR(1)\n" in pages["labctl-run.1"]


def test_text_is_never_taken_for_a_request() -> None:
    command = click.Command("x", help=".TH and 'so: a back\\slash")
    page = man_pages.page(click.Context(command, info_name="x"))
    assert "\n\\&.TH and 'so: a back\\eslash\n" in page


def test_the_date_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    page = man_pages.page(click.Context(click.Command("x"), info_name="x"))
    assert page.startswith('.TH "X" "1" "1970-01-02" "labctl ')


LINTERS = (["mandoc", "-T", "lint"], ["man", "--warnings", "--local-file"])


@pytest.mark.parametrize("linter", LINTERS, ids=lambda argv: argv[0])
def test_a_linter_of_man_pages_finds_nothing(linter: list[str], tmp_path: Path) -> None:
    if shutil.which(linter[0]) is None:
        pytest.skip(f"{linter[0]} is not installed")
    man_pages.write(tmp_path)
    done = subprocess.run(
        [*linter, *sorted(tmp_path.iterdir())],
        env={**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "80", "MANPAGER": "cat"},
        stdout=subprocess.PIPE if linter[0] == "mandoc" else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.stdout or "", done.stderr) == ("", "")
