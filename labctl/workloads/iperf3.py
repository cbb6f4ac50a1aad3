"""Measure with iperf3 how many bytes a second TCP carries to the peer, or from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from labctl.base.command import Command
from labctl.base.errors import BrokenError
from labctl.base.jsontext import parse_json
from labctl.store.samples import Reading, sample
from labctl.store.trial import TrialFolder
from labctl.workloads.windows import WANTED, RateWindow, batch_errors
from labctl.workloads.workload import (
    ChoiceParameter,
    IntegerParameter,
    Parameter,
    Parameters,
    Peer,
    Setting,
    WorkloadBase,
    peer_of,
)

BINARY = "/usr/bin/iperf3"
STDOUT = "stdout.txt"
PORT = 5201
SHORTEST_S = 1
SHORTEST_INTERVAL_S, LONGEST_INTERVAL_S = 0.1, 60.0
BITS_PER_BYTE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Iperf3(WorkloadBase):
    name: str = "iperf3"
    operation: str = "one byte that arrived"
    parameters: tuple[Parameter, ...] = (
        ChoiceParameter(
            name="direction",
            default="send",
            choices=("send", "receive"),
            description="whether the machine sends or the peer does",
        ),
        IntegerParameter(
            name="streams",
            default=1,
            minimum=1,
            maximum=64,
            description="connections at once; more than one is what several queues are for",
        ),
        IntegerParameter(
            name="length",
            default=131_072,
            minimum=64,
            maximum=1_048_576,
            description="bytes that a program hands over at a time",
        ),
    )
    binaries: tuple[str, ...] = (BINARY,)
    primary: str = "bandwidth"
    rate_metric: str | None = "bandwidth"

    def peer(self, parameters: Parameters) -> Peer | None:
        command = (BINARY, "--server", "--version4", f"--port={PORT}")
        return Peer(command=Command(argv=command), protocol="tcp", port=PORT)

    def command(self, setting: Setting) -> Command:
        self.check_duration(setting.duration_s)
        interval_s = min(max(SHORTEST_INTERVAL_S, setting.duration_s / WANTED), LONGEST_INTERVAL_S)
        return _command(setting, int(setting.duration_s), interval_s=interval_s)

    def warmup_command(self, setting: Setting, window_s: float, rate: float | None) -> Command:
        # Several windows in one process, which iperf3 tells apart; it takes whole seconds.
        return _command(setting, SHORTEST_S, interval_s=max(window_s, SHORTEST_INTERVAL_S))

    def window_rates(self, stdout: str, files: Mapping[str, bytes]) -> list[float]:
        report = _report(stdout, STDOUT)
        rates = [
            _number(interval, STDOUT, "sum", "bits_per_second") / BITS_PER_BYTE
            for interval in _intervals(report, STDOUT)
        ]
        if not rates:
            raise BrokenError(f"{STDOUT}: iperf3 reports no interval")
        return rates

    def parse(self, raw: TrialFolder) -> Iterator[Reading]:
        where = str(raw.path / STDOUT)
        report = _report(raw.read_text(STDOUT), where)
        # What arrived: what was sent and is still on its way at the end is no throughput.
        received = _number(report, where, "end", "sum_received", "bytes")
        seconds = _number(report, where, "end", "sum_received", "seconds")
        if received <= 0 or seconds <= 0:
            raise BrokenError(f"{where}: iperf3 carried no byte")
        yield sample("operations", received, source=STDOUT)
        yield sample("bandwidth", received / seconds, source=STDOUT)
        yield sample(
            "retransmits", _number(report, where, "end", "sum_sent", "retransmits"), source=STDOUT
        )
        yield from batch_errors(_windows(report, where), "bandwidth", STDOUT)


def _command(setting: Setting, seconds: int, *, interval_s: float) -> Command:
    parameters = setting.parameters
    return Command(
        argv=(
            BINARY,
            f"--client={peer_of(setting, 'iperf3')}",
            "--version4",
            f"--port={PORT}",
            f"--time={seconds}",
            f"--interval={interval_s:g}",
            f"--parallel={parameters['streams']}",
            f"--length={parameters['length']}",
            *(("--reverse",) if parameters["direction"] == "receive" else ()),
            "--json",
        )
    )


def _report(text: str, where: str) -> Mapping[str, Any]:
    try:
        report = parse_json(text)
    except ValueError as error:
        raise BrokenError(f"{where}: expected iperf3's JSON, found something else") from error
    if not isinstance(report, dict):
        raise BrokenError(f"{where}: expected iperf3's JSON, found {text[:80]!r}")
    if said := report.get("error"):
        raise BrokenError(f"{where}: iperf3 ended with '{said}'")
    return report


def _windows(report: Mapping[str, Any], where: str) -> list[RateWindow]:
    return [
        RateWindow(_number(one, where, "sum", "seconds"), _number(one, where, "sum", "bytes"))
        for one in _intervals(report, where)
    ]


def _intervals(report: Mapping[str, Any], where: str) -> list[Any]:
    """Return the intervals, [] where iperf3 reports none."""
    found = report.get("intervals", [])
    if not isinstance(found, list):
        raise BrokenError(f"{where}: expected a list at 'intervals', found {str(found)[:80]!r}")
    return found


def _number(report: Mapping[str, Any], where: str, *keys: str) -> float:
    node: Any = report
    for key in keys:
        node = node.get(key) if isinstance(node, dict) else None
    if isinstance(node, bool) or not isinstance(node, int | float):
        raise BrokenError(f"{where}: expected a number at '{'.'.join(keys)}', found {node!r}")
    return float(node)


IPERF3 = Iperf3()
