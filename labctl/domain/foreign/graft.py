"""Apply a tuning to the administrator's own XML. Pure.

Only the templates define a tuning: labctl's own domain is rendered for its baseline and for the
tuning, and the difference is applied to the foreign XML.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import cycle
from pathlib import Path

from lxml import etree

from labctl.base.placement import PinProblem, refuse, xml_problems
from labctl.base.tuning import Tuning, durability_of
from labctl.base.xmldiff import changes, children, parse, text_of
from labctl.domain.foreign.foreign_domain import OwnDomain, is_written
from labctl.domain.pinning.pin_plan import PinPlan
from labctl.domain.render import DomainRequest, compared_xml

DATA_SERIAL = "labctl-data"
"""Serial of labctl's own disk, in the guest and in the templates."""

_WHOLE = ("hugepages", "numa")
"""Elements that a tuning replaces as a whole: the domain's own cannot stay beside the tuning's."""

_FOR_ALL = ("vcpusched", "iothreadsched")
"""Elements of <cputune> that may not overlap; a tuning's cover all vCPUs or iothreads."""

_OF_A_MODEL = ("check", "match")
"""Attributes of <cpu> that qualify its model."""

_DIRECT = ("none", "directsync")
"""Cache modes that bypass the host's page cache."""

_OF_VIRTIO = {"iothread", "queues", "packed", "ats"}
"""Attributes of a disk's <driver> that only virtio-blk has."""


def grafted(xml: str, tuning: Tuning, baseline_xml: str, tuning_xml: str) -> str:
    """Return the foreign domain `xml` with the tuning.

    `baseline_xml` and `tuning_xml`: labctl's own domain, rendered for as many vCPUs and as much
    memory as the foreign one has.
    """
    root, before, after = parse(xml), parse(baseline_xml), parse(tuning_xml)
    _forget_what_is_named(before, tuning)
    old, new = children(before), children(after)
    for step in dict.fromkeys([*old, *new]):
        match step:
            case "iothreads":
                _at_least(root, int(after.findtext("iothreads", "0")))
            case "devices":
                _graft_devices(root, before, after)
            case "os":
                _append_words(root, tuning)
            case _:
                _graft(root, step, old.get(step), new.get(step))
    return etree.tostring(root, encoding="unicode")


def tuned(
    own: OwnDomain,
    tuning: Tuning,
    plan: PinPlan,
    baseline: Tuning,
    accelerator: str,
    rt_runtime_us: int,
) -> str:
    """Return the owner's own XML with the tuning and nothing else of labctl's. `rt_runtime_us`:
    sched_rt_runtime_us.

    Raises UsageError for pins and policies that would hang the guest, starve the host or keep
    libvirt from starting it.
    """
    xml = compared(own, tuning, plan, baseline, accelerator)
    refuse(tuning.name, problems(xml, plan, rt_runtime_us))
    return xml


def problems(xml: str, plan: PinPlan, rt_runtime_us: int) -> list[PinProblem]:
    """Return what is wrong with a domain's pins and policies on the plan's host."""
    return xml_problems(xml, replace(plan.host, rt_runtime_us=rt_runtime_us))


def compared(
    own: OwnDomain, tuning: Tuning, plan: PinPlan, baseline: Tuning, accelerator: str
) -> str:
    """Return the same XML unchecked: only for comparisons, never for libvirt or a user."""
    plain, rendered = (
        compared_xml(_request(own, t, plan, accelerator)) for t in (baseline, tuning)
    )
    return grafted(own.xml, tuning, plain, rendered)


def is_changed(
    own: OwnDomain, tuning: Tuning, plan: PinPlan, baseline: Tuning, accelerator: str
) -> bool:
    """Return whether the tuning changes the owner's domain, compared with baseline."""
    plain, changed = (compared(own, t, plan, baseline, accelerator) for t in (baseline, tuning))
    return bool(changes(plain, changed))


def _request(own: OwnDomain, tuning: Tuning, plan: PinPlan, accelerator: str) -> DomainRequest:
    """Return labctl's domain of the same size; its paths are the same for every tuning, so that
    none of them appears in a difference."""
    place = Path("/nowhere")
    return DomainRequest(
        name="labctl",
        uuid="00000000-0000-4000-8000-000000000000",
        tuning=tuning,
        plan=plan,
        accelerator=accelerator,
        vcpus=own.vcpus,
        memory_mib=own.memory_mib,
        kernel=place,
        initrd=None,
        cmdline="",
        root_disk=place,
        data_disks=(place,),
        seed_disk=None,
        console_log=place,
        runner_socket=place,
        agent_socket=place,
    )


def durability(xml: str) -> str:
    """Return the durability of writes to the domain's disks, in the words of Disk.durability; if
    the disks differ, each value once."""
    disks = filter(is_written, parse(xml).iterfind("devices/disk"))
    kept = {durability_of(_driver_value(disk, "cache")) for disk in disks}
    return ", ".join(sorted(kept or {durability_of(None)}))


def with_data_disk(xml: str, tuning_xml: str) -> str:
    """Return the domain, which has the tuning already, with labctl's data disk, which fio reads and
    writes.

    The disk is as in the tuning, but its cache mode and the settings that go with it are those of
    the domain's first disk, so that fio measures the durability of the domain's own disks.
    """
    root, rendered = parse(xml), parse(tuning_xml)
    devices = root.find("devices")
    disk = _data_disk(rendered)
    if devices is None or disk is None:
        return xml
    disk = deepcopy(disk)
    target = disk.find("target")
    assert target is not None  # the schema wants one
    taken = {str(t.get("dev")) for t in devices.iterfind("disk/target")}
    prefix = target.get("dev", "vda")[:2]
    names = (f"{prefix}{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")
    target.set("dev", next(name for name in names if name not in taken))
    _cache_as_own(disk, devices)
    devices.append(disk)
    if target.get("bus") == "scsi":
        for controller in rendered.iterfind("devices/controller[@type='scsi']"):
            if not _of_its_kind(devices, controller):
                devices.append(deepcopy(controller))
    return etree.tostring(root, encoding="unicode")


def _cache_as_own(data: etree._Element, devices: etree._Element) -> None:
    written = filter(is_written, devices.iterfind("disk"))
    # libvirt orders them by name; a hand-written domain may have them in any order.
    first = min(written, key=lambda disk: str(disk.xpath("string(target/@dev)")), default=None)
    driver = data.find("driver")
    if first is None or driver is None:
        return
    for key in ("cache", "io"):
        driver.attrib.pop(key, None)
        if (value := _driver_value(first, key)) is not None:
            driver.set(key, value)


def _driver_value(disk: etree._Element, key: str) -> str | None:
    driver = disk.find("driver")
    value = None if driver is None else driver.get(key)
    return None if value == "default" else value


def _forget_what_is_named(before: etree._Element, tuning: Tuning) -> None:
    """Drop from labctl's baseline what the tuning requests: the foreign domain may lack it."""
    cpu = before.find("cpu")
    if cpu is not None and (tuning.cpu.mode is not None or tuning.cpu.model is not None):
        before.remove(cpu)
    clock = before.find("clock")
    for timer in list(clock) if clock is not None else []:
        if clock is not None and timer.get("name") in tuning.timers:
            clock.remove(timer)


def _graft(
    parent: etree._Element, step: str, old: etree._Element | None, new: etree._Element | None
) -> None:
    """Apply to the child of `parent` at `step` the change from `old` to `new`."""
    if _same(old, new):
        return
    own = children(parent).get(step)
    if new is None:
        if own is not None:
            parent.remove(own)
        return
    if new.tag in _FOR_ALL:
        for other in parent.findall(new.tag):
            parent.remove(other)
        own = None
    if own is None:
        own = etree.SubElement(parent, new.tag)
    if new.tag in _WHOLE:
        _become(own, new)
    else:
        _graft_into(own, old, new)


def _graft_into(own: etree._Element, old: etree._Element | None, new: etree._Element) -> None:
    _make_room(own, old, new)
    for key in dict.fromkeys([*(old.attrib if old is not None else ()), *new.attrib]):
        wanted = new.get(key)
        if old is not None and old.get(key) == wanted:
            continue
        if wanted is None:
            own.attrib.pop(key, None)
        else:
            own.set(key, wanted)
    if old is None or text_of(old) != text_of(new):
        own.text = new.text
    before = children(old) if old is not None else {}
    after = children(new)
    for inner in dict.fromkeys([*before, *after]):
        _graft(own, inner, before.get(inner), after.get(inner))


def _same(old: etree._Element | None, new: etree._Element | None) -> bool:
    if old is None or new is None:
        return old is new
    return bool(etree.tostring(old, method="c14n") == etree.tostring(new, method="c14n"))


def _become(own: etree._Element, new: etree._Element) -> None:
    for child in list(own):
        own.remove(child)
    own.attrib.clear()
    own.attrib.update(dict(new.attrib))
    own.extend(deepcopy(list(new)))


def _make_room(own: etree._Element, old: etree._Element | None, new: etree._Element) -> None:
    """Remove what belongs to a removed element."""
    if own.tag == "cpu" and _model(new) not in (_model(old), _model(own)):
        for child in [c for c in own if c.tag not in ("topology", "numa", "cache")]:
            own.remove(child)
        for key in _OF_A_MODEL:
            own.attrib.pop(key, None)
    if own.tag == "driver" and new.find("iothreads") is not None:
        own.attrib.pop("iothread", None)  # libvirt accepts only one of the two
    if own.tag == "hyperv" and own.get("mode") == "passthrough":
        own.attrib.pop("mode")  # it accepts no enlightenment by its name
    if own.tag == "memballoon" and new.get("model") == "none":
        for child in list(own):
            own.remove(child)


def _model(cpu: etree._Element | None) -> tuple[str | None, str | None]:
    return (None, None) if cpu is None else (cpu.get("mode"), cpu.findtext("model"))


def _at_least(root: etree._Element, count: int) -> None:
    own = root.find("iothreads")
    if own is None and count:
        own = etree.SubElement(root, "iothreads")
        own.text = "0"
    if own is not None and int(own.text or "0") < count:
        own.text = str(count)
        ids = root.find("iothreadids")
        if ids is not None:
            root.remove(ids)  # without it they are numbered from 1, too


def _append_words(root: etree._Element, tuning: Tuning) -> None:
    """Append kernel words if the domain boots its kernel directly; otherwise the guest's boot
    loader has them."""
    system = root.find("os")
    if not tuning.guest.command_line or system is None or system.find("kernel") is None:
        return
    line = system.find("cmdline")
    if line is None:
        line = etree.SubElement(system, "cmdline")
    line.text = " ".join([*text_of(line).split(), *tuning.guest.command_line])


def _graft_devices(root: etree._Element, before: etree._Element, after: etree._Element) -> None:
    devices = root.find("devices")
    old_devices, new_devices = before.find("devices"), after.find("devices")
    if devices is None or old_devices is None or new_devices is None:
        return
    iothreads = int(after.findtext("iothreads", "0"))
    _graft_disks(devices, _data_disk(before), _data_disk(after), iothreads)
    old, new = children(old_devices), children(new_devices)
    for step in dict.fromkeys([*old, *new]):
        match step.partition("[")[0]:
            case "disk":
                pass
            case "controller":
                _graft_controller(devices, old.get(step), new.get(step))
            case "interface":
                _graft_interfaces(devices, old.get(step), new.get(step))
            case _:
                _graft(devices, step, old.get(step), new.get(step))


def _graft_disks(
    devices: etree._Element,
    old: etree._Element | None,
    new: etree._Element | None,
    iothreads: int,
) -> None:
    """Apply the tuning's data disk <driver> to each disk that the guest writes to; `iothreads`
    serve them in turn. Their format and bus stay, because the guest's system was installed on
    them."""
    if old is None or new is None:
        return
    before, after = old.find("driver"), new.find("driver")
    if before is None or after is None or _same(before, after):
        return
    turns = cycle(range(1, iothreads + 1))
    for disk in devices.iterfind("disk"):
        target = disk.find("target")
        if not is_written(disk) or target is None:
            continue
        is_virtio = target.get("bus", "virtio") == "virtio"
        driver = disk.find("driver")
        if driver is None:
            driver = etree.SubElement(disk, "driver", name="qemu", type="raw")
        for key in dict.fromkeys([*before.attrib, *after.attrib]):
            if key in ("name", "type") or (key in _OF_VIRTIO and not is_virtio):
                continue
            if before.get(key) == after.get(key):
                continue
            if (wanted := after.get(key)) is None:
                driver.attrib.pop(key, None)
            else:
                driver.set(key, str(next(turns)) if key == "iothread" else wanted)
        if driver.get("io") == "native" and driver.get("cache") not in _DIRECT:
            del driver.attrib["io"]  # QEMU refuses it, and the tuning defines the cache
        if is_virtio:
            _make_room(driver, before, after)
            _graft(driver, "iothreads", before.find("iothreads"), after.find("iothreads"))


def _graft_interfaces(
    devices: etree._Element, old: etree._Element | None, new: etree._Element | None
) -> None:
    """Apply the tuning's network card to each card. Only QEMU's user network has to become a tap
    device for vhost: the domain's own network stays."""
    if old is None or new is None:
        return
    for own in devices.iterfind("interface"):
        kind = own.get("type", "user")
        _graft_into(own, old, new)
        if kind != "user":
            own.set("type", kind)


def _graft_controller(
    devices: etree._Element, old: etree._Element | None, new: etree._Element | None
) -> None:
    """Apply the tuning's controller to each of its kind in the domain."""
    if new is None or _same(old, new):
        return
    for own in _of_its_kind(devices, new):
        own_number = own.get("index")
        _graft_into(own, old, new)
        if own_number is None:
            own.attrib.pop("index", None)
        else:
            own.set("index", own_number)


def _of_its_kind(devices: etree._Element, controller: etree._Element) -> list[etree._Element]:
    kind, model = controller.get("type"), controller.get("model")
    found = devices.iterfind(f"controller[@type='{kind}']")
    return [own for own in found if own.get("model") == model]


def _data_disk(domain: etree._Element) -> etree._Element | None:
    for disk in domain.iterfind("devices/disk"):
        if disk.findtext("serial") == DATA_SERIAL:
            return disk
    return None
