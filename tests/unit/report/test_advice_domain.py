"""The commands that labctl advises, carried out by virt-xml on domains that virt-install made."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from labctl.base.tuning import Kind
from labctl.base.xmldiff import changes
from labctl.rollout.domain_edits import changed_devices, domain_changes, edits, fragment, live_pins
from labctl.rollout.rollout_steps import check_domains
from labctl.rollout.steps import filled
from labctl.study.tunings import load_tunings, tuning_names

TESTS = Path(__file__).parents[2]
GOLDEN = TESTS / "golden" / "domain"
FIXTURES = TESTS / "unit" / "domain" / "fixtures"
GUESTS = [n for n, t in load_tunings(tuning_names()).items() if t.kind is Kind.GUEST]
BASELINE = (GOLDEN / "baseline.kvm.xml").read_text()

needs_virt_xml = pytest.mark.skipif(
    shutil.which("virt-xml") is None, reason="virt-xml (Debian's virtinst) is not installed"
)


def tuned(name: str) -> str:
    return (GOLDEN / f"{name}.kvm.xml").read_text()


def applied(xml: str, name: str, disk: str) -> str:
    """A domain after the commands that are advised for the tuning; nothing is defined."""
    for step in edits(BASELINE, tuned(name)):
        for command in step.commands:
            words = filled(command.argv, "@", disk)
            words = [word for word in words if word not in ("@", "--print-diff", "--define")]
            done = subprocess.run(
                ["virt-xml", "--connect", "test:///default", *words[1:]],
                input=xml,
                capture_output=True,
                text=True,
                check=True,
            )
            xml = done.stdout
    return xml


def of_domain(before: str, after: str) -> set[tuple[str, str | None]]:
    return {(change.path, change.after) for change in domain_changes(before, after)}


def of_devices(before: str, after: str) -> set[tuple[str, str, str | None]]:
    return {
        (device.tag, change.path, change.after)
        for device in changed_devices(before, after)
        for change in device.changes
    }


@pytest.mark.parametrize("name", GUESTS)
def test_what_a_tuning_changes_may_be_advised(name: str) -> None:
    check_domains("run", name, BASELINE, tuned(name))


@needs_virt_xml
@pytest.mark.parametrize(
    "name",
    [
        *("pinned+fifo+iothreads", "numa-strict", "memory-hugetlb", "hyperv-stimer-direct"),
        "free-page-reporting",
    ],
)
def test_a_domain_of_virt_installs_becomes_what_labctl_renders(name: str) -> None:
    theirs = (FIXTURES / "virt-install-4.1.0-kvm.xml").read_text()
    wanted = of_domain(BASELINE, tuned(name))
    assert wanted
    assert of_domain(theirs, applied(theirs, name, "vda")) == wanted


@needs_virt_xml
@pytest.mark.parametrize(
    ("name", "disk"), [("cache-none", "sda"), ("io-uring", "vda"), ("disk-queues-4", "vda")]
)
def test_only_the_disk_that_was_named_changes(name: str, disk: str) -> None:
    theirs = (FIXTURES / "virt-install-4.1.0-own-server.xml").read_text()
    after = applied(theirs, name, disk)
    changed = changed_devices(theirs, after)
    assert [device.target for device in changed] == [disk]
    wanted = {(path, value) for _, path, value in of_devices(BASELINE, tuned(name))}
    assert {(change.path, change.after) for change in changed[0].changes} == wanted
    assert domain_changes(theirs, after) == []


@needs_virt_xml
def test_a_controller_is_added_with_its_iothreads() -> None:
    theirs = (FIXTURES / "virt-install-4.1.0-own-server.xml").read_text()
    after = applied(theirs, "iothreads-4-mapped-scsi", "vda")
    (controller,) = (
        device for device in changed_devices(theirs, after) if device.tag == "controller"
    )
    assert [one.get("id") for one in controller.after.iterfind("driver/iothreads/iothread")] == [
        *"1234"
    ]
    driver = controller.after.find("driver")
    assert driver is not None
    assert dict(driver.attrib) == {"queues": "4"}


@needs_virt_xml
def test_a_second_time_changes_nothing() -> None:
    theirs = (FIXTURES / "virt-install-4.1.0-own-server.xml").read_text()
    once = applied(theirs, "pinned+fifo", "vda")
    assert changes(once, applied(once, "pinned+fifo", "vda")) == []


@needs_virt_xml
def test_a_foreign_domain_keeps_all_that_the_tuning_does_not_speak_of() -> None:
    theirs = (FIXTURES / "virt-install-4.1.0-own-uefi.xml").read_text()
    found = {change.path for change in changes(theirs, applied(theirs, "pinned", "vda"))}
    assert found
    assert all(path.startswith("cputune") for path in found)


def test_the_fragment_has_the_changed_elements_as_the_tuning_has_them() -> None:
    assert fragment(BASELINE, tuned("pinned+fifo")) == (
        "<cputune>\n"
        '  <vcpupin vcpu="0" cpuset="1"/>\n'
        '  <vcpupin vcpu="1" cpuset="5"/>\n'
        '  <emulatorpin cpuset="2"/>\n'
        '  <vcpusched vcpus="0-1" scheduler="fifo" priority="1"/>\n'
        "</cputune>\n"
    )


def test_of_a_disk_the_fragment_has_what_changes_and_which_disk_it_is() -> None:
    text = fragment(BASELINE, tuned("cache-none"))
    assert 'cache="none"' in text
    assert '<target dev="vdb" bus="virtio"/>' in text
    assert "source" not in text, "the measured guest's own file"


def test_a_running_domain_is_told_its_pins_and_nothing_that_needs_a_restart() -> None:
    commands = [" ".join(c.argv) for c in live_pins(BASELINE, tuned("pinned+fifo+iothreads"))]
    assert commands == [
        "virsh vcpupin @domain@ 0 1 --live",
        "virsh vcpupin @domain@ 1 5 --live",
        "virsh emulatorpin @domain@ 2 --live",
    ]


def test_the_baseline_against_itself_takes_no_step() -> None:
    assert list(edits(BASELINE, BASELINE)) == []
    assert fragment(BASELINE, BASELINE) == ""
