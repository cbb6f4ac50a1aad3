"""`make bench`: what it makes of measurements. Nothing is measured here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.base import yaml
from labctl.base.errors import BrokenError, BusyError
from labctl.base.events import silent
from labctl.base.paths import StatePaths
from labctl.base.units import Better, Unit
from labctl.guest.recipe import RecipeFile, load_recipe
from labctl.store.records.run_record import RunRecord
from labctl.store.run_folder import LoadedRun, LoadedTrial
from labctl.store.samples import Reading, Sample, Unavailable
from labctl.store.trial import TrialFolder, TrialRecord, TrialStatus
from tools.bench import commands, figures, guests, sweeps, traces
from tools.bench.__main__ import GROUPS, measure
from tools.bench.benchmark import IMAGE, Benchmark


def record(number: int, second: float, **changes: Any) -> TrialRecord:
    """A trial of 10 measured seconds, 1 of warm-up and 0.25 around them."""
    trial = TrialRecord(
        number=number,
        attempt=1,
        block=1,
        boot=1,
        position=1,
        cell={"tuning": "baseline"},
        status=TrialStatus.DONE,
        measured_s=10.0,
        warmup_s=1.0,
        wall_s=11.25,
        started_at=f"2026-01-01T00:{int(second) // 60:02d}:{second % 60:06.3f}+00:00",
    )
    return replace(trial, **changes)


def loaded(*records: TrialRecord, cpu: float | None = 0.002) -> LoadedRun:
    if cpu is None:
        reading: Reading = Unavailable(metric="host_cpu{thread=labctl}", reason="gone")
    else:
        reading = Sample(
            metric="host_cpu",
            labels={"thread": "labctl"},
            value=cpu,
            unit=Unit.CPUS,
            better=Better.NEITHER,
            source="host.json",
        )
    trials = tuple(LoadedTrial(r, (reading,), TrialFolder(Path("none"))) for r in records)
    return LoadedRun("run", RunRecord(), {}, trials, ())


@pytest.mark.parametrize(
    ("comparison", "value", "met"),
    [
        ("under", 0.99, True),
        ("under", 1.0, False),
        ("at most", 1.0, True),
        ("at most", 1.01, False),
        ("at least", 1.0, True),
        ("at least", 0.99, False),
        ("at least", None, None),
    ],
)
def test_a_figure_says_whether_its_target_is_met(
    comparison: str, value: float | None, met: bool | None
) -> None:
    figure = figures.Figure(name="n", value=value, unit="s", comparison=comparison, limit=1.0)
    assert figure.met is met
    assert figure.to_json()["met"] is met


def test_what_surrounds_a_trial_leaves_out_those_that_were_never_measured() -> None:
    failed = record(2, 20, measured_s=0.0, warmup_s=0.0, wall_s=60.0)
    assert sweeps.inside_trials([record(1, 0), failed]) == [pytest.approx(0.25)]


def test_a_gap_is_only_between_trials_of_one_restore() -> None:
    records = [
        record(3, 43, position=2),
        record(1, 0),
        record(2, 11.35),  # 0.1 s after trial 1 has ended
        record(2, 30, attempt=2),
    ]
    assert sweeps.between_trials(records) == [pytest.approx(0.1)]


def test_a_sweeps_share_counts_all_of_its_wall_time() -> None:
    run = loaded(record(1, 0), record(2, 11.35))
    around, share, cpu, memory = sweeps.sweep_figures(run, wall_s=44.0, peak_bytes=150_000_000)
    assert share.value == pytest.approx(0.5)
    assert share.met is False
    assert around.value == pytest.approx(0.35)
    assert cpu.value == pytest.approx(0.2)
    assert memory.value == pytest.approx(150.0)


def test_labctls_cpu_is_that_of_the_worst_trial() -> None:
    good, bad = loaded(record(1, 0)), loaded(record(2, 11.35), cpu=0.02)
    run = replace(good, trials=good.trials + bad.trials)
    figure = sweeps.sweep_figures(run, wall_s=44.0, peak_bytes=1)[2]
    assert figure.value == pytest.approx(2.0)
    assert figure.met is False


def test_a_sweep_without_samples_gives_no_figures() -> None:
    run = loaded(record(1, 0), record(2, 11.35), cpu=None)
    with pytest.raises(BrokenError, match="2 attempts"):
        sweeps.sweep_figures(run, wall_s=44.0, peak_bytes=1)


def test_peak_memory_is_the_kernels_high_water_mark() -> None:
    assert sweeps.peak_rss_bytes("Name:\tpython\nVmHWM:\t  1000 kB\nVmRSS:\t 10 kB\n") == 1_024_000
    with pytest.raises(BrokenError):
        sweeps.peak_rss_bytes("Name:\tpython\n")


def test_a_sweep_is_measured_before_this_process_has_opened_libvirt() -> None:
    """libvirt keeps its files from any other process then."""
    order = list(GROUPS)
    assert order.index("sweep") < min(order.index("restore"), order.index("boot"))


def test_what_cannot_be_measured_is_named_and_the_rest_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def busy(benchmark: object) -> list[Any]:
        raise BusyError("this host is in use")

    def quick(benchmark: object) -> list[Any]:
        return [figures.measured(commands.HELP, [0.1, 0.2, 0.9], "")]

    monkeypatch.setitem(GROUPS, "sweep", (busy, GROUPS["sweep"][1]))
    monkeypatch.setitem(GROUPS, "help", (quick, GROUPS["help"][1]))
    benchmark = Benchmark(StatePaths(Path("none")), silent)
    helped, *lost = measure(benchmark, ["sweep", "help"])
    assert [figure.value for figure in lost] == [None] * 4
    assert all("this host is in use" in figure.note for figure in lost)
    assert helped.value == 0.2


def reduced(wall_s: float, peak_mb: int) -> traces.Reduced:
    return traces.Reduced(
        wall_s=wall_s,
        events=20_000_000,
        lost=0,
        import_s=0.1,
        read_s=0.2,
        reduce_s=0.3,
        cpu_s=0.5,
        imported_bytes=100 * 10**6,
        peak_bytes=peak_mb * 10**6,
        waits={"7": (1_500_000_000, 10), "8": (500_000_000, 20)},
    )


def test_paces_are_of_medians_and_memory_is_of_the_worst() -> None:
    ours = [reduced(1.0, 300), reduced(9.0, 920), reduced(2.0, 200)]
    script, latency, memory = traces.trace_figures(ours, [1.0, 5.0, 0.5], 8.0, 2.1, 120 * 10**6)
    assert (script.value, script.met) == (4.0, False)
    assert "20,000,000 events" in script.note
    assert "waits of 2.100 s against 2.000 s" in script.note
    assert (latency.value, latency.met) == (0.5, False)
    assert (memory.value, memory.met) == (510.0, False)


def test_the_untrimmed_image_differs_by_nothing_but_trimming() -> None:
    untrimmed = yaml.load(RecipeFile, guests.UNTRIMMED)
    trimmed = load_recipe(IMAGE).spec
    assert set(untrimmed.packages) ^ set(trimmed.packages) == {
        "initramfs-tools",
        "tiny-initramfs",
    }
    assert (untrimmed.suite, untrimmed.kernel) == (trimmed.suite, trimmed.kernel)
    assert untrimmed.command_line == trimmed.command_line
    assert not [*untrimmed.mask, *untrimmed.mask_generators, *untrimmed.exclude]
    assert not any("cloud" in path or "systemd" in path for path in untrimmed.files)
