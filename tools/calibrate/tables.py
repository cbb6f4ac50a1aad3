"""What `make calibrate` prints: a table for each group of simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from tools.calibrate import coverage, false_verdicts, harmful, pairs, power
from tools.calibrate.rates import Rate
from tools.calibrate.sensitivity import sensitivity_table
from tools.calibrate.table import Simulations, Table, exception, percent, shown

_SURE = 0.999


def coverage_table(simulations: Simulations) -> Table:
    runs, seed = simulations.runs, simulations.seed
    cells = list(product(coverage.SETTINGS, coverage.BLOCKS))
    calls = [(name, blocks, runs, seed) for name, blocks in cells]
    found = dict(zip(cells, simulations.of("coverage", coverage.coverage, calls), strict=True))
    settings = coverage.SETTINGS.values()
    return Table(
        title="Coverage",
        text=(
            f"Share of intervals that hold the true effect, in percent, of {runs} runs each: the "
            "one that decides (a family of one test, so 95 %) / an exploratory one of 95 %."
        ),
        header=["noise", "promised", *(f"{blocks} blocks" for blocks in coverage.BLOCKS)],
        rows=[
            [
                setting.name,
                _promise(setting),
                *(_both(found[setting.name, blocks]) for blocks in coverage.BLOCKS),
            ]
            for setting in settings
        ],
        notes=[f"*{s.name}*: {s.text}." + exception(s.why) for s in settings],
        broken=[
            text
            for (name, blocks), covered in found.items()
            for text in _missed(coverage.SETTINGS[name], blocks, covered)
        ],
        values=[
            {
                "setting": name,
                "blocks": blocks,
                "deciding": covered.deciding.to_json(),
                "exploratory": covered.exploratory.to_json(),
            }
            for (name, blocks), covered in found.items()
        ],
    )


def _both(found: coverage.Coverage) -> str:
    return f"{percent(found.deciding)} / {percent(found.exploratory)}"


def _promise(setting: coverage.Setting) -> str:
    if setting.least is None:
        return "exception"
    return f"{100 * setting.least:.0f} to {100 * coverage.MOST:.0f}" if setting.holds else "≥ 90"


def _missed(setting: coverage.Setting, blocks: int, found: coverage.Coverage) -> Iterator[str]:
    """Promises that so many runs refute, with a chance of one in a thousand to be wrong."""
    for which, rate in (("deciding", found.deciding), ("exploratory", found.exploratory)):
        low = setting.least is not None and rate.limit(_SURE) < setting.least
        high = setting.holds and rate.lower_limit(_SURE) > coverage.MOST
        if low or high:
            yield f"{setting.name}, {blocks} blocks: {percent(rate)} % of {which} intervals hold"


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
            "any interval misses are what is left of it without control and margin."
        ),
        header=[
            "scenario",
            "false runs",
            "upper limit",
            "an interval misses",
            "suspended",
            "blocks",
        ],
        rows=[
            [
                scenario.name,
                percent(of.claims),
                f"{100 * of.claims.upper:.1f}",
                percent(of.misses),
                percent(of.suspended),
                f"{of.blocks:.1f}",
            ]
            for scenario, of in found
        ],
        notes=[f"*{s.name}*: {s.text}." + exception(s.why) for s in scenarios],
        broken=[
            f"{scenario.name}: {percent(of.claims)} % of runs make a false claim, with an upper "
            f"limit of {100 * of.claims.upper:.1f} %"
            for scenario, of in found
            if scenario.why is None and of.claims.upper > false_verdicts.LIMIT
        ],
        values=[
            {
                "scenario": scenario.name,
                "claims": of.claims.to_json(),
                "misses": of.misses.to_json(),
                "suspended": of.suspended.to_json(),
                "blocks": of.blocks,
            }
            for scenario, of in found
        ],
    )


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
                _percent(of.effects),
                _percent(of.values),
                _percent(of.any_row),
                f"{100 * of.any_row.upper:.1f}",
            ]
            for name, of in found.items()
        ],
        broken=[
            f"two runs alike, {name}: {_percent(of.any_row)} % of pairs differ in some row"
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


def power_table(simulations: Simulations) -> Table:
    return _powers(
        simulations,
        "Power",
        "Share of tunings that are found to *improve*, in percent, by their true effect. The "
        "margin is 5 %, so that of tunings that are better by just that only those can be found "
        "whose estimate is too high.",
        power.EFFECTS,
        lambda found: found.improves,
    )


def equivalence_table(simulations: Simulations) -> Table:
    return _powers(
        simulations,
        "Equivalence",
        "Share of tunings that are called *equivalent* within 5 %, in percent, by their true "
        "effect. At 5 % the verdict is false.",
        power.EQUAL,
        lambda found: found.equivalent,
    )


def handicap_table(simulations: Simulations) -> Table:
    return _powers(
        simulations,
        "The handicap",
        "Share of workloads in which the handicap (5 % less) is found, in percent.",
        (0.0,),
        lambda found: found.handicap,
    )


def harmful_table(simulations: Simulations) -> Table:
    scenarios = harmful.SCENARIOS.values()
    runs = simulations.runs
    cells = [(s.name, sd) for s in scenarios for sd in harmful.NOISES]
    calls = [(*cell, runs, simulations.seed) for cell in cells]
    results = simulations.of("harmful recommendations", harmful.of_scenario, calls)
    found = dict(zip(cells, results, strict=True))
    return Table(
        title="Harmful recommendations",
        text=(
            f"{runs} runs each: of how many a tuning is recommended that is worse by what the "
            f"study calls harmful ({shown(harmful.ALLOWED)}) or more, in percent. All tunings "
            "gain 62 % in a rate. Columns: the standard deviation of a trial's latency, on the log "
            f"scale. The upper 95 % limit is promised to be at most {100 * harmful.LIMIT:g}."
        ),
        header=["scenario", *(f"{sd:g}" for sd in harmful.NOISES), "largest upper limit"],
        rows=[
            [
                s.name,
                *(percent(found[s.name, sd].harmful) for sd in harmful.NOISES),
                f"{100 * max(found[s.name, sd].harmful.upper for sd in harmful.NOISES):.1f}",
            ]
            for s in scenarios
        ],
        notes=[f"*{s.name}*: {s.text}." + exception(s.why) for s in scenarios],
        broken=[
            f"{name}, noise {sd:g}: {percent(of.harmful)} % of runs recommend harm, with an upper "
            f"limit of {100 * of.harmful.upper:.1f} %"
            for (name, sd), of in found.items()
            if harmful.SCENARIOS[name].why is None and of.harmful.upper > harmful.LIMIT
        ],
        values=[
            {
                "scenario": name,
                "noise": sd,
                "harmful": of.harmful.to_json(),
                "any": of.any.to_json(),
                "priced": of.priced.to_json(),
            }
            for (name, sd), of in found.items()
        ],
    )


def recommended_table(simulations: Simulations) -> Table:
    runs = max(1, simulations.runs // 4)
    cells = [(loss, sd) for loss in harmful.TRUE_LOSSES for sd in harmful.NOISES]
    calls = [(*cell, runs, simulations.seed) for cell in cells]
    results = simulations.of("recommendations", harmful.of_loss, calls)
    found = dict(zip(cells, results, strict=True))
    return Table(
        title="Recommendations",
        text=(
            f"{runs} runs each, of two tunings that gain 62 % in a rate: the share in which one is "
            "recommended / in which the answer names a price instead, in percent, by their true "
            f"latency as a multiple of baseline's. The study allows {shown(harmful.ALLOWED)}, so "
            "the last row is harmful. Columns as above."
        ),
        header=["true latency", *(f"{sd:g}" for sd in harmful.NOISES)],
        rows=[
            [
                f"×{loss:g}",
                *(
                    f"{percent(found[loss, sd].any)} / {percent(found[loss, sd].priced)}"
                    for sd in harmful.NOISES
                ),
            ]
            for loss in harmful.TRUE_LOSSES
        ],
        values=[
            {
                "loss": loss,
                "noise": sd,
                "any": of.any.to_json(),
                "priced": of.priced.to_json(),
            }
            for (loss, sd), of in found.items()
        ],
    )


GROUPS: dict[str, Callable[[Simulations], Table]] = {
    "coverage": coverage_table,
    "false-verdicts": false_verdict_table,
    "pairs": pairs_table,
    "handicap": handicap_table,
    "power": power_table,
    "equivalence": equivalence_table,
    "harmful": harmful_table,
    "sensitivity": sensitivity_table,
    "recommended": recommended_table,
}


def _powers(
    simulations: Simulations,
    title: str,
    text: str,
    effects: Sequence[float],
    which: Callable[[power.Power], Rate],
) -> Table:
    """Blocks and effects go to the right, noise goes down. Each run has several answers to what is
    asked here, so a quarter of the runs is enough."""
    runs = max(1, simulations.runs // 4)
    columns = list(product(effects, power.BLOCKS))
    cells = [(effect, noise, blocks) for noise in power.NOISES for effect, blocks in columns]
    calls = [(*cell, runs, simulations.seed) for cell in cells]
    results = simulations.of(title.lower(), power.power, calls)
    found = {cell: which(result) for cell, result in zip(cells, results, strict=True)}
    return Table(
        title=title,
        text=(
            f"{text} Noise is the standard deviation of a block's effect. {runs} runs each, with a "
            "family of four tests."
        ),
        header=[
            "noise",
            *(
                f"{shown(effect)}, {blocks} blocks" if len(effects) > 1 else f"{blocks} blocks"
                for effect, blocks in columns
            ),
        ],
        rows=[
            [
                shown(noise),
                *(percent(found[effect, noise, blocks]) for effect, blocks in columns),
            ]
            for noise in power.NOISES
        ],
        values=[
            {"effect": effect, "noise": noise, "blocks": blocks, "found": rate.to_json()}
            for (effect, noise, blocks), rate in found.items()
        ],
    )
