"""Measure with hackbench how fast groups of senders and receivers pass messages."""

from __future__ import annotations

import re
from dataclasses import dataclass

from labctl.workloads.repeated import SHELL, Repeated
from labctl.workloads.windows import RateWindow
from labctl.workloads.workload import ChoiceParameter, IntegerParameter, Setting

BINARY = "/usr/bin/hackbench"

_RUN = re.compile(
    r"Running in (?:process|threaded) mode with (?P<groups>\d+) groups using (?P<fds>\d+) file "
    r"descriptors each \(== \d+ tasks\)\n"
    r"Each sender will pass (?P<loops>\d+) messages of \d+ bytes\n"
    r"Time: (?P<seconds>\d+\.\d{3})\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hackbench(Repeated):
    def argv(self, setting: Setting) -> tuple[str, ...]:
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

    def window(self, run: re.Match[str]) -> RateWindow:
        # Of its file descriptors half are a sender's each, who writes to all of the other half
        # (hackbench.c, group() and sender()).
        pairs = (int(run["fds"]) // 2) ** 2
        # Cut to milliseconds, not rounded.
        seconds = float(run["seconds"]) + 0.0005
        return RateWindow(seconds, int(run["groups"]) * pairs * int(run["loops"]))


HACKBENCH = Hackbench(
    name="hackbench",
    operation="one message",
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
    printed=_RUN,
    expected="hackbench's mode, messages and 'Time:'",
    primary="messages_per_s",
    rate_metric="messages_per_s",
)
