"""Read what a domain's XML says about each thing that a tuning can change, as words to compare."""

from __future__ import annotations

from collections.abc import Iterator

from lxml import etree

from labctl.base.cpus import format_cpus, parse_cpus
from labctl.base.errors import BrokenError
from labctl.base.xmldiff import unit_bytes

Facts = dict[str, str]
"""Map of names to values: `vcpupin of vCPU 0` to `1`."""

_DISK = ("type", "cache", "io", "discard", "iothread", "queues", "packed")
_CONTROLLER = ("iothread", "queues", "packed")
_INTERFACE = ("name", "queues", "packed")

_CPU = "CPU "
_MODE, _MODEL = f"{_CPU}mode", f"{_CPU}model"

_Named = Iterator[tuple[str, str]]


def facts(xml: str, which: str) -> Facts:
    """Return accelerator, vCPUs, memory with its backing and policy, CPU, KVM features, timers,
    iothreads, pins, policies, and the drivers' options of disks, their controller, network card and
    balloon. `which` names the XML in errors.

    Raises BrokenError when it is no XML.
    """
    try:
        root = etree.fromstring(xml.encode())
    except etree.XMLSyntaxError as error:
        raise BrokenError(f"the {which} domain XML cannot be read: {error.msg}") from error
    found = {"accelerator": root.get("type", "none")}
    for what, path in (("vCPUs", "vcpu"), ("iothreads", "iothreads")):
        if (text := root.findtext(path)) is not None and text.strip() != "0":
            found[what] = text.strip()
    if (memory := root.find("memory")) is not None:
        found["memory"] = f"{_kib(memory.text, memory)} KiB"
    for part in (_memory, _cpu, _features, _cputune, _disks, _devices):
        found.update(part(root))
    return found


def is_filled_in(what: str, asked: str | None, live: str | None) -> bool:
    """Return whether a difference is libvirt's own writing down of what it took by default."""
    if what == _MODE:
        # A host-model becomes the model and the features that it stands for.
        return asked is None or (asked == "host-model" and live == "custom")
    return what.startswith(_CPU) and asked is None


def _kib(number: str | None, element: etree._Element) -> int:
    return int(number or "0") * unit_bytes(element) // 1024


def _memory(root: etree._Element) -> _Named:
    for page in root.iterfind("memoryBacking/hugepages/page"):
        yield "huge pages", f"{_kib(page.get('size'), page)} KiB"
    for what in ("locked", "nosharepages"):
        if root.find(f"memoryBacking/{what}") is not None:
            yield what, "yes"
    for what, path, key in (
        ("memory source", "memoryBacking/source", "type"),
        ("memory access", "memoryBacking/access", "mode"),
    ):
        if (element := root.find(path)) is not None:
            yield what, element.get(key, "none")
    for element in root.iterfind("numatune/*"):
        where = f" of cell {cell}" if (cell := element.get("cellid")) is not None else ""
        nodes = format_cpus(parse_cpus(element.get("nodeset", "")))
        yield f"memory policy{where}", f"{element.get('mode')} from nodes {nodes}"


def _cpu(root: etree._Element) -> _Named:
    cpu = root.find("cpu")
    if cpu is None:
        return
    if (mode := cpu.get("mode")) is not None:
        yield _MODE, mode
    if model := cpu.findtext("model"):
        yield _MODEL, model
    if (topology := cpu.find("topology")) is not None:
        # libvirt adds levels of its own (dies, clusters), one of each.
        shape = (topology.get(key, "?") for key in ("sockets", "cores", "threads"))
        yield f"{_CPU}sockets, cores, threads", ", ".join(shape)
    if (cache := cpu.find("cache")) is not None:
        yield f"{_CPU}cache", cache.get("mode", "none")
    for feature in cpu.iterfind("feature"):
        # libvirt writes what became of it: what is optional may be there or not.
        policy = feature.get("policy", "require")
        if policy != "optional":
            policy = {"force": "require", "forbid": "disable"}.get(policy, policy)
            yield f"{_CPU}feature {feature.get('name')}", policy
    for number, cell in enumerate(cpu.iterfind("numa/cell")):
        cpus = format_cpus(parse_cpus(cell.get("cpus", "")))
        memory = _kib(cell.get("memory"), cell)
        yield f"cell {cell.get('id', number)}", f"vCPUs {cpus}, {memory} KiB"


def _features(root: etree._Element) -> _Named:
    for feature in root.iterfind("features/kvm/*"):
        yield f"KVM feature {feature.tag!s}", feature.get("state", "on")
    for timer in root.iterfind("clock/timer"):
        yield f"timer {timer.get('name')}", timer.get("present", "yes")


def _cputune(root: etree._Element) -> _Named:
    for element in root.iterfind("cputune/*"):
        tag = str(element.tag)
        cpus = format_cpus(parse_cpus(element.get("cpuset", "")))
        policy = f"{element.get('scheduler')} {element.get('priority', '0')}"
        if tag == "vcpupin":
            yield f"vcpupin of vCPU {element.get('vcpu')}", cpus
        elif tag == "iothreadpin":
            yield f"iothreadpin of iothread {element.get('iothread')}", cpus
        elif tag == "emulatorpin":
            yield "emulatorpin", cpus
        elif tag == "emulatorsched":
            yield "emulatorsched", policy
        elif tag in ("vcpusched", "iothreadsched"):
            # libvirt is free to join or split the numbers of such an element.
            key, name = ("vcpus", "vCPU") if tag == "vcpusched" else ("iothreads", "iothread")
            for number in sorted(parse_cpus(element.get(key, ""))):
                yield f"{tag} of {name} {number}", policy


def _disks(root: etree._Element) -> _Named:
    for disk in root.iterfind("devices/disk"):
        target, source = disk.find("target"), disk.find("source")
        name = f"disk {target.get('dev', '?') if target is not None else '?'}"
        yield f"{name} file", source.get("file", "none") if source is not None else "none"
        if target is not None and (bus := target.get("bus")) is not None:
            yield f"{name} bus", bus
        yield from _driver(name, disk, _DISK)
        if mapped := [thread.get("id", "?") for thread in disk.iterfind("driver/iothreads/*")]:
            yield f"{name} iothreads", ", ".join(mapped)


def _devices(root: etree._Element) -> _Named:
    for controller in root.iterfind("devices/controller[@type='scsi']"):
        name = f"SCSI controller {controller.get('index', '0')}"
        yield f"{name} model", controller.get("model", "none")
        yield from _driver(name, controller, _CONTROLLER)
    for number, card in enumerate(root.iterfind("devices/interface")):
        name = f"network card {number}"
        model = card.find("model")
        yield f"{name} type", card.get("type", "none")
        yield f"{name} model", model.get("type", "none") if model is not None else "none"
        link = card.find("link")
        yield f"{name} link", link.get("state", "up") if link is not None else "up"
        yield from _driver(name, card, _INTERFACE)
    if (balloon := root.find("devices/memballoon")) is not None:
        yield "balloon", balloon.get("model", "none")


def _driver(name: str, device: etree._Element, keys: tuple[str, ...]) -> _Named:
    driver = device.find("driver")
    for key in keys:
        if driver is not None and (value := driver.get(key)) is not None:
            yield f"{name} {key}", value
