"""Ctrl-C and SIGTERM: one way out, which a second one does not cut short, with no guest left."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import libvirt
import pytest

from labctl.base import process
from labctl.base.errors import BrokenError
from labctl.base.process import cleaning_up, ending_signals_interrupt
from labctl.domain.session import RunningGuest, Session

ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in ENDING}
    # What continuous integration runs may ignore some: a shell's background job SIGINT, nohup's
    # command SIGHUP.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", ENDING)
def test_each_ending_signal_interrupts_and_is_put_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt, match=number.name), ending_signals_interrupt():
        send(number)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("second", ENDING)
def test_a_second_signal_does_not_cut_the_way_out_short(second: signal.Signals) -> None:
    cleaned: list[str] = []

    def run() -> None:
        try:
            send(signal.SIGINT)
        finally:
            send(second)
            cleaned.append("all of it")

    with pytest.raises(KeyboardInterrupt, match="SIGINT"), ending_signals_interrupt():
        run()
    assert cleaned == ["all of it"]


def test_an_interrupt_that_was_lost_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_WAY_OUT_S", 0.0)
    with ending_signals_interrupt():
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                send(signal.SIGINT)


def test_a_hangup_that_was_ignored_before_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with ending_signals_interrupt():
        send(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.parametrize("number", ENDING)
def test_cleaning_up_is_not_interrupted(number: signal.Signals) -> None:
    with ending_signals_interrupt():
        inside = signal.getsignal(number)
        with cleaning_up():
            send(number)
        assert signal.getsignal(number) is inside


_GUEST = """
<domain type='test'>
  <name>{name}</name><uuid>{uuid}</uuid><memory>1024</memory><vcpu>1</vcpu><os><type>hvm</type></os>
</domain>
"""


OURS = "11111111-2222-4333-8444-555555555555"


def guest(name: str, uuid: str) -> str:
    return _GUEST.format(name=name, uuid=uuid)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """libvirt's own mock hypervisor, which runs a domain 'test' and knows no QEMU monitor."""
    monkeypatch.setattr(libvirt, "VIR_DOMAIN_START_PAUSED", 0)  # it takes no flags
    with Session.connected("test:///default") as session:
        yield session


def names(session: Session) -> set[str]:
    return {domain.name() for domain in session._connection.listAllDomains()}


def test_a_guest_that_starts_and_cannot_be_used_is_ended(session: Session) -> None:
    # The mock hypervisor starts the domain and then refuses the QEMU monitor.
    with pytest.raises(BrokenError, match="query-cpus-fast"):
        session.start(guest("labctl-guest", OURS))
    assert names(session) == {"test"}


def test_an_interrupt_right_after_the_start_leaves_no_guest(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(guest: RunningGuest, *given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunningGuest, "__init__", interrupted)
    monkeypatch.setattr("labctl.domain.session._end", lambda domain, calls: domain.destroy())
    with pytest.raises(KeyboardInterrupt):
        session.start(guest("labctl-guest", OURS))
    assert names(session) == {"test"}


def test_ending_all_guests_spares_those_of_others(session: Session) -> None:
    session._connection.createXML(guest("labctl-guest", OURS))
    session._calls.guests.add(OURS)
    session._connection.createXML(guest("labctl-web", OURS.replace("1", "2")))
    session.end_all()
    assert names(session) == {"test", "labctl-web"}
