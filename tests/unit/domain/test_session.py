"""What can be told of a session without a libvirt that answers."""

from __future__ import annotations

import os
import subprocess
from types import SimpleNamespace
from typing import Any

import libvirt
import pytest

from labctl.base.errors import BrokenError
from labctl.domain import session


@pytest.fixture
def stuck() -> Any:
    """A process that is in the place of a QEMU that doesn't answer."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_a_qemu_that_does_not_answer_is_ended_and_told_of(
    monkeypatch: pytest.MonkeyPatch, stuck: subprocess.Popen[bytes]
) -> None:
    monkeypatch.setattr(session, "_ANSWER_S", 0.05)
    monkeypatch.setattr(session, "_our_qemus", lambda: [stuck.pid])

    def resume() -> None:
        stuck.wait(30)
        raise libvirt.libvirtError("End of file from qemu monitor")

    guest = session.RunningGuest.__new__(session.RunningGuest)
    guest._domain = SimpleNamespace(resume=resume)
    with pytest.raises(BrokenError, match=r"QEMU did not answer within 0\.05 s and was ended"):
        guest.resume()


def test_a_refusal_in_time_is_libvirts_own(
    monkeypatch: pytest.MonkeyPatch, stuck: subprocess.Popen[bytes]
) -> None:
    monkeypatch.setattr(session, "_our_qemus", lambda: [stuck.pid])

    def resume() -> None:
        raise libvirt.libvirtError("operation failed")

    guest = session.RunningGuest.__new__(session.RunningGuest)
    guest._domain = SimpleNamespace(resume=resume)
    with pytest.raises(BrokenError, match="operation failed"):
        guest.resume()
    assert stuck.poll() is None


def test_only_guests_of_labctls_are_ever_ended() -> None:
    ours = subprocess.Popen(["sh", "-c", "sleep 60; :", "-name", "guest=labctl-guest,debug=on"])
    theirs = subprocess.Popen(["sh", "-c", "sleep 60; :", "-name", "guest=database"])
    try:
        assert ours.pid in session._our_qemus()
        assert theirs.pid not in session._our_qemus()
        assert os.getpid() not in session._our_qemus()
    finally:
        for process in (ours, theirs):
            process.kill()
            process.wait()
