"""The commands that README and docs print work as they stand, from any folder."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest

from labctl.cli.main import cli
from tests.unit.domain import hosts
from tests.unit.run.asked import plan_on

from .conftest import Labctl, own_files

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]

# A command of its own lines, or within a sentence or table.
_BLOCK = re.compile(r"^    (labctl (?:.*\\\n)*.*)", re.M)
_INLINE = re.compile(r"`(labctl [^`\n]+)`")
# What a page leaves for the reader to fill in.
_SYNOPSIS = re.compile(r"…|\.\.\.|\[[-A-Z]|\|")

# Recorded runs in place of a reader's own.
STAND_INS = {
    "RUN": "example",
    "12": "1",
    "12.2": "1.1",
    "RUN_A": "example",
    "RUN_B": "example-traced",
    "FOLDER": "folder",
    "FILE": "file",
    "STUDY": "pinning",
    "TERM": "p95",
    "NAME": "pinned",
}
# Commands that read what is recorded or part of labctl, and nothing else.
READING = [
    *(["condition", "list"], ["explain"], ["help"], ["pins"], ["report"], ["study", "list"]),
    *(
        ["study", "show"],
        ["timeline"],
        ["tuning", "list"],
        ["tuning", "show"],
        ["workload", "list"],
    ),
]
# They ask for a larger host, for a folder of this one's, or for factors, which 'example' lacks.
ELSEWHERE = re.compile(r"pins --(sysfs|strategy|guests)|--out /var|--factors")


def documented(pattern: re.Pattern[str], pages: Sequence[Path] = PAGES) -> Iterator[list[str]]:
    seen = set()
    for page in pages:
        for found in pattern.findall(page.read_text()):
            text = re.sub(r"\s{2,}[a-z].*$", "", found.replace("\\\n", " "))
            if _SYNOPSIS.search(text):
                continue
            words = [
                STAND_INS.get(word, word)
                for word in shlex.split(text.replace("$(uname -r)", "6.1"), comments=True)[1:]
            ]
            if words[:2] == ["timeline", "example"]:
                words[1] = "example-traced"
            if tuple(words) not in seen:
                seen.add(tuple(words))
                yield words


# Old names are in prose alone, as what an upgrade changes.
OLD = [["domain", "list"], ["pin", "plan"]]
ALL = [*documented(_BLOCK), *(words for words in documented(_INLINE) if words[:2] not in OLD)]
READS = [
    words
    for words in documented(_BLOCK)
    if any(words[: len(known)] == known for known in READING)
    and not ELSEWHERE.search(shlex.join(words))
]
SWEEPS = [
    words
    for words in ALL
    if len(words) > 1
    and (ROOT / f"benchmarks/{words[1]}.yaml").exists()
    # Files of the reader's own, and conditions.
    and not {"--domain", "--kernel", "--condition", "mine"} & {*words}
    and words[0] == "sweep"
]


def test_the_pages_have_commands() -> None:
    assert len(ALL) > 150
    assert len(READS) > 20
    assert len(SWEEPS) > 8


@pytest.mark.parametrize("words", ALL, ids=shlex.join)
def test_commands_and_their_options_exist(words: list[str]) -> None:
    command: click.Command = cli
    context: click.Context | None = None
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        context = click.Context(command, parent=context, info_name=words[0])
        found = command.get_command(context, words[0])
        assert found is not None, f"labctl {shlex.join(words)}"
        command, words = found, words[1:]
    known = {name for option in command.params for name in [*option.opts, *option.secondary_opts]}
    used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]{2}", word)}
    takes_a_sweeps_options = command.context_settings.get("ignore_unknown_options", False)
    assert takes_a_sweeps_options or used <= known | {"--help"}


@pytest.fixture(params=["checkout", "lab", "empty"])
def present(
    request: pytest.FixtureRequest, labctl: Labctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that a reader may be in; no option names any runs."""
    monkeypatch.delenv("LABCTL_RESULTS", raising=False)
    folder = str(request.param)
    present = tmp_path / folder
    if folder == "lab":
        assert labctl("init", str(present)).code == 0
    else:
        present.mkdir()
    if folder == "checkout":  # in which pages may be written
        for path in ROOT.iterdir():
            (present / path.name).symlink_to(path)
    own_files(present)
    monkeypatch.chdir(present)


@pytest.mark.usefixtures("present")
@pytest.mark.parametrize("words", READS, ids=shlex.join)
def test_commands_that_read_work_in_every_folder(labctl: Labctl, words: list[str]) -> None:
    said = labctl(*words)
    assert said.code == 0, said.err


@pytest.mark.usefixtures("present")
@pytest.mark.parametrize("words", SWEEPS, ids=shlex.join)
def test_sweeps_can_be_planned_in_every_folder(
    labctl: Labctl, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_on(monkeypatch, hosts.TWO_CPUS)
    said = labctl(*words, "--plan-only")
    assert said.code == 0, said.err
