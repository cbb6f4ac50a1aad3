"""Tables of what is claimed where nothing is: false verdicts, bias, two runs alike."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from labctl.analysis.effects.design import ALPHA
from tools.calibrate import bias, false_verdicts, pairs
from tools.calibrate.rates import SURE
from tools.calibrate.table import Simulations, Table, exception, percent


def false_verdict_table(simulations: Simulations) -> Table:
    scenarios = false_verdicts.SCENARIOS.values()
    runs = simulations.runs
    calls = [(s.name, runs * s.times, simulations.seed) for s in scenarios]
    results = simulations.of("false verdicts", false_verdicts.of_scenario, calls)
    found = list(zip(scenarios, results, strict=True))
    return Table(
        title="False verdicts",
        text=(
            f"{runs} A/A runs each, in percent. Three tunings that do nothing, two workloads and "
            "two conditions make a family of twelve tests. False is a run with any *improves*, "
            "*regresses* or *real but small*; of the rate of such runs the upper 95 % limit "
            "(Clopper and Pearson) is promised to be at most 6. The limit counts; runs of which "
            "any interval misses are what is left of it without control and margin. Of runs that "
            "open with a control that failed 5 are promised, over all places together."
        ),
        header=[
            "scenario",
            "false runs",
            "upper limit",
            "an interval misses",
            "a control failed",
            "suspended",
            "blocks",
        ],
        rows=[
            [
                scenario.name,
                percent(of.claims),
                f"{100 * of.claims.upper:.1f}",
                percent(of.misses),
                percent(of.failed),
                percent(of.suspended),
                f"{of.blocks:.1f}",
            ]
            for scenario, of in found
        ],
        notes=[f"*{s.name}*: {s.text}." + exception(s.why or s.why_control) for s in scenarios],
        broken=[text for scenario, of in found for text in _falsehoods(scenario, of)],
        values=[
            {
                "scenario": scenario.name,
                "claims": of.claims.to_json(),
                "misses": of.misses.to_json(),
                "failed": of.failed.to_json(),
                "suspended": of.suspended.to_json(),
                "blocks": of.blocks,
            }
            for scenario, of in found
        ],
    )


def _falsehoods(
    scenario: false_verdicts.Scenario, found: false_verdicts.FalseVerdicts
) -> Iterator[str]:
    if scenario.why is not None:
        return
    if found.claims.upper > false_verdicts.LIMIT:
        yield (
            f"{scenario.name}: {percent(found.claims)} % of runs make a false claim, with an "
            f"upper limit of {100 * found.claims.upper:.1f} %"
        )
    if scenario.why_control is None and found.failed.lower_limit(SURE) > ALPHA:
        yield f"{scenario.name}: {percent(found.failed)} % of runs open with a failed control"


def bias_table(simulations: Simulations) -> Table:
    """A quarter of the runs shows what matters here."""
    runs = max(1, simulations.runs // 4)
    cells = list(product(bias.SHAPES, bias.SIZES))
    calls = [(*cell, runs, simulations.seed) for cell in cells]
    found = dict(zip(cells, simulations.of("bias", bias.biased, calls), strict=True))
    return Table(
        title="Bias between equal arms",
        text=(
            f"{runs} runs each, in percent. Control and tunings do nothing, but the run sets them "
            "apart from baseline by so many standard errors of the control's effect: runs that "
            "make any claim / runs that open with a control that failed."
        ),
        header=["shape", *(f"{size} SE" for size in bias.SIZES)],
        rows=[
            [shape, *(_claims_and_failures(found[shape, size]) for size in bias.SIZES)]
            for shape in bias.SHAPES
        ],
        values=[
            {
                "shape": shape,
                "size": size,
                "claims": of.claims.to_json(),
                "failed": of.failed.to_json(),
            }
            for (shape, size), of in found.items()
        ],
    )


def _claims_and_failures(found: bias.Biased) -> str:
    return f"{percent(found.claims)} / {percent(found.failed)}"


def pairs_table(simulations: Simulations) -> Table:
    """Two runs cost twice what one does, so half of the runs are enough."""
    count = max(1, simulations.runs // 2)
    calls = [(name, count, simulations.seed) for name in pairs.SETTINGS]
    results = simulations.of("two runs alike", pairs.false_rows, calls)
    found = dict(zip(pairs.SETTINGS, results, strict=True))
    return Table(
        title="Two runs alike",
        text=(
            f"{count} pairs of A/A runs each, compared with each other: pairs of which any row "
            '"differs", in percent. The upper 95 % limit over both tables is promised to be at '
            "most 6."
        ),
        header=["scenario", "effects", "values", "any row", "upper limit"],
        rows=[
            [
                name,
                percent(of.effects),
                percent(of.values),
                percent(of.any_row),
                f"{100 * of.any_row.upper:.1f}",
            ]
            for name, of in found.items()
        ],
        broken=[
            f"two runs alike, {name}: {percent(of.any_row)} % of pairs differ in some row"
            for name, of in found.items()
            if of.any_row.upper > false_verdicts.LIMIT
        ],
        values=[
            {
                "scenario": name,
                "effects": of.effects.to_json(),
                "values": of.values.to_json(),
                "any": of.any_row.to_json(),
            }
            for name, of in found.items()
        ],
    )
