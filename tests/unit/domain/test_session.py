"""What can be told of a session without a libvirt that answers."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import libvirt
import pytest

from labctl.base.errors import BrokenError, HostError, UsageError
from labctl.domain import calls, session
from labctl.domain.calls import Calls, ConnectionLostError
from labctl.domain.session import RunningGuest, Session

UUID = "11111111-2222-4333-8444-555555555555"
OTHER = "99999999-2222-4333-8444-555555555555"


def qemu(uuid: str, name: str = "labctl-guest") -> subprocess.Popen[bytes]:
    """A process with the arguments that libvirt gives QEMU. It has them: the kernel tells Popen of
    a program that is executed (by closing what is to be closed) before /proc shows its arguments
    (fs/exec.c, begin_new_exec(); fs/binfmt_elf.c, create_elf_tables())."""
    process = subprocess.Popen(
        ["sh", "-c", "sleep 600; :", "-name", f"guest={name}", "-uuid", uuid]
    )
    while process.poll() is None and uuid.encode() not in cmdline(process.pid):
        time.sleep(0.001)
    return process


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.fixture
def stuck() -> Any:
    """A process that is in the place of a QEMU that doesn't answer."""
    process = qemu(UUID)
    yield process
    process.kill()
    process.wait()


def asked(*, is_alive: bool = True) -> Calls:
    made = Calls(SimpleNamespace(isAlive=lambda: int(is_alive)), "qemu:///system")
    made.guests.add(UUID)
    return made


def guest(resume: Any, of: Calls) -> RunningGuest:
    made = RunningGuest.__new__(RunningGuest)
    made._domain = SimpleNamespace(resume=resume)
    made._calls = of
    return made


def test_a_qemu_that_does_not_answer_is_ended_and_told_of(
    monkeypatch: pytest.MonkeyPatch, stuck: subprocess.Popen[bytes]
) -> None:
    monkeypatch.setattr(calls, "ANSWER_S", 0.05)

    def resume() -> None:
        stuck.wait(30)
        raise libvirt.libvirtError("End of file from qemu monitor")

    with pytest.raises(BrokenError, match=r"QEMU did not answer within 0\.05 s and was killed"):
        guest(resume, asked()).resume()


def refuse() -> None:
    raise libvirt.libvirtError("operation failed")


def test_a_refusal_in_time_is_libvirts_own(stuck: subprocess.Popen[bytes]) -> None:
    with pytest.raises(BrokenError, match="operation failed"):
        guest(refuse, asked()).resume()
    assert stuck.poll() is None


def test_a_connection_that_is_gone_ends_the_run_and_says_how_to_go_on() -> None:
    with pytest.raises(
        ConnectionLostError, match="the connection to qemu:///system is gone"
    ) as caught:
        guest(refuse, asked(is_alive=False)).resume()
    assert "sweep --resume" in str(caught.value.hint)


def test_only_guests_of_labctls_are_ever_ended_whatever_others_are_called() -> None:
    ours, theirs = qemu(UUID), qemu(OTHER, "labctl-web")
    try:
        assert ours.pid in calls.qemus({UUID})
        assert theirs.pid not in calls.qemus({UUID})
        assert calls.qemus(()) == []
        assert os.getpid() not in calls.qemus({UUID, OTHER})
        asked().end_guests()
        assert ours.wait(10) == -9
        assert theirs.poll() is None
    finally:
        for process in (ours, theirs):
            process.kill()
            process.wait()


def test_without_its_daemon_a_session_still_ends_its_guests(
    stuck: subprocess.Popen[bytes],
) -> None:
    gone = Session(SimpleNamespace(listAllDomains=refuse), "qemu:///system")
    gone._calls.guests.add(UUID)
    gone.end_all()
    assert stuck.wait(10) == -9


def test_a_name_that_is_unknown_is_told_those_that_are_known() -> None:
    with Session.connected("test:///default") as connected:
        with pytest.raises(UsageError, match="no domain 'tets' at test:///default") as caught:
            connected.domain_xml("tets")
        assert "Did you mean 'test'?" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("qemu+ssh://root@elsewhere/system", "QEMU"),
        ("qemu+tcp:///system", "QEMU"),
        ("qemu://elsewhere/system", "QEMU"),
        ("test:///default", "TEST"),
    ],
)
def test_guests_of_another_host_or_hypervisor_are_refused(uri: str, kind: str) -> None:
    elsewhere = Session(SimpleNamespace(getURI=lambda: uri, getType=lambda: kind), uri)
    with pytest.raises(UsageError, match="does not start QEMU on this host"):
        elsewhere.check_here()


@pytest.mark.parametrize(
    "uri",
    ["qemu:///system", "qemu+unix:///system?socket=/run/a", "qemu:///embed?root=/var/lib/labctl"],
)
def test_qemu_on_this_host_is_taken(uri: str) -> None:
    Session(SimpleNamespace(getURI=lambda: uri, getType=lambda: "QEMU"), uri).check_here()


@pytest.mark.parametrize(
    "refusal",
    [
        "Requested operation is not valid: domain is already active as 'labctl-guest'",
        "Requested operation is not valid: domain 'labctl-guest' is already being started",
        "Requested operation is not valid: domain 'labctl-guest' is already being removed",
    ],
)
def test_a_guest_that_libvirt_has_not_let_go_of_yet_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    monkeypatch.setattr(session.time, "sleep", lambda seconds: None)
    answers = iter([libvirt.libvirtError(refusal), "started"])

    def act() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    # What libvirt says is set on the exception, as its own calls do.
    monkeypatch.setattr(libvirt.libvirtError, "__str__", lambda self: refusal)
    assert session._when_removed(act) == "started"


def test_a_daemon_that_does_not_answer_is_told_to_be_started(tmp_path: Any) -> None:
    uri = f"qemu+unix:///system?socket={tmp_path}/none"
    with pytest.raises(HostError, match="can't open") as caught, Session.connected(uri):
        pass
    assert "systemctl start libvirtd" in str(caught.value.hint)


def with_socket() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A process that is reaped as soon as it ends, and the other end of a socket of its."""
    ours, its = socket.socketpair()
    with its:
        process = subprocess.Popen(["sleep", "600"], pass_fds=[its.fileno()])
    threading.Thread(target=process.wait, daemon=True).start()
    return process, ours


def running(pid: int) -> RunningGuest:
    made = RunningGuest.__new__(RunningGuest)
    made.name, made.pid = "labctl-guest", pid
    made._domain = SimpleNamespace(isActive=Path(f"/proc/{pid}").exists)
    return made


def test_a_guest_is_gone_before_libvirt_sees_the_end_of_its_monitor() -> None:
    process, ours = with_socket()
    seen: list[bool] = []

    def libvirt_looks() -> None:
        assert ours.recv(1) == b""
        seen.append(Path(f"/proc/{process.pid}").exists())

    looks = threading.Thread(target=libvirt_looks)
    looks.start()
    running(process.pid).end()
    looks.join(60)
    assert seen == [False]


@pytest.mark.parametrize("lacking", ["_SYS_PIDFD_GETFD", "listdir", "pidfd_open"])
def test_a_guest_is_ended_where_its_sockets_cannot_be_held(
    monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    if lacking == "_SYS_PIDFD_GETFD":
        monkeypatch.setattr(session, lacking, 9999)
    else:
        monkeypatch.setattr(session.os, lacking, refuse)
    process, ours = with_socket()
    with ours:
        running(process.pid).end()
    assert not Path(f"/proc/{process.pid}").exists()
