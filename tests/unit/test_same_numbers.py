"""The comparison of two versions finds what may not change, and lets prose be."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tools.same_numbers import RENAMED, Kind, differences, main, read_help, tree_of

ROOT = Path(__file__).parents[2]
SCHEMA = (ROOT / "docs/report-schema.md").read_text()
VERDICTS = re.findall(
    r"^\| ([a-z ,]+) \|",
    SCHEMA.partition("<!-- table: verdicts -->")[2].partition("<!-- end of table -->")[0],
    re.MULTILINE,
)[1:]
REASONS = re.findall(
    r'"([^"]+)"', SCHEMA.partition("| `inconclusive` | `reason` (")[2].partition("),")[0]
)
REPORT = {"schema": 1, "verdicts": [{"code": "improves", "ratio": 1.5, "low": None}]}
COMPARISON = {"verdict": "improves", "inconclusive": {"reason": "no interval", "found": "a b"}}


def kinds(first: Any, last: Any) -> list[tuple[str, Kind]]:
    return [(str(found), found.kind) for found in differences(first, last)]


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"code": "improves", "ratio": 1.4, "low": None}, "verdicts[0].ratio is 1.4 for 1.5"),
        ({"code": "worsens", "ratio": 1.5, "low": None}, "verdicts[0].code is 'worsens'"),
        ({"code": "improves", "ratio": 1.5, "low": 0}, "verdicts[0].low is 0 for None"),
        ({"code": "improves", "ratio": 1.5}, "verdicts[0].low is gone"),
        ({"ratio": 1.5, "code": "improves", "low": None}, "verdicts[0] has its keys in another"),
        ({"code": "improves", "ratio": True, "low": None}, "verdicts[0].ratio is True for 1.5"),
    ],
)
def test_a_changed_number_code_order_or_missing_value_is_a_difference(
    changed: dict[str, Any], place: str
) -> None:
    ((found, kind),) = kinds(REPORT, {"schema": 2, "verdicts": [changed]})
    assert found.startswith(place)
    assert kind is Kind.DIFFERENT


def test_the_documents_name_all_verdicts_and_reasons() -> None:
    assert len(VERDICTS) == 9
    assert len(REASONS) == 6


@pytest.mark.parametrize("verdict", VERDICTS)
def test_each_changed_verdict_is_a_difference(verdict: str) -> None:
    for other in {*VERDICTS, f"{verdict} x"} - {verdict}:
        ((found, kind),) = kinds(
            {"comparisons": [{"verdict": verdict}]}, {"comparisons": [{"verdict": other}]}
        )
        assert (found, kind) == (
            f"comparisons[0].verdict is {other!r} for {verdict!r}",
            Kind.DIFFERENT,
        )


@pytest.mark.parametrize("reason", REASONS)
def test_each_changed_reason_of_an_inconclusive_comparison_is_a_difference(reason: str) -> None:
    for other in {*REASONS, f"{reason} x"} - {reason}:
        pair = [{"comparisons": [{"inconclusive": {"reason": one}}]} for one in (reason, other)]
        ((_, kind),) = kinds(*pair)
        assert kind is Kind.DIFFERENT


@pytest.mark.parametrize(
    "report",
    [
        {"digest": "01d8 3f24"},
        {"tunings": {"pinned": {"digest": "01d83f24"}}},
        {"decision": {"grade": "not shown"}},
        {"decision": {"tunings": [{"grounds": [{"name": "no harm"}]}]}},
        {"decision": {"tunings": [{"worse": [{"tested": "not tested"}]}]}},
        {"decision": {"next": [{"command": "labctl advise example"}]}},
        {"factors": {"contrasts": [{"kind": "main effect"}]}},
        {"decision": {"tunings": [{"side_costs": [{"change": "+12 %"}]}]}},
    ],
)
def test_codes_with_a_space_and_digests_are_compared_exactly(report: dict[str, Any]) -> None:
    other = json.loads(re.sub(r'"([^"]*)"(?=[\]}])', r'"\1 x"', json.dumps(report)))
    ((_, kind),) = kinds(report, other)
    assert kind is Kind.DIFFERENT


def test_a_lost_or_added_item_is_a_difference_even_among_sentences() -> None:
    assert kinds([1, 2], [1]) == [("the report has 1 items for 2", Kind.DIFFERENT)]
    assert kinds({"a": 1}, {"a": 1, "b": 2}) == [("b is new", Kind.ADDED)]
    found = kinds({"warnings": ["One word."]}, {"warnings": ["Two words.", "A grave one."]})
    assert found == [
        ("warnings has 2 items for 1", Kind.DIFFERENT),
        ("warnings[0] is 'Two words.' for 'One word.'", Kind.WORDS),
    ]


def test_prose_may_change_and_keys_that_are_listed_may_be_renamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(RENAMED, "bill", "side_costs")
    first = {"bill": 3, "why": "the host was busy", "skipped": {"a": "x y"}}
    last = {"side_costs": 3, "why": "others ran on the host", "skipped": {"a": "z"}}
    assert [kind for _, kind in kinds(first, last)] == [Kind.WORDS] * 2
    assert kinds({"bill": 3}, {"bill": 3}) == []
    assert [kind for _, kind in kinds({"why": "a b"}, {"why": None})] == [Kind.DIFFERENT]
    unavailable = [{"unavailable": [{"reason": word}]} for word in ("no PMU", "no PMU here")]
    assert [kind for _, kind in kinds(*unavailable)] == [Kind.WORDS]


HELP = """\
Usage: labctl gate [OPTIONS] RUN

  Check RUN by the rules of a policy.
  --policy names them.

Options:
  --policy FILE  The rules.
  -h, --help     Show this
                 message.

Commands:
  list  List them.
"""


def test_options_of_a_help_are_compared_as_a_set_and_its_words_are_prose() -> None:
    read = read_help(HELP)
    assert read["options"] == {"--policy FILE", "-h, --help"}
    assert read["commands"] == {"list"}
    ((_, kind),) = kinds(read, read_help(HELP.replace("The rules.", "Its rules.")))
    assert kind is Kind.WORDS
    found = kinds(read, read_help(HELP.replace("--policy FILE  ", "--policy TEXT  ")))
    assert [text for text, kind in found if kind is Kind.DIFFERENT] == [
        "options lacks '--policy FILE'",
        "options has a new '--policy TEXT'",
    ]


def test_a_folder_is_taken_as_it_is_and_a_commit_is_written_out(tmp_path: Path) -> None:
    assert tree_of(str(tmp_path), tmp_path / "unused") == tmp_path
    try:
        subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git checkout here")
    assert (tree_of("HEAD", tmp_path / "first") / "labctl/cli/main.py").is_file()


STAND_IN = """\
import json, sys

def main():
    if "--help" in sys.argv:
        print("Usage: labctl\\n\\nOptions:\\n  --json  OPTION")
    elif "render" in sys.argv:
        print("<domain/>")
    else:
        print(json.dumps(JSON))
"""


@pytest.mark.parametrize(
    ("part", "changed"),
    [("help", ("--json ", "--yaml ")), ("tuning", ("<domain/>", "<domain a='1'/>"))],
)
def test_two_folders_of_labctl_are_compared_by_their_command_line(
    tmp_path: Path, part: str, changed: tuple[str, str]
) -> None:
    for name, code in (("first", STAND_IN), ("last", STAND_IN.replace(*changed))):
        (tmp_path / name / "labctl/cli").mkdir(parents=True)
        # Without these the installed labctl would come first.
        for package in ("labctl", "labctl/cli"):
            (tmp_path / name / package / "__init__.py").touch()
        module = tmp_path / name / "labctl/cli/main.py"
        module.write_text(code.replace("JSON", '[{"name": "pinned"}]'))
    first, last = (str(tmp_path / name) for name in ("first", "last"))
    same = CliRunner().invoke(main, [first, first, "--part", part])
    assert (same.exit_code, "0 different" in same.output) == (0, True)
    other = CliRunner().invoke(main, [first, last, "--part", part])
    assert other.exit_code == 1
    assert "different: " in other.output
