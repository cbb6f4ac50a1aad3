"""Show a gate's results as a table, Markdown for a merge request, JSON or JUnit XML."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime

from lxml import etree
from rich.console import Group, RenderableType

from labctl.analysis.answer.json import answer_json
from labctl.analysis.answer.words import effect_shown
from labctl.analysis.gate.policy import Undecided
from labctl.analysis.gate.rules import Finding, GateResult, Outcome
from labctl.base.notation import quantities
from labctl.base.wording import counted, metric_title, printable
from labctl.report.parts import bare_table, small, text
from labctl.store.records.run_record import RunRecord

SCHEMA = 1

_STYLES = {Outcome.HOLDS: "green", Outcome.VIOLATED: "bold red", Outcome.UNDECIDED: "yellow"}
_COUNTED_AS = {
    Undecided.FAIL: "counts as violated",
    Undecided.PASS: "counts as kept",
    Undecided.OPEN: "left open",
}


def gate_table(result: GateResult) -> RenderableType:
    """Return lines of 80 columns. A rule for several cells has a row for each."""
    table = bare_table(f"Gate of {result.run}")
    table.add_column("rule", max_width=26, overflow="fold")
    table.add_column("where", max_width=22, overflow="fold")
    table.add_column("found", max_width=16, overflow="fold")
    table.add_column("", overflow="fold")
    shown = ""
    for finding in result.findings:
        title = "" if finding.rule == shown else finding.rule
        shown = finding.rule
        table.add_row(
            text(title),
            text(where(finding)),
            text(found(finding)),
            text(outcome(finding), style=_STYLES[finding.outcome]),
        )
    cautions = [text(f"Warning: {caution}") for caution in result.cautions]
    answer = small(f"The run's answer: {answer_line(result)}")
    return Group(*cautions, table, text(f"\n{verdict(result)}", style="bold"), answer)


def where(finding: Finding) -> str:
    if finding.of_facts:
        return f"the run : {finding.against}"
    if finding.of_grade:
        return finding.tuning
    if not finding.tuning:
        return "no value in the run"
    arms = finding.tuning if finding.against is None else f"{finding.tuning} : {finding.against}"
    return f"{arms}, {finding.workload}, {finding.condition}"


def found(finding: Finding) -> str:
    """Return the estimate with its interval; "" without one."""
    if finding.estimate is None or finding.unit is None:
        return ""
    unit, low, high = finding.unit, finding.low, finding.high
    if finding.kind is None:
        shown = quantities(finding.estimate, low, high, unit, finding.metric)
    else:
        shown = effect_shown(finding.estimate, low, high, finding.kind, unit)
    return "\n".join(filter(None, shown))


def outcome(finding: Finding) -> str:
    """Return the outcome with its reason, if it has one; for an undecided check also whether the
    policy counts it as kept or violated."""
    if finding.outcome is not Outcome.UNDECIDED:
        return f"{finding.outcome}: {finding.why}" if finding.why else str(finding.outcome)
    return f"undecided, {_COUNTED_AS[finding.counts_as]}: {finding.why}"


def answer_line(result: GateResult) -> str:
    """Return the run's own answer in a line: its status and first sentence, and its grade."""
    decision = result.decision
    said = " ".join(filter(None, (decision.status, decision.lead)))
    return f"{said} Grade: {decision.grade}."


def verdict(result: GateResult) -> str:
    """Return the gate's answer in a sentence."""
    counts = Counter(finding.outcome for finding in result.findings)
    told = ", ".join(f"{counts[kind]} {kind}" for kind in Outcome if counts[kind])
    state = {True: "passed", False: "failed", None: "not enough data to decide"}[result.passed]
    return f"{state.capitalize()}: {counted(len(result.findings), 'check')}, {told}."


def gate_markdown(result: GateResult) -> str:
    """Return a table for a merge request, with its answer first."""
    lines = [
        f"**{_cell(verdict(result))}** Run {_cell(result.run)}.",
        "",
        f"The run's answer: {_cell(answer_line(result))}",
        "",
        *(f"- Warning: {_cell(caution)}" for caution in result.cautions),
        *([""] if result.cautions else []),
        "| rule | where | found | outcome |",
        "|---|---|---|---|",
    ]
    lines += [
        "| " + " | ".join(map(_cell, (f.rule, where(f), found(f), outcome(f)))) + " |"
        for f in result.findings
    ]
    return "\n".join(lines) + "\n"


def _cell(value: str) -> str:
    """Return text that Markdown shows as it is: names come from files of others. A backslash does
    not stop forges from notifying people or linking; a zero-width joiner inside does."""
    plain = printable(value).replace("\n", " ").replace("\t", " ")
    plain = re.sub(r"@(?=\w)|:(?=//)|\bwww(?=\.)", lambda found: f"{found[0]}{_JOINER}", plain)
    return re.sub(r"[\\|`*_\[\]<>&~#!$]", r"\\\g<0>", plain)


_JOINER = "\N{WORD JOINER}"


def gate_json(result: GateResult) -> dict[str, object]:
    """Return JSON with the keys of docs/gate.md."""
    return {
        "schema": SCHEMA,
        "run": result.run,
        "passed": result.passed,
        "cautions": list(result.cautions),
        "decision": answer_json(result.decision),
        "checks": [
            {
                "rule": finding.rule,
                "limit": finding.limit,
                "tuning": finding.tuning or None,
                "against": finding.against,
                "workload": finding.workload or None,
                "condition": finding.condition or None,
                "metric": finding.metric or None,
                "unit": None if finding.unit is None else str(finding.unit),
                "kind": _kind(finding),
                "estimate": finding.estimate,
                "low": finding.low,
                "high": finding.high,
                "blocks": finding.blocks,
                "outcome": str(finding.outcome),
                "why": finding.why or None,
                "undecided_counts_as": str(finding.counts_as),
            }
            for finding in result.findings
        ],
    }


def _kind(finding: Finding) -> str:
    if finding.of_facts:
        return "facts"
    if finding.of_grade:
        return "grade"
    return str(finding.kind) if finding.kind else "value"


def gate_junit(result: GateResult, record: RunRecord, hostname: str) -> bytes:
    """Return the format for continuous integration: a test case for each check. An undecided check
    is skipped, unless it counts as violated or as kept. `record`: of the run, whose start and
    length are the suite's; `hostname`: of the host that was measured.

    Schemas differ. This output follows Jenkins' (xunit plugin, junit-10.xsd), and has what
    Surefire's (surefire-test-report-3.0.xsd) requires: all counts, `time` and a failure's `type`.
    """
    suite = etree.Element("testsuite", name=f"labctl gate {_xml(result.run)}")
    failures = skipped = 0
    for finding in result.findings:
        case = etree.SubElement(
            suite, "testcase", classname=_xml(where(finding)), name=_xml(finding.rule), time="0"
        )
        said = _xml(f"{_subject(finding)}: {found(finding) or 'nothing'} ({finding.limit})")
        message = _xml(outcome(finding))
        if finding.outcome is Outcome.VIOLATED or (
            finding.outcome is Outcome.UNDECIDED and finding.counts_as is Undecided.FAIL
        ):
            failures += 1
            failure = etree.SubElement(case, "failure", message=message, type=str(finding.outcome))
            failure.text = said
        elif finding.outcome is Outcome.UNDECIDED and finding.counts_as is Undecided.OPEN:
            skipped += 1
            etree.SubElement(case, "skipped", message=message)
        else:
            etree.SubElement(case, "system-out").text = f"{message}: {said}"
    if result.cautions:
        etree.SubElement(suite, "system-out").text = _xml("\n".join(result.cautions))
    suite.set("tests", str(len(result.findings)))
    suite.set("failures", str(failures))
    suite.set("errors", "0")
    suite.set("skipped", str(skipped))
    began, ended = _moment(record.started_at), _moment(record.ended_at)
    took_s = (ended - began).total_seconds() if began and ended else 0.0
    suite.set("time", f"{max(0.0, took_s):.0f}")
    if began:
        suite.set("timestamp", began.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S"))
    suite.set("hostname", _xml(hostname))
    document: bytes = etree.tostring(
        suite, encoding="utf-8", xml_declaration=True, pretty_print=True
    )
    return document


def _moment(text: str | None) -> datetime | None:
    """Return a recorded time; None if there is none with a time zone."""
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _subject(finding: Finding) -> str:
    if finding.of_grade:
        return "grade"
    return "facts" if finding.of_facts else metric_title(finding.metric)


def _xml(value: str) -> str:
    return printable(value).replace("\n", " ")
