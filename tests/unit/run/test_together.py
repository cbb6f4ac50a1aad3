"""One workload in many guests at once: all wait, all go, all are waited for, each is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labctl.base.channel import Serving
from labctl.base.command import Command, CommandResult
from labctl.base.errors import BrokenError
from labctl.base.runner_messages import EndedServer
from labctl.run.trials import density as module
from labctl.run.trials.density import Job, Together, run_together
from labctl.store.trial import TrialFolder
from labctl.workloads.registry import workload

HEAD = "scheduled_ns,start_ns,end_ns,deadline_ns\n"


def frames(latency_ms: float, count: int = 420) -> bytes:
    rows = (
        f"{n * 16_666_667},{n * 16_666_667 + 1000},"
        f"{n * 16_666_667 + int(latency_ms * 1e6)},{(n + 1) * 16_666_667}\n"
        for n in range(count)
    )
    return (HEAD + "".join(rows)).encode()


@dataclass
class Host:
    """Guests in order; what each prints, and what happens to all of them."""

    prints: Sequence[CommandResult]
    did: list[str] = field(default_factory=list)
    servers: Sequence[EndedServer] = ()

    def guests(self) -> list[Any]:
        return [
            SimpleNamespace(
                number=number,
                data_paths=(),
                channel=SimpleNamespace(
                    serving=self._serving, prepared=self._prepared(number - 1, result)
                ),
                clone=SimpleNamespace(
                    identity=SimpleNamespace(name=f"labctl-noisy-{number}"), running=None
                ),
            )
            for number, result in enumerate(self.prints, 1)
        ]

    @contextmanager
    def _serving(self, servers: Sequence[Any]) -> Iterator[Serving]:
        yield Serving(ended=self.servers)

    def _prepared(self, at: int, result: CommandResult) -> Any:
        @contextmanager
        def prepared(command: Command, *, seconds: float) -> Iterator[Any]:
            self.did.append(f"wait {at}")
            yield SimpleNamespace(
                go=lambda: self.did.append(f"go {at}"),
                wait_exited=lambda: self.did.append(f"ended {at}"),
                result=lambda: result,
            )

        return prepared


def printed(data: bytes, *, status: int = 0, stderr: bytes = b"") -> CommandResult:
    return CommandResult(
        returncode=status,
        stdout=b"",
        stderr=stderr,
        files={"frames.csv": data},
        duration_s=7.0,
        counts={},
    )


@pytest.fixture(autouse=True)
def _no_qemu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cpu_ns", lambda running: 0)


def ran(host: Host, tmp_path: Path) -> Together:
    program = workload("frame-loop")
    job = Job(
        program=program,
        parameters=program.check_parameters({}),
        vcpus=1,
        duration_s=7.0,
        metric="frame_p95",
    )
    folders = [TrialFolder(tmp_path / "guests" / str(n)) for n in range(len(host.prints))]
    return run_together(job, host.guests(), folders)


def test_all_wait_before_any_goes_and_all_go_before_any_is_waited_for(tmp_path: Path) -> None:
    host = Host([printed(frames(5)), printed(frames(6)), printed(frames(7))])
    ran(host, tmp_path)
    once = [f"{what} {n}" for what in ("wait", "go", "ended") for n in range(3)]
    assert host.did == [*once, *once]  # the warm-up, then the window


def test_each_guest_is_read_from_what_it_printed_itself(tmp_path: Path) -> None:
    found = ran(Host([printed(frames(5)), printed(frames(9))]), tmp_path)
    assert found.values == [pytest.approx(0.005), pytest.approx(0.009)]
    assert (tmp_path / "guests/1/files/frames.csv").read_bytes() == frames(9)


def test_a_server_that_left_before_makes_it_no_number(tmp_path: Path) -> None:
    left = EndedServer(name="stress-ng", status=3, too_early=True, output=b"no room\n")
    found = ran(Host([printed(frames(5))], servers=[left]), tmp_path)
    assert found.values == ["the server stress-ng ended unexpectedly with status 3: no room"]


def test_the_common_window_is_from_the_last_start_to_the_first_end(tmp_path: Path) -> None:
    short = replace(printed(frames(5)), duration_s=3.0)
    found = ran(Host([printed(frames(5)), short]), tmp_path)
    assert found.common_s == pytest.approx(3.0, abs=0.1)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"", "no row"),
        (HEAD.encode(), "no row"),
        (frames(5, count=30), "30 samples, but p95 needs 400"),
        (frames(5)[:-9], "may be truncated|Expected"),
        (b"\xff\xfe\x00" * 99, "no text|frames.csv"),
        (b"a,b\n1,2\n", "no column"),
    ],
)
def test_what_can_not_be_read_is_a_reason_and_no_number(
    tmp_path: Path, bad: bytes, said: str
) -> None:
    good, value = ran(Host([printed(frames(5)), printed(bad)]), tmp_path).values
    assert good == pytest.approx(0.005)
    assert isinstance(value, str)
    assert re.search(said, value)


def test_a_guest_whose_workload_fails_its_warm_up_is_named(tmp_path: Path) -> None:
    host = Host([printed(frames(5)), printed(b"", status=1, stderr=b"no memory\n")])
    with pytest.raises(BrokenError, match="the warm-up in labctl-noisy-2 failed: .*no memory"):
        ran(host, tmp_path)
