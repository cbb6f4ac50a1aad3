"""What a link needs, found and not found."""

from __future__ import annotations

import pytest

from labctl.base.tuning import Requires
from labctl.host.doctor.check import Status
from labctl.host.doctor.reader import Reader
from tests.unit.host.doctor.conftest import FakeHost, tuning

ALL_CAPABILITIES = "CapEff:\t000001ffffffffff\n"


@pytest.fixture
def linked(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    """A host that has all that a link takes."""
    for path in ("/dev/net/tun", "/dev/vhost-net", "/proc/self/ns/net"):
        host.write(path)
    host.write("/proc/self/status", ALL_CAPABILITIES)
    monkeypatch.setattr(Reader, "program", lambda self, name: f"/usr/sbin/{name}")
    return host


@pytest.mark.parametrize("name", ["tap-devices", "vhost-net", "network-namespaces"])
def test_a_host_that_has_it_all_is_fine(linked: FakeHost, name: str) -> None:
    assert linked.find(name).status is Status.OK


def test_a_missing_tap_device_names_its_module(host: FakeHost) -> None:
    found = host.find("tap-devices")
    assert found.status is Status.WARN
    assert "modprobe tun" in found.remedy


def test_a_missing_vhost_net_names_the_tunings_that_are_lost(host: FakeHost) -> None:
    queues = tuning("net-queues", requires=Requires(paths=("/dev/vhost-net",)))
    found = host.find("vhost-net", tunings={"net-queues": queues, "pinned": tuning("pinned")})
    assert found.status is Status.WARN
    assert "net-queues" in found.found
    assert "pinned" not in found.found
    assert "modprobe vhost_net" in found.remedy


def test_without_the_right_no_namespace_is_promised(linked: FakeHost) -> None:
    linked.write("/proc/self/status", "CapEff:\t0000000000000000\n")
    found = linked.find("network-namespaces")
    assert found.status is Status.WARN
    assert "CAP_NET_ADMIN and CAP_SYS_ADMIN" in found.found


def test_a_program_that_is_missing_is_named(
    linked: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reader, "program", lambda self, name: None if name == "ip" else name)
    found = linked.find("network-namespaces")
    assert "not installed: ip" in found.found
    assert found.remedy == "labctl setup"


@pytest.mark.parametrize("name", ["tap-devices", "vhost-net", "network-namespaces"])
def test_a_study_that_sends_nothing_lacks_nothing(host: FakeHost, name: str) -> None:
    found = host.find(name, has_link=False, tunings={"pinned": tuning("pinned")})
    assert found.status is Status.OK
    assert "nothing here needs" in found.found
