"""Derive commands that turn one domain XML into another, for use on any domain.

virt-xml takes a change as an XPath (`--xml`, since 4.0): it makes missing elements, finds a vcpupin
by its vCPU, and does nothing if the change is already made. Devices, which another domain may have
at other places, are found by virt-xml's own criteria.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lxml import etree

from labctl.base.errors import BrokenError, UsageError
from labctl.base.xmldiff import XmlChange, changes, children, parse, unit_bytes
from labctl.rollout.steps import DISK, DOMAIN, Command, Done, InForce, Machine, Step
from labctl.store.run_folder import LoadedRun, stored_xml

_LABS_OWN = re.compile(r"(name|uuid|title|description|metadata|memory|currentMemory|vcpu|os)(/.*)?")
"""Elements of the measured guest, not of a tuning. A tuning's words on its kernel's command line
are a setting inside the guest."""

_DEVICES_OWN = re.compile(
    r"@type|(source|serial|mac|alias|address|backingStore|link)(/.*)?|driver/@type|target/@dev"
)
"""Likewise of a disk or a network card, relative to it."""

_NAMED_OPTIONS = {
    "disk": ("driver.cache", "driver.io", "driver.iothread", "driver.queues", "driver.discard")
    + ("driver.packed", "target.bus"),
    "network": ("driver.name", "driver.queues", "driver.packed", "model.type"),
    "controller": ("model", "driver.iothread", "driver.queues"),
}
"""Options that virt-xml has a name for; all others are set by XPath."""


_STEP = re.compile(r"(?:[^/\[]|\[[^\]]*\])+")
"""One step of a path; a condition may hold a slash."""

_CHANGED = "Altered XML"
"""Heading of the difference that `virt-xml --print-diff` prints, if there is one."""


@dataclass(frozen=True, slots=True)
class Device:
    """Describe a device that a tuning changes. `target`: its name before; `changes` have paths
    relative to it; `after`: the device with the tuning."""

    tag: str
    target: str
    changes: tuple[XmlChange, ...]
    after: etree._Element


def domain_text(run: LoadedRun, tuning: str, folder: Path) -> str | None:
    """Return the run's domain XML of a tuning; None if it is missing or not XML."""
    place = run.run.xml.get(tuning)
    if place is None:
        return None
    try:
        text = stored_xml(folder, str(place))
        parse(text)
    except (BrokenError, UsageError):
        return None
    return text


def domain_changes(before: str, after: str) -> list[XmlChange]:
    """Return a tuning's changes to a domain outside its devices."""
    return [
        change
        for change in changes(before, after)
        if not _LABS_OWN.fullmatch(change.path) and not _DEVICE.fullmatch(change.path)
    ]


def changed_devices(before: str, after: str) -> list[Device]:
    """Return the disks and network cards that a tuning changes, and the controllers that it
    adds."""
    old, new = (_devices(xml) for xml in (before, after))
    found = []
    for step, device in new.items():
        former = old.get(step) if step in old else _with_serial(old, device)
        text = "<none/>" if former is None else _text(former)
        inside = tuple(
            change
            for change in changes(text, _text(device))
            if former is None or not _DEVICES_OWN.fullmatch(change.path)
        )
        target = (device if former is None else former).find("target")
        if inside:
            named = "" if target is None else str(target.get("dev", ""))
            found.append(Device(str(device.tag), named, inside, device))
    return found


def new_format(before: str, after: str) -> str | None:
    """Return the format that a tuning gives a disk's image, which no edit of the domain can
    change."""
    formats = (
        change.after
        for change in changes(before, after)
        if re.fullmatch(r"devices/disk\[[^\]]*\]/driver/@type", change.path) and change.before
    )
    return next(formats, None)


def added_words(before: str, after: str) -> list[str]:
    """Return a tuning's additions to the command line of the guest's kernel."""
    old, new = ((parse(xml).findtext("./os/cmdline") or "").split() for xml in (before, after))
    return [word for word in new if word not in old]


def edits(before: str, after: str) -> Iterator[Step]:
    """Yield the steps that change a domain like `before` into one like `after`; of its disks only
    the last one, which workloads read and write (`changed_devices` names them all)."""
    before, after = _in_kib(before), _in_kib(after)
    if general := domain_changes(before, after):
        words = [word for option in _xpath_options(general, after) for word in ("--xml", option)]
        yield _step("Change the domain", ("--edit",), words)
    devices = changed_devices(before, after)
    disks = [device for device in devices if device.tag == "disk"]
    for device in devices:
        if device.tag == "controller":
            yield _added_controller(device)
    if disks:
        yield _changed_disk(disks[-1])
    for device in devices:
        if device.tag == "interface":
            options = _device_options("network", device.changes)
            yield _step("Change its network card", ("--edit",), ("--network", ",".join(options)))


def live_pins(before: str, after: str) -> list[Command]:
    """Return commands that pin the vCPUs and the emulator of a running domain until it ends."""
    commands = []
    for change in domain_changes(before, after):
        vcpu = re.fullmatch(r"cputune/vcpupin\[@vcpu='(\d+)'\]/@cpuset", change.path)
        if change.after is None:
            continue
        if vcpu is not None:
            argv = ("virsh", "vcpupin", DOMAIN, vcpu.group(1), change.after, "--live")
            commands.append(Command(argv=argv))
        elif change.path == "cputune/emulatorpin/@cpuset":
            commands.append(Command(argv=("virsh", "emulatorpin", DOMAIN, change.after, "--live")))
    return commands


def fragment(before: str, after: str) -> str:
    """Return the changed elements with the tuning's values, for `virsh edit`; of devices only the
    changes and the identifying part."""
    blocks: dict[str, str] = {}
    root = parse(after)
    for change in domain_changes(before, after):
        steps = _STEP.findall(change.path)
        path = steps[: 2 if steps[0] == "devices" else 1]
        block = _at(root, path)
        blocks["/".join(path)] = f"<!-- no {path[-1]} -->\n" if block is None else _pretty(block)
    for number, device in enumerate(changed_devices(before, after)):
        kept = {change.path.partition("/")[0] for change in device.changes} | {"target"}
        block = parse(_text(device.after))
        for step, child in children(block).items():
            if device.tag != "controller" and step not in kept:
                block.remove(child)
        blocks[f"device {number}"] = _pretty(block)
    return "".join(blocks.values())


def _devices(xml: str) -> dict[str, etree._Element]:
    devices = parse(xml).find("devices")
    found = {} if devices is None else children(devices)
    return {
        step: device
        for step, device in found.items()
        if device.tag in ("disk", "interface") or step.startswith("controller[@type='scsi']")
    }


_DEVICE = re.compile(r"devices/(disk|interface|controller|channel|console|serial|emulator)\b.*")
"""Devices that are compared one by one, and those that labctl uses to talk to its guest."""


def _with_serial(
    devices: dict[str, etree._Element], wanted: etree._Element
) -> etree._Element | None:
    """Find the disk by its serial number: on another bus it has another target."""
    serial = wanted.findtext("serial")
    found = (device for device in devices.values() if device.findtext("serial") == serial)
    return next(found, None) if serial else None


def _in_kib(xml: str) -> str:
    """Return sizes in libvirt's own notation: a page of "2 M" would not be found again."""
    root = parse(xml)
    for element in root.iter("page", "cell"):
        key = "size" if element.tag == "page" else "memory"
        size, unit = element.get(key), unit_bytes(element)
        if size is not None and size.isdigit() and unit >= 1024:
            element.set(key, str(int(size) * unit // 1024))
            element.set("unit", "KiB")
    return _text(root)


def _text(element: etree._Element) -> str:
    return etree.tostring(element, encoding="unicode")


def _pretty(element: etree._Element) -> str:
    whole = parse(_text(element))
    for inner in whole.iter():
        if not len(inner) and not (inner.text or "").strip():
            inner.text = None
    etree.indent(whole)
    return _text(whole) + "\n"


def _step(title: str, action: Sequence[str], words: Sequence[str], unless: str = "") -> Step:
    """Return a step. `unless`: text in the domain's XML if there is nothing to do; virt-xml detects
    most cases by itself."""
    argv = ("virt-xml", DOMAIN, *action, "--print-diff", "--define", *words)
    asked = Done(("virsh", "dumpxml", "--inactive", DOMAIN), unless) if unless else None
    return Step(
        title=title,
        machine=Machine.HOST,
        in_force=InForce.GUEST_START,
        commands=(Command(argv=argv, changed=_CHANGED, unless=asked),),
    )


def _changed_disk(disk: Device) -> Step:
    options = _device_options("disk", disk.changes)
    unless = ""
    after = disk.after.find("target")
    if after is not None and any(change.path == "target/@bus" for change in disk.changes):
        # On another bus it has another name, and its PCI address would keep it on the old one.
        options += [f"target.dev={after.get('dev')}", "xpath99.delete=./address"]
        unless = f"<target dev='{after.get('dev')}' bus='{after.get('bus')}'"
    return _step(
        "Change its disk",
        ("--edit", f"target={DISK}"),
        ("--disk", ",".join(options)),
        unless=unless,
    )


def _added_controller(device: Device) -> Step:
    model = str(device.after.get("model"))
    options = ["type=scsi", *_device_options("controller", device.changes)]
    return _step(
        f"Add a {model} controller",
        ("--add-device",),
        ("--controller", ",".join(options)),
        unless=f"model='{model}'",
    )


def _device_options(kind: str, inside: Iterable[XmlChange]) -> list[str]:
    """Return `driver.cache=none`, or an XPath for an option without a name."""
    options = []
    for number, change in enumerate(inside):
        name = change.path.replace("/@", ".").removeprefix("@")
        if name in _NAMED_OPTIONS[kind] and change.after is not None:
            options.append(f"{name}={change.after}")
        elif kind == "controller" and not change.path.startswith("driver/"):
            continue  # its type and index, which --add-device sets
        elif change.after:
            path = _option(change.path)
            options += [f"xpath{number}.set={path}", f"xpath{number}.value={change.after}"]
        elif change.after is None:
            options.append(f"xpath{number}.set={_option(change.path)}=")
        else:
            options.append(f"xpath{number}.create={_option(change.path)}")
    return options


def _xpath_options(general: Iterable[XmlChange], after: str) -> list[str]:
    """Return values of `--xml`. An element that disappears completely is deleted as a whole."""
    root = parse(after)
    options: dict[str, None] = {}
    for change in general:
        if change.after is None:
            options[_removal(change.path, root)] = None
        elif change.after or "@" in _last(change.path):
            options[f"./{change.path}={change.after}"] = None
        else:
            options[f"xpath.create={_option(change.path)}"] = None
    return list(options)


def _last(path: str) -> str:
    return str(_STEP.findall(path)[-1])


def _at(root: etree._Element, steps: Iterable[str]) -> etree._Element | None:
    element: etree._Element | None = root
    for step in steps:
        element = children(element).get(step) if element is not None else None
    return element


def _option(path: str) -> str:
    """Return an XPath within an option's value, where virt-xml interprets quotes."""
    return "./" + path.replace("'", "\\'")


def _removal(path: str, root: etree._Element) -> str:
    """Return the outermost of the path's elements that `root` no longer has; else the attribute is
    emptied, which virt-xml treats as its removal."""
    steps = [step for step in _STEP.findall(path) if not step.startswith("@")]
    for number in range(1, len(steps) + 1):
        if _at(root, steps[:number]) is None:
            return f"xpath.delete={_option('/'.join(steps[:number]))}"
    return f"./{path}="
