"""Show which number of cyclictest should decide: `python -m tools.latency_metrics [RUN]`.

From a run's raw histograms, whatever its plan calls primary: for each candidate how much the
control varies, what becomes of the other guests against baseline and control, and how steep it is
where it is read. docs/decisions/latency-is-open-loop.md holds the table of the recorded example.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

import click

from labctl.base.notation import MINUS
from labctl.store.run_folder import RunFolder
from labctl.store.run_places import find_run
from labctl.store.trial import TrialStatus
from labctl.workloads.open_loop import every_period
from labctl.workloads.readers.cyclictest import read

OUTPUT = "cyclictest.json"
RECORDED = Path(__file__).parents[1] / "tests/unit/fixtures/versions/0.1.0-whole.tar.xz"
NEAR = 0.005
"""A percentile is held against those half a percent above and below it."""

Latencies = Mapping[int, int]
"""Counts by microseconds."""
Trial = tuple[Latencies, Latencies]
"""Latencies as the tool reports them, and those of every period."""
CLOSED, OPEN = 0, 1
Number = Callable[[Trial], float]


def read_trial(path: Path) -> Trial:
    threads, interval_us = read(path.read_text(), str(path))
    wakeups: Counter[int] = Counter()
    for thread in threads:
        wakeups.update(thread.lengths_us or {})
    if interval_us is None or wakeups.total() < sum(sum(t.by_latency_us.values()) for t in threads):
        raise click.ClickException(f"{path}: its periods can't be put back")
    return wakeups, every_period(wakeups, interval_us)


def quantile(q: float, loop: int, trial: Trial) -> float:
    """Return the quantile by nearest rank, in microseconds."""
    latencies = trial[loop]
    rank, seen = max(1, math.ceil(q * sum(latencies.values()) - 1e-9)), 0
    for latency_us, count in sorted(latencies.items()):
        seen += count
        if seen >= rank:
            return latency_us + 0.5
    raise ValueError("no latencies")


def mean(loop: int, trial: Trial) -> float:
    latencies = trial[loop]
    return sum((us + 0.5) * count for us, count in latencies.items()) / sum(latencies.values())


def late(trial: Trial) -> float:
    closed, every = trial
    return 1 - sum(closed.values()) / sum(every.values())


def candidates() -> Iterator[tuple[str, Number, Number | None]]:
    """Name, number, and how many times as large the percentile above is as the one below."""

    def steep(q: float, loop: int, trial: Trial) -> float:
        return quantile(q + NEAR, loop, trial) / quantile(q - NEAR, loop, trial)

    for loop, name in ((CLOSED, "closed loop"), (OPEN, "open loop")):
        for percent in (50, 95, 99) if loop == CLOSED else (50, 90, 94, 95, 96, 99):
            q = percent / 100
            yield f"p{percent}, {name}", partial(quantile, q, loop), partial(steep, q, loop)
        yield f"mean, {name}", partial(mean, loop), None
    yield "share of periods late", late, None


@dataclass(frozen=True, slots=True)
class Recorded:
    """`trials`: by arm and block."""

    baseline: str
    control: str
    arms: tuple[str, ...]
    trials: Mapping[str, Mapping[int, Trial]]

    @classmethod
    def of(cls, run: Path) -> Recorded:
        folder = RunFolder(run)
        plan = folder.load().plan
        trials: defaultdict[str, dict[int, Trial]] = defaultdict(dict)
        for one in folder.trial_folders():
            record = one.read_record()
            raw = one.path / "files" / OUTPUT
            if record.status is TrialStatus.DONE and raw.exists():
                trials[record.cell["tuning"]][record.block] = read_trial(raw)
        baseline, control = plan.baseline or "", plan.control or ""
        guests = [name for name, arm in plan.tunings.items() if arm.kind == "guest"]
        arms = tuple(name for name in guests if name not in (baseline, control))
        return cls(baseline, control, arms, trials)

    def table(self) -> Iterator[str]:
        """Yield each candidate in every guest."""
        arms = (self.baseline, self.control, *self.arms)
        blocks = sorted(set.intersection(*(set(self.trials[arm]) for arm in arms)))
        yield f"| {len(blocks)} blocks | control, sd of log | {' | '.join(self.arms)} | steepest |"
        yield f"|---|---:|{'---:|' * len(self.arms)}---:|"
        for name, number, steep in candidates():
            logs = {
                arm: [math.log(number(self.trials[arm][block]) or math.nan) for block in blocks]
                for arm in arms
            }
            both = list(zip(logs[self.baseline], logs[self.control], strict=True))
            cells = [f"{stdev(c - b for b, c in both):.2f}"]
            for arm in self.arms:
                effects = [t - (b + c) / 2 for t, (b, c) in zip(logs[arm], both, strict=True)]
                effect, sd = fmean(effects), stdev(effects)
                t = effect / sd * math.sqrt(len(blocks))
                cells.append(f"×{math.exp(effect):.2f}, {sd:.2f}, {t:+.1f}".replace("-", MINUS))
            every = (self.trials[arm][block] for arm in arms for block in blocks)
            cells.append(f"×{max(map(steep, every)):.1f}" if steep else "")
            yield f"| {name} | {' | '.join(cells)} |"

    def blocks_of(self, arm: str) -> Iterator[str]:
        """Yield how late each of an arm's trials was, and what its p95 and its mean make of
        that."""
        yield "| block | periods late | p95, open loop | mean, open loop |"
        yield "|---|---:|---:|---:|"
        for block, trial in sorted(self.trials[arm].items(), key=lambda item: late(item[1])):
            p95, every = quantile(0.95, OPEN, trial), mean(OPEN, trial)
            yield f"| {block} | {100 * late(trial):.1f} % | {p95:.0f} µs | {every:.0f} µs |"


@click.command()
@click.argument("run", type=click.Path(exists=True, path_type=Path), default=RECORDED)
@click.option("--arm", help="Instead, each block of this arm.")
def main(run: Path, arm: str | None) -> None:
    """Print the candidates of a run (default: the recorded example) as Markdown: of each arm the
    ratio, the sd of its log from block to block, and t."""
    with find_run(run.parent, str(run.resolve())).unpacked() as folder:
        found = Recorded.of(folder.path)
    for line in found.table() if arm is None else found.blocks_of(arm):
        click.echo(line)


if __name__ == "__main__":
    main()
