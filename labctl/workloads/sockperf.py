"""Measure with sockperf ping-pong how long a request to the peer and its answer take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from labctl.base.command import Command
from labctl.store.samples import Reading
from labctl.store.trial import TrialFolder
from labctl.workloads.readers import sockperf as reader
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

BINARY = "/usr/bin/sockperf"
OUTPUT = "sockperf.csv"
PORT = 11111
SHORTEST_S = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sockperf(WorkloadBase):
    name: str = "sockperf"
    operation: str = "one round trip to a peer, at a fixed pace"
    parameters: tuple[Parameter, ...] = (
        ChoiceParameter(
            name="protocol", default="udp", choices=("udp", "tcp"), description="of the transport"
        ),
        # A pace that both sides can keep where packets take microseconds: latencies under the same
        # load compare, and every round trip's time is a line of the report.
        IntegerParameter(
            name="rate",
            default=2000,
            minimum=1,
            maximum=100_000,
            description="requests per second, fewer where the answers take longer",
        ),
        IntegerParameter(
            name="size",
            default=64,
            minimum=14,
            maximum=1400,
            description="bytes of a request and of its answer",
        ),
    )
    binaries: tuple[str, ...] = (BINARY,)
    primary: str = "latency_p95"

    def peer(self, parameters: Parameters) -> Peer | None:
        command = (BINARY, "server", "--ip=0.0.0.0", f"--port={PORT}", *_transport(parameters))
        return Peer(command=Command(argv=command), protocol=str(parameters["protocol"]), port=PORT)

    def command(self, setting: Setting) -> Command:
        self.check_duration(setting.duration_s)
        return _command(setting, int(setting.duration_s))

    def warmup_command(self, setting: Setting, window_s: float, rate: float | None) -> Command:
        # Of a fixed pace, so there is no rate to compare: all windows are one, and as short as
        # sockperf can.
        return _command(setting, SHORTEST_S)

    def window_rates(self, stdout: str, files: Mapping[str, bytes]) -> list[float]:
        return []

    def parse(self, raw: TrialFolder) -> Iterator[Reading]:
        source = f"files/{OUTPUT}"
        return reader.readings(raw.read_text(source), str(raw.path / source), source)


def _transport(parameters: Parameters) -> tuple[str, ...]:
    return ("--tcp",) if parameters["protocol"] == "tcp" else ()


def _command(setting: Setting, seconds: int) -> Command:
    parameters = setting.parameters
    return Command(
        argv=(
            BINARY,
            "ping-pong",
            f"--ip={peer_of(setting, 'sockperf')}",
            f"--port={PORT}",
            *_transport(parameters),
            f"--time={seconds}",
            f"--mps={parameters['rate']}",
            f"--msg-size={parameters['size']}",
            # It halves what it measures otherwise.
            "--full-rtt",
            # Not '--no-rdtsc': sockperf 3.7 then mistakes its pace and its length for ticks.
            f"--full-log={OUTPUT}",
        ),
        files=(OUTPUT,),
    )


SOCKPERF = Sockperf()
