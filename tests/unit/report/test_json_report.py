"""The JSON's shape, held by strict models here and by the page that documents it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, model_validator

from labctl.analysis import model
from labctl.analysis.judge import judge
from labctl.analysis.model import Diagnostic, DiagnosticKind, Role
from labctl.analysis.verdicts.table import Verdict
from labctl.report.export.json_report import report_json, report_pieces
from labctl.store.records.plan_record import PlanRecord
from labctl.store.records.run_record import RunRecord
from labctl.store.run_folder import LoadedRun
from tests.unit.factor_runs import factorial_run
from tests.unit.report.conftest import Judged

DOCUMENTED = Path(__file__).parents[3] / "docs" / "report-schema.md"


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Trials(Shape):
    planned: int
    done: int
    invalid: int


class WallTime(Shape):
    total: float
    windows: float
    warmups: float
    around: float
    invalid: float
    waited: float
    between: float
    share: float
    share_without_warmups: float


class Inconclusive(Shape):
    reason: Literal[
        "interval too wide",
        "too few blocks",
        "significant, but may be under the threshold",
        "sensitivity not shown",
        "no interval",
        "no threshold applies",
    ]
    found: str
    remedy: str


class Comparison(Shape):
    tuning: str
    against: str
    workload: str
    condition: str
    metric: str
    unit: str
    better: Literal["higher", "lower", "neither"]
    kind: Literal["ratio", "difference"]
    ratio: float | None = None
    difference: float | None = None
    low: float | None
    high: float | None
    confidence: float
    verdict: (
        Literal[
            "improves",
            "regresses",
            "real but small",
            "equivalent",
            "inconclusive",
            "suspended",
            "demonstration, no verdict",
        ]
        | None
    )
    role: Literal["primary", "exploratory"]
    source: str
    margin: float | None
    no_worse_than: float | None
    no_worse: bool | None
    smallest_visible: float | None
    error: float | None
    units: int
    blocks_needed: int | None
    inconclusive: Inconclusive | None
    boots: int
    left_out: list[int]
    by_holm: bool
    paired: bool
    fallback: str | None
    blocks: dict[str, float]

    @model_validator(mode="after")
    def has_the_estimate_of_its_kind(self) -> Comparison:
        assert self.model_fields_set & {"ratio", "difference"} == {self.kind}
        return self

    @model_validator(mode="after")
    def says_why_it_is_inconclusive(self) -> Comparison:
        assert (self.inconclusive is None) is (self.verdict != "inconclusive")
        return self


class Level(Shape):
    tuning: str
    workload: str
    condition: str
    metric: str
    unit: str
    better: str
    source: str
    typical: float | None
    blocks: dict[str, float]


class Check(Shape):
    name: str
    workload: str
    condition: str
    metric: str
    passed: bool | None
    estimate: float | None
    low: float | None
    high: float | None
    confidence: float
    sentence: str


class Precision(Shape):
    workload: str
    condition: str
    metric: str
    between_boots: float | None
    between_blocks: float | None
    within_trials: float | None
    boots: int | None
    blocks_per_boot: int | None
    seconds: float | None
    sentence: str


class ReportedDiagnostic(Shape):
    kind: str
    tuning: str | None
    workload: str
    condition: str
    metric: str
    grave: bool
    blocks: list[int]
    sentence: str


class Missing(Shape):
    metric: str
    reason: str
    trials: int
    tunings: list[str]
    workloads: list[str]


class Reason(Shape):
    reason: str
    count: int


class ArmAttempts(Shape):
    tuning: str
    attempts: int
    invalid: int
    reasons: list[Reason]


class Attempts(Shape):
    arms: list[ArmAttempts]
    p_value: float | None
    differ: bool


class Unshown(Shape):
    workload: str
    condition: str
    metric: str
    why: str
    loss: float | None


Code = Literal["recommended", "trade-off-not-excluded", "none"]


class Standing(Shape):
    tuning: str
    code: Code
    price: str | None
    unshown: list[Unshown]


class Recommendation(Shape):
    code: Code
    tuning: str | None
    tunings: list[Standing]


class Added(Shape):
    first_block: int
    last_block: int
    label: str
    comparisons: list[Comparison]


class Imported(Shape):
    file: str
    sha256: str
    rows: int


class PublishedResult(Shape):
    tuning: str
    against: str
    workload: str
    condition: str
    metric: str
    published_ratio: float | None
    published_direction: Literal["higher", "lower"]
    ratio: float | None
    low: float | None
    high: float | None
    blocks: int
    agreement: Literal["same direction", "other direction", "not shown", "not measured"]
    why: str | None
    source: str


class Published(Shape):
    sources: list[str]
    results: list[PublishedResult]


class PublishedCell(Shape):
    ratio: float | None
    direction: Literal["higher", "lower"]


class TableCell(Shape):
    metric: str
    number: float | None
    low: float | None
    high: float | None
    blocks: int
    unit: str | None
    why: str | None
    published: list[PublishedCell]


class TableRow(Shape):
    tuning: str
    against: str | None
    workload: str
    condition: str
    cells: list[TableCell]


class MissingCells(Shape):
    why: str
    metrics: list[str]


class Table(Shape):
    title: str
    rows: list[TableRow]
    missing: list[MissingCells]


class Spares(Shape):
    planned: int
    ran: list[int]
    sentence: str | None


class Loss(Shape):
    estimate: float
    low: float | None
    high: float | None


class ExitCost(Shape):
    tuning: str
    against: str | None
    workload: str
    condition: str
    exits_per_s: float
    cpu_s_per_s: Loss
    predicted: Loss | None
    measured: Loss | None
    rest: Loss | None
    reason: str | None
    priced: float
    unpriced: list[str]


class Change(Shape):
    workload: str
    condition: str
    metric: str
    unit: str
    better: str
    kind: str
    estimate: float
    low: float | None
    high: float | None
    confidence: float
    verdict: str | None
    text: str


class Worse(Shape):
    workload: str
    condition: str
    metric: str
    unit: str
    tested: Literal["verdict", "interval", "not tested"]
    statistic: Literal["typical", "largest", "median"]
    before: float | None
    after: float | None
    trials: int
    text: str


class SideCost(Shape):
    workload: str
    condition: str
    who: str
    change: str
    interval: str
    ratio: float | None


class Ground(Shape):
    name: str
    met: bool
    text: str


class FreshRun(Shape):
    run: str
    evidence: str
    agrees: bool | None
    text: str


Grade = Literal["confirmed", "candidate", "not shown"]


class PlannedFactor(Shape):
    levels: list[str]
    own_boot: bool


class Contrast(Shape):
    kind: Literal["main effect", "interaction"]
    arm: str
    workload: str
    condition: str | None
    metric: str
    unit: str
    better: Literal["higher", "lower", "neither"]
    effect: Literal["ratio", "difference"]
    factors: list[str]
    levels: list[str]
    against: list[str]
    estimate: float
    low: float | None
    high: float | None
    confidence: float
    finding: Literal[
        "real", "real but small", "not shown", "demonstration, no verdict", "before the first look"
    ]
    per: Literal["block", "boot"]
    values: dict[str, float]
    cells: int
    left_out: list[int]
    without: list[str]
    paired: bool


class CellMean(Shape):
    arm: str
    workload: str
    condition: str | None
    metric: str
    unit: str
    levels: dict[str, str]
    typical: float
    blocks: int


class Factors(Shape):
    factors: dict[str, PlannedFactor]
    family: int
    confidence: float
    contrasts: list[Contrast]
    means: list[CellMean]
    problems: list[str]


class TuningAnswer(Shape):
    tuning: str
    grade: Grade
    code: Code
    better: list[Change]
    worse: list[Worse]
    side_costs: list[SideCost]
    price: str
    grounds: list[Ground]
    fresh: list[FreshRun]


class Next(Shape):
    command: str | None
    text: str
    seconds: float | None


class Decision(Shape):
    schema_: Literal[1]
    run: str
    evidence: str
    grade: Grade
    tuning: str | None
    emulated: bool
    status: str
    lead: str
    because: str
    price: str
    worse: str
    sure: str
    others: str
    next: list[Next]
    tunings: list[TuningAnswer]

    @model_validator(mode="before")
    @classmethod
    def rename(cls, data: Any) -> Any:
        return {{"schema": "schema_"}.get(key, key): value for key, value in data.items()}


class ArmNumber(Shape):
    metric: str | None
    value: float | None
    unit: str | None
    kind: str | None
    estimate: float | None
    low: float | None
    high: float | None
    confidence: float | None
    verdict: str | None
    note: int | None


class ArmShown(Shape):
    arm: str
    role: Literal["native", "baseline", "tuning", "check"]
    cells: list[ArmNumber]


class ArmsShown(Shape):
    workload: str
    condition: str
    columns: list[str]
    arms: list[ArmShown]
    notes: dict[str, str]


class Report(Shape):
    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)

    schema_: Literal[3]
    run: str
    study: str | None
    title: str | None
    status: str | None
    labctl: str | None
    command: str | None
    seed: int | None
    quick: bool | None
    study_digest: str | None
    plan_digest: str | None
    accelerator: Literal["kvm", "tcg"] | None
    accelerator_reason: str | None
    same_kernel: bool | None
    restored_state: bool | None
    collect: str | None
    collecting_costs: list[dict[str, Any]]
    answer: str
    decision: Decision
    recommendation: Recommendation
    warnings: list[str]
    problems: list[str]
    boots: int
    blocks: int
    trials: Trials
    wall_time: WallTime | None
    attempts: Attempts
    primaries: dict[str, str]
    overview: list[ArmsShown]
    comparisons: list[Comparison]
    levels: list[Level]
    control: list[Check]
    known_loss: list[Check]
    restored: list[Check]
    precision: list[Precision]
    ending: str | None
    added: Added | None
    spares: Spares | None
    factors: Factors | None
    diagnostics: list[ReportedDiagnostic]
    unavailable: list[Missing]
    skipped: dict[str, str]
    skipped_workloads: dict[str, dict[Literal["guest", "native"], str]]
    skipped_conditions: dict[str, str]
    exit_costs: list[ExitCost]
    published: Published | None
    tables: list[Table] | None
    imported: Imported | None


def through_json(report: dict[str, Any]) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(report, allow_nan=False))
    return loaded


def as_shape(report: dict[str, Any]) -> Report:
    loaded = through_json(report)
    return Report.model_validate({"schema_": loaded.pop("schema"), **loaded})


def test_the_report_in_pieces_is_the_report(judged: Judged) -> None:
    run, judgement = judged
    odd = replace(judgement.comparisons[0], high=math.inf, low=math.nan)
    for one in (judgement, replace(judgement, comparisons=(odd,), levels=(), unavailable=())):
        text = b"".join(report_pieces(run, one))
        assert json.loads(text) == through_json(report_json(run, one))
        assert text.startswith(b'{\n  "schema": ')


def test_the_report_has_the_documented_shape(judged: Judged) -> None:
    report = as_shape(report_json(*judged))
    assert report.accelerator == "tcg"
    assert report.trials.planned == 11 * 16
    assert report.trials.done == report.trials.planned - 1
    assert {item.role for item in report.comparisons} == {"primary", "exploratory"}
    assert report.control
    assert report.known_loss
    assert {item.metric for item in report.unavailable} >= {"exits", "ipc"}


def test_no_number_is_ever_nan_or_infinite(judged: Judged) -> None:
    run, judgement = judged
    broken = replace(
        judgement,
        comparisons=(
            replace(judgement.comparisons[0], estimate=math.nan, high=math.inf, blocks={1: 1.0}),
        ),
        levels=(replace(judgement.levels[0], typical=-math.inf, values={1: 1.0}),),
    )
    report = as_shape(report_json(run, broken))
    assert report.comparisons[0].model_dump()[report.comparisons[0].kind] is None
    assert report.comparisons[0].high is None
    assert report.levels[0].typical is None


def test_what_is_inconclusive_says_why_and_what_settles_it(judged: Judged) -> None:
    run, judgement = judged
    first = next(c for c in judgement.comparisons if c.role is Role.PRIMARY)
    wide = replace(first, verdict=Verdict.INCONCLUSIVE, estimate=1.0, low=0.5, high=2.0)
    report = as_shape(report_json(run, replace(judgement, comparisons=(wide, first))))
    why, none = (item.inconclusive for item in report.comparisons)
    assert none is None
    assert why is not None
    assert why.reason == "too few blocks"
    assert why.found.startswith("−50 to +100 %")
    assert why.remedy.startswith("Plan a run of ")


def test_blocks_that_decide_nothing_stand_apart(judged: Judged) -> None:
    run, judgement = judged
    apart = model.Added(
        first=11,
        last=12,
        label="exploratory: blocks 11 to 12 were added after the result was known",
        comparisons=judgement.comparisons[:2],
    )
    report = as_shape(report_json(run, replace(judgement, added=apart, ending="It ended.")))
    assert report.ending == "It ended."
    assert report.added is not None
    assert (report.added.first_block, report.added.last_block) == (11, 12)
    assert report.added.comparisons == report.comparisons[:2]


def test_a_run_of_which_nothing_is_left_still_has_every_key(judged: Judged) -> None:
    nothing = LoadedRun("r", RunRecord(), PlanRecord(), (), ("run.json is missing",))
    report = as_shape(report_json(nothing, judged[1]))
    assert report.study is None
    assert report.problems == ["run.json is missing"]


def test_a_diagnostic_is_reported_with_blocks_and_every_kind_is_documented(judged: Judged) -> None:
    run, judgement = judged
    found = Diagnostic(
        kind=DiagnosticKind.OUTLIER,
        tuning=None,
        workload="sysbench-cpu",
        condition="neighbour",
        metric="events_per_s",
        sentence="Block 3 stands out.",
        blocks=(3,),
        grave=False,
    )
    reported = as_shape(report_json(run, replace(judgement, diagnostics=(found,)))).diagnostics[0]
    assert (reported.kind, reported.blocks, reported.grave) == ("outlier", [3], False)
    text = DOCUMENTED.read_text(encoding="utf-8")
    assert [str(kind) for kind in DiagnosticKind if f"`{kind}`" not in text] == []


def test_effects_of_factors_have_the_documented_shape() -> None:
    run = factorial_run()
    factors = as_shape(report_json(run, judge(run))).factors
    assert factors is not None
    assert factors.family == len(factors.contrasts) == 13
    found = {
        (one.arm, *one.levels): (one.finding, one.per, len(one.values)) for one in factors.contrasts
    }
    assert found["baseline", "fifo"] == ("real", "block", 10)
    assert found["baseline", "bare"] == ("real", "boot", 10)
    assert found["baseline", "bare", "rr"] == ("not shown", "boot", 10)


@pytest.mark.parametrize("model", Shape.__subclasses__())
def test_every_key_is_documented(model: type[BaseModel]) -> None:
    text = DOCUMENTED.read_text(encoding="utf-8")
    names = [name.rstrip("_") for name in model.model_fields]
    assert [name for name in names if f"`{name}`" not in text] == []
