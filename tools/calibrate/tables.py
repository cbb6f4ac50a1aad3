"""What `make calibrate` prints: a table for each group of simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tools.calibrate import coverage, false_verdicts, power
from tools.calibrate.rates import Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """`broken`: promises that these numbers don't keep, a sentence each. `values`: the rates that
    the cells show, by their coordinates."""

    title: str
    text: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    broken: Sequence[str] = ()
    values: Sequence[dict[str, Any]] = field(default_factory=list)

    @property
    def markdown(self) -> str:
        lines = [
            f"### {self.title}",
            "",
            self.text,
            "",
            _row(self.header),
            _row(["---", *["---:"] * (len(self.header) - 1)]),
            *map(_row, self.rows),
            "",
            *(f"- {note}" for note in self.notes),
        ]
        return "\n".join(lines).rstrip()

    def to_json(self) -> dict[str, Any]:
        return {"title": self.title, "values": list(self.values), "broken": list(self.broken)}


Progress = Callable[[str], None]

_SURE = 0.999


def coverage_table(runs: int, seed: int, tell: Progress) -> Table:
    rows, notes, broken, values = [], [], [], []
    for setting in coverage.SETTINGS.values():
        row = [setting.name, _promise(setting)]
        for blocks in coverage.BLOCKS:
            tell(f"coverage: {setting.name}, {blocks} blocks")
            found = coverage.coverage(setting, blocks, runs=runs, seed=seed)
            row.append(f"{_percent(found.deciding)} / {_percent(found.exploratory)}")
            broken += _missed(setting, blocks, found)
            values.append(
                {
                    "setting": setting.name,
                    "blocks": blocks,
                    "deciding": found.deciding.to_json(),
                    "exploratory": found.exploratory.to_json(),
                }
            )
        rows.append(row)
        notes.append(f"*{setting.name}*: {setting.text}." + _exception(setting.why))
    return Table(
        title="Coverage",
        text=(
            f"Share of intervals that hold the true effect, in percent, of {runs} runs each: the "
            "one that decides (a family of one test, so 95 %) / an exploratory one of 95 %."
        ),
        header=["noise", "promised", *(f"{blocks} blocks" for blocks in coverage.BLOCKS)],
        rows=rows,
        notes=notes,
        broken=broken,
        values=values,
    )


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
            yield f"{setting.name}, {blocks} blocks: {_percent(rate)} % of {which} intervals hold"


def false_verdict_table(runs: int, seed: int, tell: Progress) -> Table:
    rows, notes, broken, values = [], [], [], []
    for scenario in false_verdicts.SCENARIOS.values():
        tell(f"false verdicts: {scenario.name}")
        found = false_verdicts.false_verdicts(scenario, runs=runs, seed=seed)
        rows.append(
            [
                scenario.name,
                _percent(found.claims),
                f"{100 * found.claims.upper:.1f}",
                _percent(found.misses),
                _percent(found.suspended),
                f"{found.blocks:.1f}",
            ]
        )
        if scenario.text:
            notes.append(f"*{scenario.name}*: {scenario.text}." + _exception(scenario.why))
        if scenario.why is None and found.claims.upper > false_verdicts.LIMIT:
            broken.append(
                f"{scenario.name}: {_percent(found.claims)} % of runs make a false claim, with an "
                f"upper limit of {100 * found.claims.upper:.1f} %"
            )
        values.append(
            {
                "scenario": scenario.name,
                "claims": found.claims.to_json(),
                "misses": found.misses.to_json(),
                "suspended": found.suspended.to_json(),
                "blocks": found.blocks,
            }
        )
    return Table(
        title="False verdicts",
        text=(
            f"{runs} A/A runs each, in percent. Three tunings that do nothing, two workloads and "
            "two conditions make a family of twelve tests. False is a run with any *improves*, "
            "*regresses* or *real but small*; of the rate of such runs the upper 95 % limit "
            "(Clopper and Pearson) is promised to be at most 6."
        ),
        header=[
            "scenario",
            "false runs",
            "upper limit",
            "runs with an interval that misses",
            "tests suspended",
            "blocks",
        ],
        rows=rows,
        notes=notes,
        broken=broken,
        values=values,
    )


def power_table(runs: int, seed: int, tell: Progress) -> Table:
    return _powers(
        "Power",
        "Share of tunings that are found to *improve*, in percent, by their true effect. The "
        "margin is 5 %, so that of tunings that are better by just that only those can be found "
        "whose estimate is too high.",
        power.EFFECTS,
        lambda found: found.improves,
        (runs, seed, tell),
    )


def equivalence_table(runs: int, seed: int, tell: Progress) -> Table:
    return _powers(
        "Equivalence",
        "Share of tunings that are called *equivalent* within 5 %, in percent, by their true "
        "effect. At 5 % the verdict is false.",
        power.EQUAL,
        lambda found: found.equivalent,
        (runs, seed, tell),
    )


def handicap_table(runs: int, seed: int, tell: Progress) -> Table:
    rows, values = [], []
    for noise in power.NOISES:
        row = [_share(noise)]
        for blocks in power.BLOCKS:
            tell(f"handicap: {_share(noise)} noise, {blocks} blocks")
            found = power.power(power.EQUAL[0], noise, blocks, runs=runs, seed=seed).handicap
            row.append(_percent(found))
            values.append({"noise": noise, "blocks": blocks, "found": found.to_json()})
        rows.append(row)
    return Table(
        title="The handicap",
        text=(
            "Share of workloads in which the handicap (5 % less) is found, in percent, by the "
            "standard deviation of a block's effect."
        ),
        header=["noise", *(f"{blocks} blocks" for blocks in power.BLOCKS)],
        rows=rows,
        values=values,
    )


GROUPS: dict[str, Callable[[int, int, Progress], Table]] = {
    "coverage": coverage_table,
    "false-verdicts": false_verdict_table,
    "handicap": handicap_table,
    "power": power_table,
    "equivalence": equivalence_table,
}


def _powers(
    title: str,
    text: str,
    effects: Sequence[float],
    which: Callable[[power.Power], Rate],
    how: tuple[int, int, Progress],
) -> Table:
    runs, seed, tell = how
    rows, values = [], []
    for noise in power.NOISES:
        for blocks in power.BLOCKS:
            tell(f"{title.lower()}: {_share(noise)} noise, {blocks} blocks")
            found = [
                which(power.power(effect, noise, blocks, runs=runs, seed=seed))
                for effect in effects
            ]
            rows.append([_share(noise), str(blocks), *map(_percent, found)])
            values += [
                {"noise": noise, "blocks": blocks, "effect": effect, "found": rate.to_json()}
                for effect, rate in zip(effects, found, strict=True)
            ]
    return Table(
        title=title,
        text=f"{text} {runs} runs each, of four tests.",
        header=["noise", "blocks", *(f"effect {_share(effect)}" for effect in effects)],
        rows=rows,
        values=values,
    )


def _exception(why: str | None) -> str:
    return f" An exception: {why}." if why else ""


def _percent(rate: Rate) -> str:
    return f"{100 * rate.share:.1f}" if rate.n else "none"


def _share(value: float) -> str:
    return f"{100 * value:g} %"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
