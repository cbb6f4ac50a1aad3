"""`labctl explain`: every word of a report, in a terminal."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from labctl.analysis.verdicts.table import Verdict
from labctl.base.metrics.table import METRICS
from labctl.base.wording import glossary
from labctl.cli.explain import command
from labctl.study.tunings import tuning_names


def explained(*words: str) -> Result:
    return CliRunner().invoke(command, [*words])


def test_a_term_is_explained_whatever_its_case_and_however_it_is_quoted() -> None:
    for words in (["noise floor"], ["noise", "floor"], ["Noise-Floor"], ["noise floors"]):
        shown = explained(*words)
        assert shown.exit_code == 0
        assert "noise floor (term)" in shown.stdout
        assert "The A/A control's interval" in shown.stdout


def test_an_entry_that_sends_to_another_shows_that_too() -> None:
    assert "how often the guest's CPU went back to the host" in " ".join(
        explained("vm exit").stdout.split()
    )


@pytest.mark.parametrize("verdict", Verdict)
def test_each_verdict_has_its_own_meaning(verdict: Verdict) -> None:
    (found,) = json.loads(explained(str(verdict), "--json").stdout)
    assert found["text"] == verdict.row.means


def test_a_metric_says_unit_direction_and_source() -> None:
    shown = " ".join(explained("latency_p95").stdout.split())
    assert "p95 latency, in s; lower is better. From:" in shown
    assert "`" not in shown
    assert explained("p95 latency").stdout == explained("latency_p95").stdout


def test_a_metric_with_a_label_says_where_that_one_is_from() -> None:
    whole, one = (explained(name).stdout for name in ("host_cpu", "host_cpu{thread=peer}"))
    assert "the server that a workload talks to" in " ".join(one.split())
    assert len(one) < len(whole)


def test_a_tuning_and_a_combination_say_their_mechanism() -> None:
    assert "SCHED_FIFO" in explained("pinned+fifo").stdout
    assert "pinned+cache-none (tuning)" in explained("pinned+cache-none").stdout


def test_a_word_of_two_kinds_has_both_meanings() -> None:
    shown = explained("control").stdout
    assert "control (term)" in shown
    assert "control (tuning)" in shown


def test_an_unknown_word_names_the_nearest() -> None:
    error = explained("nois flor").exception
    assert error is not None
    assert "Did you mean 'noise floor'?" in str(getattr(error, "hint", ""))


def test_without_a_word_all_are_listed() -> None:
    listed = json.loads(explained("--json").stdout)
    assert set(listed["terms"]) | set(listed["verdicts"]) == set(glossary())
    assert set(listed["tunings"]) == set(tuning_names())
    assert {metric.name for metric in METRICS} == set(listed["metrics"])
    shown = explained().stdout
    assert all(name in shown for names in listed.values() for name in names)


def test_no_entry_is_left_with_marks_of_its_source() -> None:
    assert [term.name for term in glossary().values() if set(term.plain) & set("*`[")] == []
