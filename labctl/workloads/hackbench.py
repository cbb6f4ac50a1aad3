"""hackbench: how fast groups of senders and receivers pass messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from labctl.base.command import Command
from labctl.base.errors import BrokenError
from labctl.base.units import Better, Unit
from labctl.store.samples import Reading, Sample
from labctl.store.trial import TrialFolder
from labctl.workloads.model import (
    ChoiceParameter,
    IntegerParameter,
    Setting,
    WorkloadBase,
)
from labctl.workloads.repeated import SHELL, for_seconds, times
from labctl.workloads.windows import Window, batch_errors

BINARY = "/usr/bin/hackbench"
STDOUT = "stdout.txt"
WARMUP_WINDOWS = 3

_RUN = re.compile(
    r"Running in (?:process|threaded) mode with (?P<groups>\d+) groups using (?P<fds>\d+) file "
    r"descriptors each \(== \d+ tasks\)\n"
    r"Each sender will pass (?P<loops>\d+) messages of \d+ bytes\n"
    r"Time: (?P<seconds>\d+\.\d{3})\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hackbench(WorkloadBase):
    def command(self, setting: Setting) -> Command:
        self.check_duration(setting.duration_s)
        return Command(argv=for_seconds(_argv(setting), setting.duration_s))

    def warmup_command(self, setting: Setting, window_s: float, rate: float | None) -> Command:
        return Command(argv=times(_argv(setting), WARMUP_WINDOWS))

    def window_rates(self, stdout: str, files: Mapping[str, bytes]) -> list[float]:
        return [messages / seconds for messages, seconds in _runs(stdout, STDOUT)]

    def parse(self, raw: TrialFolder) -> Iterator[Reading]:
        runs = _runs(raw.read_text(STDOUT), str(raw.path / STDOUT))
        messages = sum(count for count, _ in runs)
        rate = messages / sum(seconds for _, seconds in runs)
        for metric, value, unit, better in (
            ("messages_per_s", rate, Unit.PER_SECOND, Better.HIGHER),
            ("operations", messages, Unit.COUNT, Better.NEITHER),
        ):
            yield Sample(metric=metric, value=value, unit=unit, better=better, source=STDOUT)
        windows = [Window(seconds, count) for count, seconds in runs]
        yield from batch_errors(windows, "messages_per_s", STDOUT)


def _argv(setting: Setting) -> tuple[str, ...]:
    parameters = setting.parameters
    return (
        BINARY,
        # Short options: before the long ones' values it looks for an argument at another place
        # than theirs (hackbench.c 2.4, process_options()).
        *(("-p",) if parameters["transport"] == "pipe" else ()),
        *(("-T",) if parameters["tasks"] == "threads" else ()),
        "-g",
        str(parameters["groups"]),
        "-l",
        str(parameters["loops"]),
    )


def _runs(text: str, where: str) -> list[tuple[int, float]]:
    """(messages, seconds) of each run, in order; raises BrokenError when that isn't all of it."""
    runs: list[tuple[int, float]] = []
    end = 0
    for match in _RUN.finditer(text):
        if match.start() != end:
            break
        end = match.end()
        # Of its file descriptors half are a sender's each, who writes to all of the other half
        # (hackbench.c, group() and sender()).
        pairs = (int(match["fds"]) // 2) ** 2
        # Cut to milliseconds, not rounded.
        seconds = float(match["seconds"]) + 0.0005
        runs.append((int(match["groups"]) * pairs * int(match["loops"]), seconds))
    if not runs or end != len(text):
        raise BrokenError(
            f"{where}: expected hackbench's mode, messages and 'Time:' for each run, found "
            f"{text[end : end + 80]!r}"
        )
    return runs


HACKBENCH = Hackbench(
    name="hackbench",
    description="hackbench: messages between groups of 20 senders and 20 receivers",
    parameters=(
        ChoiceParameter(
            name="transport",
            default="socket",
            choices=("socket", "pipe"),
            description="what carries a message",
        ),
        ChoiceParameter(
            name="tasks",
            default="process",
            choices=("process", "threads"),
            description="what senders and receivers are",
        ),
        IntegerParameter(
            name="groups",
            default=1,
            minimum=1,
            maximum=64,
            description="groups of 40 tasks each",
        ),
        # 40,000 messages: some 50 ms natively, a second or two where guests are emulated.
        IntegerParameter(
            name="loops",
            default=100,
            minimum=1,
            maximum=1_000_000,
            description="messages from each sender to each receiver in one run; a trial is as "
            "many runs as begin in its time",
        ),
    ),
    binaries=(SHELL, BINARY),
    primary="messages_per_s",
    rate_metric="messages_per_s",
)
