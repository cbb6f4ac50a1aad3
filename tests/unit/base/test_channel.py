"""The channel against an other end that does not behave: a guest is not trusted."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from labctl.base import channel as module
from labctl.base.channel import Channel, ChannelClosed, RefusedError
from labctl.base.command import Command
from labctl.base.errors import BrokenError, DeadlineError
from labctl.base.process import Deadline
from tests.unit.runner.runners import OUTCOME, running_runner

Answer = Callable[[dict[str, Any]], bytes]


def soon() -> Deadline:
    return Deadline.after(20, "an answer")


def line(**fields: Any) -> bytes:
    return json.dumps(fields).encode() + b"\n"


@contextmanager
def machine(answer: Answer) -> Iterator[Channel]:
    """A channel to a machine that answers each request as `answer` says."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with theirs, theirs.makefile("rb") as requests:
            for request in requests:
                try:
                    theirs.sendall(answer(json.loads(request)))
                except OSError:
                    return

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with ours:
            yield Channel(ours, "the guest")
    finally:
        thread.join()


def result_of(request: dict[str, Any], **changes: Any) -> bytes:
    """Everything that a runner says of a command that went well, changed by `changes`."""
    if request["op"] == "go":
        return line(id=request["id"], event="exited") + line(
            id=request["id"], **{**OUTCOME, **changes}
        )
    return line(id=request["id"], event="ready", pid=7)


def test_a_whole_answer_is_a_result() -> None:
    with machine(result_of) as channel:
        assert channel.run(Command(argv=("true",)), seconds=1).stdout == b"hi"


def test_a_dead_runner_closes_the_channel() -> None:
    with running_runner() as runner:
        runner.channel.wait_ready(soon())
        runner.process.kill()
        runner.process.wait()
        with pytest.raises(ChannelClosed, match="the machine: ended"):
            runner.channel.wait_ready(soon())


def test_what_is_known_of_a_machine_that_is_gone_is_told_with_it() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        channel = Channel(ours, "the guest", lambda: ". Its console ends here")
        with pytest.raises(ChannelClosed, match=r"talking to it\. Its console ends here$"):
            channel.wait_ready(soon())


def test_what_is_known_of_a_machine_that_hangs_is_told_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_HANGS_AFTER_S", 0.0)
    with machine(lambda request: result_of(request) if request["op"] != "go" else b"") as channel:
        channel._how_ended = lambda: "\nIts console ends here"
        with pytest.raises(DeadlineError, match=r"'true' was not done within 0.05 s\nIts console"):
            channel.run(Command(argv=("true",)), seconds=0.05)


def test_a_huge_answer_is_refused_and_not_buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LINE_LIMIT", 1 << 20)
    with (
        machine(lambda _: b"x" * (8 << 20)) as channel,
        pytest.raises(BrokenError, match="sent an answer of over 1048576 bytes"),
    ):
        channel.wait_ready(soon())
    assert len(channel._buffer) <= 3 << 20


def test_a_silent_machine_costs_no_more_than_the_deadline() -> None:
    with (
        machine(lambda _: b"") as channel,
        pytest.raises(DeadlineError, match="the first answer was not done within"),
    ):
        channel.wait_ready(Deadline.after(0.05, "the first answer"))


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xfe\n",
        b"[]\n",
        b'"text"\n',
        b"[" * 100_000 + b"\n",
        b'{"id": 1, "event": "result", "nonce": "\\ud800"}\n',
        line(id=0, event="result", nonce="of another talk", monotonic_ns=1),
    ],
    ids=["no-utf8", "list", "string", "deep", "half-a-surrogate-pair", "stale"],
)
def test_lines_that_answer_nothing_are_skipped(garbage: bytes) -> None:
    def answer(request: dict[str, Any]) -> bytes:
        good = line(id=request["id"], event="result", nonce=request["nonce"], monotonic_ns=5)
        return garbage + good

    with machine(answer) as channel:
        assert channel.wait_ready(soon()).machine_ns == 5


def test_a_flood_of_lines_that_answer_nothing_ends_at_the_deadline() -> None:
    with (
        machine(lambda _: b'{"id": 0}\n' * 400_000) as channel,
        pytest.raises(DeadlineError),
    ):
        channel.wait_ready(Deadline.after(0.2, "an answer"))


def test_a_clock_that_is_no_number_is_an_error() -> None:
    def answer(request: dict[str, Any]) -> bytes:
        return line(id=request["id"], nonce=request["nonce"], monotonic_ns="soon")

    with machine(answer) as channel, pytest.raises(BrokenError, match="the guest: answered with"):
        channel.wait_ready(soon())


def test_what_the_runner_refuses_is_an_error_with_its_words() -> None:
    with (
        machine(lambda r: line(id=r["id"], event="error", message="no such thing")) as channel,
        pytest.raises(RefusedError, match="the guest: no such thing"),
    ):
        channel.set_time(soon())


@pytest.mark.parametrize(
    "changes",
    [
        {"files": None},
        {"files": {".stdout": 5}},
        {"files": {".stdout": "a"}},
        {"returncode": "many"},
        {"duration_ns": "long"},
        {"duration_ns": None},
        {"duration_ns": 10**400},
        {"duration_ns": 10**30},
        {"duration_ns": True},
        {"returncode": 10**4000},
        {"returncode": 1.5},
        {"rusage": {"utime_s": "much"}},
        {"rusage": {"utime_s": float("nan")}},
        {"rusage": []},
        {"before": {"stat": 5}},
        {"before": {"monotonic_ns": "now"}},
        {"after": None},
        {"threads": {"before": []}},
        {"threads": {"before": [5], "after": []}},
        {"threads": {"before": [{"tid": 10**400}], "after": []}},
        {"threads": {"before": [{"stat": ["x"]}], "after": []}},
        {"event": "sorry"},
    ],
)
def test_an_outcome_of_the_wrong_shape_is_an_error(changes: dict[str, Any]) -> None:
    with (
        machine(lambda request: result_of(request, **changes)) as channel,
        pytest.raises(BrokenError, match="the guest: answered with"),
    ):
        channel.run(Command(argv=("true",)), seconds=1)


def test_a_pid_that_is_no_number_is_an_error() -> None:
    with (
        machine(lambda request: line(id=request["id"], event="ready", pid="me")) as channel,
        pytest.raises(BrokenError, match="the guest: answered with"),
    ):
        channel.run(Command(argv=("true",)), seconds=1)


@pytest.mark.parametrize("told", [10**400, "now", True])
def test_a_clock_that_no_machine_has_is_an_error(told: object) -> None:
    def answer(request: dict[str, Any]) -> bytes:
        return line(id=request["id"], nonce=request["nonce"], monotonic_ns=told)

    with (
        machine(answer) as channel,
        pytest.raises(BrokenError, match="the guest: answered with"),
    ):
        channel.wait_ready(soon())


def test_files_that_nobody_asked_for_are_left_out() -> None:
    files = {".stdout": "", ".stderr": "", "wanted": "eA==", "../../etc/passwd": "eA=="}
    with machine(lambda request: result_of(request, files=files)) as channel:
        result = channel.run(Command(argv=("true",), files=("wanted",)), seconds=1)
    assert result.files == {"wanted": b"x"}


def test_a_socket_that_nobody_serves_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runner.sock"
    with (
        pytest.raises(ChannelClosed, match=f"the guest: no process serves {path}"),
        Channel.connected(path, "the guest", Deadline.after(0.05, "connecting")),
    ):
        pass


def test_a_channel_waits_for_its_socket_to_appear(tmp_path: Path) -> None:
    path = tmp_path / "runner.sock"
    with socket.socket(socket.AF_UNIX) as server:

        def serve() -> None:
            server.bind(str(path))
            server.listen()

        timer = threading.Timer(0.1, serve)
        timer.start()
        with Channel.connected(path, "the guest", soon()) as channel:
            assert channel.name == "the guest"
        timer.join()
