"""`labctl help`, names that commands had before, and options under headings."""

from __future__ import annotations

import click
import pytest

from labctl.cli.main import _OLD_NAMES, cli
from labctl.cli.parts.common import Sectioned
from tests.unit.cli.conftest import Labctl


@pytest.mark.parametrize(
    "words", [(), ("sweep",), ("run",), ("run", "list"), ("tuning", "diff")], ids=" ".join
)
def test_help_of_a_command_is_what_its_own_option_shows(
    labctl: Labctl, words: tuple[str, ...]
) -> None:
    said = labctl("help", *words)
    assert (said.code, said.err) == (0, "")
    assert said.out == labctl(*words, "--help").out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("sweeep",), "Did you mean 'sweep'?"),
        (("run", "lst"), "Did you mean 'list'?"),
        (("sweep", "pinning"), "labctl sweep has no command 'pinning'"),
    ],
)
def test_help_of_what_is_not_a_command_is_wrong_usage(
    labctl: Labctl, words: tuple[str, ...], says: str
) -> None:
    said = labctl("help", *words)
    assert said.code == 2
    assert says in said.err


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("domain", "show", "pinned"), ("tuning", "show", "pinned")),
        (("pin", "plan", "--json"), ("pins", "--json")),
        (("help", "domain", "diff"), ("help", "tuning", "diff")),
    ],
    ids=lambda words: " ".join(words),
)
def test_an_old_name_works_and_says_the_new_one_once(
    labctl: Labctl, old: tuple[str, ...], new: tuple[str, ...]
) -> None:
    said, expected = labctl(*old), labctl(*new)
    assert (said.code, said.out) == (expected.code, expected.out)
    assert expected.err == ""
    (line,) = said.err.splitlines()
    assert "is now 'labctl" in line
    assert "the old name works until 0.3" in line


def test_old_names_are_not_listed_and_new_ones_exist() -> None:
    assert isinstance(cli, click.Group)
    listed = cli.list_commands(click.Context(cli))
    for old, new in _OLD_NAMES.items():
        assert old[0] not in listed or old[0] == "domain"
        assert new[0] in listed


def test_the_version_has_a_short_option(labctl: Labctl) -> None:
    assert labctl("-V").out == labctl("--version").out


def _sectioned() -> dict[str, Sectioned]:
    assert isinstance(cli, click.Group)
    context = click.Context(cli)
    found = [cli.get_command(context, name) for name in cli.list_commands(context)]
    found += [
        one for group in found if isinstance(group, click.Group) for one in group.commands.values()
    ]
    return {str(one.name): one for one in found if isinstance(one, Sectioned)}


SECTIONED = _sectioned()


def test_the_long_commands_have_headings() -> None:
    assert {"sweep", "density", "advise", "report", "import"} <= set(SECTIONED)


@pytest.mark.parametrize("name", SECTIONED)
def test_every_option_of_such_a_command_stands_under_one_heading(name: str) -> None:
    command = SECTIONED[name]
    placed = [word for words in command.sections.values() for word in words.split()]
    assert len(placed) == len(set(placed))
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    known = {word for option in options for word in option.opts}
    assert set(placed) <= {*known, "--help"}
    assert [one.opts for one in options if not set(one.opts) & set(placed)] == []


def test_the_help_of_sweep_has_its_headings_in_order(labctl: Labctl) -> None:
    lines = labctl("sweep", "--help").out.splitlines()
    headings = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert headings == [
        "Selection:",
        "Length and number:",
        "The guest:",
        "A program of your own:",
        "A VM of your own:",
        "This run:",
    ]
