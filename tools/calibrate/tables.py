"""Print what `make calibrate` prints: a table for each group of simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from tools.calibrate import coverage, harmful, power
from tools.calibrate.false_tables import bias_table, false_verdict_table, pairs_table
from tools.calibrate.fleet_tests import fleet_tests_table
from tools.calibrate.fleets import fleets_table
from tools.calibrate.levels import found_table, marked_table
from tools.calibrate.looks import looks_table
from tools.calibrate.rates import SURE, Rate
from tools.calibrate.sensitivity import sensitivity_table
from tools.calibrate.table import Simulations, Table, exception, percent, shown


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
        low = setting.least is not None and rate.limit(SURE) < setting.least
        high = setting.holds and rate.lower_limit(SURE) > coverage.MOST
        if low or high:
            yield f"{setting.name}, {blocks} blocks: {percent(rate)} % of {which} intervals hold"


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
        "The known loss",
        "Share of workloads in which the known loss (5 % less) is found, in percent.",
        (0.0,),
        lambda found: found.known_loss,
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
    "bias": bias_table,
    "pairs": pairs_table,
    "history": marked_table,
    "history-power": found_table,
    "handicap": handicap_table,
    "power": power_table,
    "equivalence": equivalence_table,
    "harmful": harmful_table,
    "sensitivity": sensitivity_table,
    "looks": looks_table,
    "recommended": recommended_table,
    "fleets": fleets_table,
    "fleet-tests": fleet_tests_table,
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
