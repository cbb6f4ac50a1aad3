"""Read the reports of programs with dedicated readers, whose metrics have labctl's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from labctl.base import plugins
from labctl.base.errors import BrokenError, UsageError, nearest
from labctl.base.templates import fill_in
from labctl.base.units import CLOSED, LARGEST
from labctl.store.samples import Reading
from labctl.workloads import open_loop
from labctl.workloads.histogram import PERCENTILES
from labctl.workloads.readers import cyclictest, fio, jvm, oslat, rtla, sockperf, stream, sysbench

Argument = str | int | float | bool
Arguments = Mapping[str, Argument]
_LATENCIES = (*(f"{CLOSED}{name}" for name in PERCENTILES), LARGEST)


@dataclass(frozen=True, slots=True)
class Text:
    """Hold one text of a report, under its name for errors and as the source of samples."""

    text: str
    where: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Describe a reader. `others`: the metrics of a choice in place of `metrics`; `rates`: the
    rates of the windows of a warm-up, if the report has a single one; `file`: the default path of
    its program's report, None for stdout; `choices` and `numbers`: its arguments; `beside`: the
    argument that names a second, optional file, with its default."""

    read: Callable[[Text, Text | None, Arguments], Iterator[Reading]]
    metrics: tuple[str, ...]
    others: Mapping[Argument, tuple[str, ...]] = field(default_factory=dict)
    rates: Callable[[Text | None, Text | None], list[float]] | None = None
    file: str | None = None
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    numbers: tuple[str, ...] = ()
    beside: tuple[str, str] | None = None


@cache
def of_plugins() -> Mapping[str, Named]:
    """Return the readers of plug-ins by name."""
    return plugins.rows(plugins.Group.READERS, Named, READERS)


def named(reader: str) -> Named:
    """Return a reader. Raises LookupError for an unknown one."""
    return READERS[reader] if reader in READERS else of_plugins()[reader]


def files(reader: str, arguments: Arguments, file: str | None) -> tuple[str, ...]:
    """Return the files that a reader reads, its report first; () for stdout."""
    one = named(reader)
    found = [file or one.file]
    if one.beside is not None:
        found.append(str(arguments.get(*one.beside)))
    return tuple(name for name in found if name is not None)


def metrics_of(reader: str, arguments: Arguments) -> tuple[str, ...]:
    """Return the metrics of a reader with these arguments."""
    one = named(reader)
    chosen = (one.others[value] for value in arguments.values() if value in one.others)
    return next(chosen, one.metrics)


def filled(reader: str | None, arguments: Arguments, variables: Mapping[str, object]) -> Arguments:
    """Return arguments with the `{{ }}` of numbers filled in. Raises UsageError."""
    if reader is None:
        return arguments
    numbers = named(reader).numbers
    return {
        key: _whole(key, fill_in(value, variables, f"reader '{reader}'"))
        if key in numbers and isinstance(value, str)
        else value
        for key, value in arguments.items()
    }


def _whole(key: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"'{key}': expected a whole number, got {text!r}") from error


def check_arguments(reader: str, arguments: Arguments) -> None:
    """Raise ValueError for arguments that the reader does not accept."""
    one = named(reader)
    texts = (one.beside[0],) if one.beside is not None else ()
    known = (*one.choices, *one.numbers, *texts)
    for key, value in arguments.items():
        if key not in known:
            raise ValueError(f"reader '{reader}' has no argument '{key}'. {nearest(key, known)}")
        if key in one.choices and value not in one.choices[key]:
            choices = ", ".join(one.choices[key])
            raise ValueError(
                f"reader '{reader}': '{key}': expected one of {choices}, got {value!r}"
            )
        if key in one.numbers and not _is_number(value):
            raise ValueError(f"reader '{reader}': '{key}': expected a whole number, got {value!r}")
        if key in texts and (not isinstance(value, str) or "/" in value):
            raise ValueError(f"reader '{reader}': '{key}': expected a file name, got {value!r}")


def _is_number(value: Argument) -> bool:
    """Return whether it is a whole number, or becomes one through a parameter."""
    if isinstance(value, str):
        return "{{" in value
    return isinstance(value, int) and not isinstance(value, bool)


def _sysbench(report: Text, _: Text | None, arguments: Arguments) -> Iterator[Reading]:
    rates = {"printed": sysbench.printed_rate, "counted": sysbench.event_rate}
    rate = rates[str(arguments.get("rate", "counted"))](report.text, report.where)
    return sysbench.readings(report.text, report.where, report.source, rate)


def _fio(report: Text, log: Text | None, arguments: Arguments) -> Iterator[Reading]:
    left = fio.Report(
        report.text,
        report.where,
        report.source,
        log.text if log is not None else None,
        log.source if log is not None else "",
    )
    return fio.flushes(left) if arguments.get("of") == "flushes" else fio.random(left)


def _fio_rates(report: Text | None, log: Text | None) -> list[float]:
    logged = fio.logged(log.text, log.where) if log is not None else {}
    if logged:
        return list(logged.values())
    if report is None:
        raise BrokenError("fio wrote neither its log of windows nor its report")
    return [fio.whole_rate(report.text, report.where)]


def _cyclictest(report: Text, _: Text | None, __: Arguments) -> Iterator[Reading]:
    yield from cyclictest.readings(report.text, report.where, report.source)
    yield from cyclictest.periods(report.text, report.where, report.source)


def _oslat(report: Text, _: Text | None, __: Arguments) -> Iterator[Reading]:
    return oslat.readings(report.text, report.where, report.source)


def _rtla(report: Text, _: Text | None, arguments: Arguments) -> Iterator[Reading]:
    if arguments.get("tool", "timerlat") == "osnoise":
        yield from rtla.osnoise(report.text, report.where, report.source)
        return
    yield from rtla.timerlat(report.text, report.where, report.source)
    interval_us = arguments.get("interval_us", _TIMERLAT_US)
    yield from rtla.periods(report.text, report.where, report.source, interval_us)


def _sockperf(report: Text, _: Text | None, __: Arguments) -> Iterator[Reading]:
    return sockperf.readings(report.text, report.where, report.source)


def _stream(report: Text, _: Text | None, __: Arguments) -> Iterator[Reading]:
    return stream.readings(report.text, report.where, report.source)


def _jvm(log: Text, marks: Text | None, _: Arguments) -> Iterator[Reading]:
    if marks is None:
        raise BrokenError(f"{log.where}: the program wrote no marks beside it")
    return jvm.readings(log.text, marks.text, (log.where, marks.where), log.source)


_TIMERLAT_US = 1000
"""Default period of `rtla timerlat hist`."""

READERS: Mapping[str, Named] = {
    "sysbench": Named(
        read=_sysbench,
        metrics=("events_per_s", "operations", *_LATENCIES),
        choices={"rate": ("counted", "printed")},
    ),
    "fio": Named(
        read=_fio,
        metrics=("iops", "bandwidth", "operations", *_LATENCIES),
        others={"flushes": ("iops", "operations", *_LATENCIES)},
        rates=_fio_rates,
        file="fio.json",
        choices={"of": ("requests", "flushes")},
        beside=("log", "windows_iops.log"),
    ),
    "cyclictest": Named(
        read=_cyclictest,
        metrics=("wakeups", "stall_time", *_LATENCIES, *open_loop.METRICS),
        file="cyclictest.json",
    ),
    "oslat": Named(read=_oslat, metrics=("noise", "stalls", LARGEST), file="oslat.json"),
    "rtla": Named(
        read=_rtla,
        metrics=("wakeups", *_LATENCIES, *open_loop.METRICS),
        others={"osnoise": ("noise", "stalls", LARGEST)},
        choices={"tool": ("timerlat", "osnoise")},
        numbers=("interval_us",),
    ),
    "sockperf": Named(
        read=_sockperf,
        metrics=("round_trips", "round_trips_per_s", *_LATENCIES),
        file="sockperf.csv",
    ),
    "game-stream": Named(read=_stream, metrics=stream.METRICS, file="stream.json"),
    "jvm": Named(
        read=_jvm,
        metrics=(
            *("gc_pauses", "gc_pause_time", "gc_pause_max", "gc_stalls", "jvm_stopped"),
            *("jit_compiled", "jit_compiled_before", "jit_discarded"),
        ),
        file="jvm.log",
        beside=("marks", "marks.csv"),
    ),
}
