"""Read the administrator's own domain, and refuse one that no copy could run. Pure.

`copied` defines what the copy keeps and changes, and `graft` how a tuning is applied to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from lxml import etree

from labctl.base.cpus import CpuSet, format_cpus, parse_cpus
from labctl.base.errors import UsageError
from labctl.base.xmldiff import parse, tag_of, text_of, unit_bytes
from labctl.domain.asked import EMULATOR, IOTHREAD, VCPU, ExpectedThread
from labctl.domain.foreign.allowed import DOMAIN, left_out_notes
from labctl.domain.foreign.platform_file import FLAVOR, FORMATS, replaced, understood
from labctl.domain.foreign.rebuilt import MOST_IOTHREADS, MOST_MEMORY, MOST_VCPUS, rebuilt
from labctl.domain.foreign.rebuilt import path as is_no_path

MOST_BYTES: Final = 1 << 20
MOST_LEVELS: Final = 32
MOST_ELEMENTS: Final = 4096
MOST_NAMED_CPUS: Final = 1_000_000
"""Limit on all CPU sets of one domain together: 1024 vCPUs with 900 CPUs each."""

_WITH_CPU_SETS = ("vcpu", "cputune/*", "numatune/*", "cpu/numa/cell", "memoryBacking//page")
"""Elements with sets of CPUs or nodes."""

_MOST_DIGITS = 20

_GIVE = "Pass the output of 'virsh dumpxml --inactive NAME'."
_REMEDY = "Remove that from a copy of its XML ('virsh dumpxml --inactive'), and pass the file."


@dataclass(frozen=True, slots=True)
class OwnDisk:
    """Describe a disk that the guest writes to. `name`: its target (vda); `format`: one of
    FORMATS.
    """

    name: str
    path: Path
    format: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnDomain:
    """Describe a domain as its owner defined it. `what`: its file or name, for errors. `xml`: with
    CPU sets in labctl's format. `memory_mib`: rounded up, as in its copies."""

    name: str
    what: str
    xml: str
    vcpus: int
    memory_mib: int
    disks: tuple[OwnDisk, ...]
    is_uefi: bool
    nvram: Path | None
    """File of its UEFI variables, if it names one; the file may not exist yet."""
    read_only: tuple[OwnDisk, ...]
    """Disks and CD images that the copy opens in place."""
    firmware: tuple[Path, ...]
    """Files of QEMU's firmware."""
    boot_files: tuple[Path, ...]
    """Kernel and initrd, if they are booted directly."""
    networks: frozenset[str]
    """Types of its network interfaces."""
    has_command_line: bool
    """True if its kernel is booted directly, so that the XML has the kernel's command line."""
    refused: tuple[str, ...]
    """Elements that a copy cannot have: line and reason."""
    form: str = "libvirt"
    """Form of its file, by platform."""
    notes: tuple[str, ...] = ()
    """Clauses about what was replaced or left out when its file was read."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """Return its notes for a plan and a report."""
        return tuple(f"In labctl's copy of '{self.name}', {note}." for note in self.notes)


def domain_of_file(
    data: bytes, what: str, *, is_xml: bool = False, flavor: bytes | None = None
) -> OwnDomain:
    """Return the domain that a file of any known platform describes. `is_xml`: whether its name
    says XML; `flavor`: the file of its OpenStack flavor. Raises UsageError as
    `own_domain` does, and for a file of another form."""
    if max(len(data), len(flavor or b"")) > MOST_BYTES:
        raise UsageError(f"{what} is larger than {MOST_BYTES} bytes", hint=_GIVE)
    own = _understood(data, what, is_xml=is_xml)
    return (
        own if flavor is None else _with_flavor(own, _understood(flavor, f"the flavor of {what}"))
    )


def _understood(data: bytes, what: str, *, is_xml: bool = False) -> OwnDomain:
    if is_xml or data.lstrip().startswith(b"<"):
        return own_domain(data, what)
    found = understood(data, what)
    own = own_domain(found.xml, what)
    return replace(own, form=found.form, notes=(*found.notes, *own.notes))


def _with_flavor(own: OwnDomain, flavor: OwnDomain) -> OwnDomain:
    """Return an instance's domain with the notes of its flavor. Raises UsageError if they are not
    an instance and a flavor of one size."""
    if flavor.form != FLAVOR or (own.vcpus, own.memory_mib) != (flavor.vcpus, flavor.memory_mib):
        raise UsageError(
            f"{own.what}: expected a flavor and the domain XML of an instance of it",
            hint="Pass FLAVOR.json,INSTANCE.xml.",
        )
    specs = [note for note in flavor.notes if not note.startswith(("disk ", "machine: "))]
    return replace(own, form=f"{own.form}, with its flavor", notes=(*own.notes, *specs))


def own_domain(xml: str | bytes, what: str) -> OwnDomain:
    """Return the domain that `xml` describes; `what` names it in errors. Raises UsageError for XML
    that is not a QEMU domain."""
    root = _parsed(xml, what)
    if root.tag != "domain" or root.get("type") not in ("kvm", "qemu"):
        kind = root.get("type")
        found = f"<{tag_of(root)}{f' type={kind!r}' if kind is not None else ''}>"
        raise UsageError(f"{what} is not a QEMU domain: its root is {found}", hint=_GIVE)
    _fill_in(root, what)
    form, notes = replaced(root, what)
    taken = rebuilt(root, DOMAIN)
    refused = (*_refused(root), *_refused_disks(root), *taken.refused)
    _rewrite_cpu_sets(root, what)
    for graphics in root.iterfind("devices/graphics"):
        graphics.attrib.pop("passwd", None)  # run folders are passed on
    nvram, loader = root.find("os/nvram"), root.find("os/loader")
    is_flash = loader is not None and loader.get("type") == "pflash"
    is_efi = root.find("os[@firmware='efi']") is not None
    return OwnDomain(
        name=root.findtext("name", "").strip() or what,
        what=what,
        xml=etree.tostring(root, encoding="unicode"),
        vcpus=_vcpus(root, what),
        memory_mib=-(-memory_kib(_first(root, "memory"), what) // 2048) * 2,
        disks=tuple(_own_disk(disk) for disk in _written_disks(root)),
        is_uefi=nvram is not None or is_flash or is_efi,
        nvram=_nvram_path(nvram) if nvram is not None else None,
        read_only=tuple(map(_own_disk, filter(_is_opened, _unwritten_disks(root)))),
        firmware=tuple(Path(name) for name in _texts(root, "os/loader", "os/nvram/@template")),
        boot_files=tuple(Path(name) for name in _texts(root, "os/kernel", "os/initrd")),
        networks=frozenset(str(i.get("type")) for i in root.iterfind("devices/interface")),
        has_command_line=root.find("os/kernel") is not None,
        refused=refused,
        form=form,
        notes=(*notes, *left_out_notes(taken.left_out)),
    )


def _parsed(xml: str | bytes, what: str) -> etree._Element:
    """Return the root element of a domain within the limits. Raises UsageError."""
    size = len(xml.encode()) if isinstance(xml, str) else len(xml)
    if size > MOST_BYTES:
        raise UsageError(f"{what} is larger than {MOST_BYTES} bytes", hint=_GIVE)
    try:
        root = parse(xml, what)
    except UsageError as error:
        raise UsageError(error.message, hint=_GIVE) from error
    if root.getroottree().docinfo.doctype:
        raise UsageError(
            f"{what} has a document type declaration, which libvirt never writes", hint=_GIVE
        )
    level = 0
    for count, (event, _) in enumerate(etree.iterwalk(root, events=("start", "end"))):
        level += 1 if event == "start" else -1
        if level > MOST_LEVELS:
            raise UsageError(
                f"{what} has elements nested deeper than {MOST_LEVELS} levels", hint=_GIVE
            )
        if count > 2 * MOST_ELEMENTS:
            raise UsageError(f"{what} has more than {MOST_ELEMENTS} elements", hint=_GIVE)
    return root


def check_copyable(own: OwnDomain) -> None:
    """Raise UsageError naming every element that a copy cannot have, its line, and why."""
    if own.refused:
        raise UsageError(f"labctl can't copy {own.what}: {'; '.join(own.refused)}", hint=_REMEDY)
    if _has_no_disk(own):
        raise UsageError(
            f"{own.what} {_NO_DISK}",
            hint="Pass an installed domain with a <disk device='disk'>.",
        )


_NO_DISK = "has no own disk to boot from"


def why_not_copied(own: OwnDomain) -> tuple[str, ...]:
    """Return why no copy of the domain can be measured, a clause each; () if one can."""
    return (*own.refused, *([f"{own.what} {_NO_DISK}"] if _has_no_disk(own) else []))


def _has_no_disk(own: OwnDomain) -> bool:
    return not own.disks and not own.has_command_line


def memory_kib(element: etree._Element, what: str, attribute: str | None = None) -> int:
    """Return a size of memory in KiB: the element's text, or an attribute of it. libvirt's default
    unit is KiB. `what` names the XML in errors."""
    text = text_of(element) if attribute is None else element.get(attribute, "")
    try:
        size = int(text[:_MOST_DIGITS]) * unit_bytes(element)
        if size <= MOST_MEMORY and len(text) <= _MOST_DIGITS:
            return size // 1024
    except (ValueError, KeyError) as error:
        unit = element.get("unit", "")
        raise UsageError(
            f"{what}: {_named(element)}: '{f'{text} {unit}'.strip()}' is not a size of memory",
            hint="Write it as 'virsh dumpxml' does: <memory unit='KiB'>1048576</memory>.",
        ) from error
    raise UsageError(
        f"{what}: {_named(element)}: {text[:_MOST_DIGITS]} is more than {MOST_MEMORY >> 40} TiB",
        hint="Correct it in a copy of its XML.",
    )


def is_written(disk: etree._Element) -> bool:
    """Return whether the guest writes to this <disk>."""
    return disk.get("device", "disk") in ("disk", "lun") and disk.find("readonly") is None


def named_places(own: OwnDomain) -> tuple[CpuSet, CpuSet]:
    """Return CPUs and NUMA nodes of the host that its XML names."""
    root = parse(own.xml)
    sets = [e.get("cpuset", "") for path in ("vcpu", "cputune/*") for e in root.iterfind(path)]
    nodesets = [e.get("nodeset", "") for e in root.iterfind("numatune/*")]
    return (
        frozenset().union(*map(parse_cpus, sets)),
        frozenset().union(*map(parse_cpus, nodesets)),
    )


def expected_threads(xml: str, vcpus: int, allowed: CpuSet) -> list[ExpectedThread]:
    """Return the expected state of each thread of a guest with this XML: its <cputune> is complete,
    whoever wrote it. `allowed`: the CPUs of threads without a setting.

    A <vcpu cpuset=…> applies to every thread without a pin of its own
    (https://libvirt.org/formatdomain.html#cpu-allocation).
    """
    root = parse(xml)
    common = root.find("vcpu")
    cpuset = common.get("cpuset") if common is not None else None
    free = parse_cpus(cpuset) if cpuset else allowed
    tune = root.find("cputune")
    tune = etree.Element("cputune") if tune is None else tune
    iothreads = range(1, int(root.findtext("iothreads", "0")) + 1)

    def expected(role: str, index: int) -> ExpectedThread:
        pins = [e for e in tune.iterfind(f"{role}pin") if e.get(role, str(index)) == str(index)]
        scheds = [e for e in tune.iterfind(f"{role}sched") if _holds_for(e, index)]
        return ExpectedThread(
            role=role,
            index=index,
            cpus=parse_cpus(pins[0].get("cpuset", "")) if pins else free,
            policy=scheds[0].get("scheduler", "other") if scheds else "other",
            priority=int(scheds[0].get("priority", "0")) if scheds else 0,
        )

    return [
        *(expected(VCPU, number) for number in range(vcpus)),
        expected(EMULATOR, 0),
        *(expected(IOTHREAD, number) for number in iothreads),
    ]


def _rewrite_cpu_sets(root: etree._Element, what: str) -> None:
    """Rewrite libvirt's CPU sets, which may exclude numbers ("0-3,^2"), in the kernel's format."""
    named = 0
    for element in (e for path in _WITH_CPU_SETS for e in root.iterfind(path)):
        for key in ("cpuset", "vcpus", "iothreads", "nodeset", "cpus"):
            if (text := element.get(key)) is None:
                continue
            parts = text.replace(" ", "").split(",")
            try:
                kept = parse_cpus(",".join(part for part in parts if part[:1] != "^"))
                out = parse_cpus(",".join(part[1:] for part in parts if part[:1] == "^"))
            except ValueError as error:
                raise UsageError(
                    f"{what}: {_named(element)}: {key}: {error}",
                    hint="Write it as in 0-3,8 or 0-7,^2.",
                ) from error
            named += len(kept)
            if named > MOST_NAMED_CPUS:
                raise UsageError(
                    f"{what} names more than {MOST_NAMED_CPUS} CPUs in its sets", hint=_GIVE
                )
            element.set(key, format_cpus(kept - out))


def _holds_for(sched: etree._Element, index: int) -> bool:
    numbers = sched.get("vcpus") or sched.get("iothreads")
    return numbers is None or index in parse_cpus(numbers)


def _refused(root: etree._Element) -> Iterator[str]:
    for loader in root.iterfind("os/loader[@readonly='no']"):
        yield f"{_named(loader)}: the guest would write to the firmware's own file"
    kind = root.find("os/type")
    arch = kind.get("arch", "x86_64") if kind is not None else None
    if root.findtext("os/type", "").strip() != "hvm" or arch not in ("x86_64", "i686"):
        of = f"'{root.findtext('os/type', '').strip()}' on '{arch}'"
        yield f"<os><type> says {of}: labctl's tunings are for 'hvm' on 'x86_64'"
    iothreads = root.findtext("iothreads", "0").strip()
    if not _is_number(iothreads, MOST_IOTHREADS):
        yield f"<iothreads>: expected at most {MOST_IOTHREADS}, got '{iothreads[:_MOST_DIGITS]}'"
    variables = root.find("os/nvram")
    if variables is not None and (file := _nvram_path(variables)) and is_no_path(str(file)):
        yield f"{_named(variables)}: it has no absolute path"
    ids = [iothread.get("id") for iothread in root.iterfind("iothreadids/iothread")]
    if ids != [str(number) for number in range(1, len(ids) + 1)]:
        yield "<iothreadids>: tunings number iothreads from 1"


def _refused_disks(root: etree._Element) -> Iterator[str]:
    for disk in root.iterfind("devices/disk"):
        if reason := _why_refused(disk):
            yield f"{_named(disk)}: {reason}"


def _why_refused(disk: etree._Element) -> str | None:
    if disk.get("device") in ("cdrom", "floppy"):  # it is kept or ejected, but never written to
        return None if not _is_opened(disk) else _why_format_refused(disk.find("driver"))
    if disk.get("device", "disk") != "disk":
        return f"labctl does not support disks of the kind '{disk.get('device')}'"
    if disk.find("mirror") is not None:
        return "a block job is running on it"
    if disk.find("source/slices") is not None:
        return "only a part of its file is the disk"
    if _source(disk) is None or not _source_path(disk).is_absolute():
        return "it names no file"
    if disk.find("target") is None:
        return "it has no <target>"
    return None


def _why_format_refused(driver: etree._Element | None) -> str | None:
    if _format(driver) in FORMATS:
        return None
    # Other formats have other ways of naming files of the host.
    return f"labctl supports {' and '.join(FORMATS)}, but it is '{_format(driver)}'"


def _named(element: etree._Element) -> str:
    target = element.find("target")
    dev = target.get("dev") if target is not None else None
    name = tag_of(element)
    said = {"type": element.get("type"), "placement": element.get("placement"), "dev": dev}
    words = [name, *(f"{key}='{value}'" for key, value in said.items() if value)]
    return f"<{' '.join(words)}> (line {element.sourceline})"


def _written_disks(root: etree._Element) -> list[etree._Element]:
    return [disk for disk in root.iterfind("devices/disk") if is_written(disk)]


def _unwritten_disks(root: etree._Element) -> list[etree._Element]:
    return [disk for disk in root.iterfind("devices/disk") if not is_written(disk)]


def _is_opened(disk: etree._Element) -> bool:
    """Return whether the copy opens the file of a disk that the guest does not write to: the host's
    drives and floppies are ejected."""
    kind = disk.get("type", "file")
    is_kept = kind == "file" or (kind == "block" and disk.get("device", "disk") == "disk")
    return is_kept and disk.get("device") != "floppy" and _source(disk) is not None


def _own_disk(disk: etree._Element) -> OwnDisk:
    target = disk.find("target")
    name = target.get("dev", "") if target is not None else ""
    return OwnDisk(name, _source_path(disk), _format(disk.find("driver")))


def _format(driver: etree._Element | None) -> str:
    # libvirt takes a disk without a format for raw: a guest could write a qcow2 header into one,
    # and name any file of the host as its backing file.
    return driver.get("type", "raw") if driver is not None else "raw"


def _source(disk: etree._Element) -> str | None:
    source = disk.find("source")
    return None if source is None else source.get("file") or source.get("dev")


def _source_path(disk: etree._Element) -> Path:
    return Path(_source(disk) or "")


def _nvram_path(nvram: etree._Element) -> Path | None:
    source = nvram.find("source")
    path = text_of(nvram) or (source.get("file", "") if source is not None else "")
    return Path(path) if path else None


def _vcpus(root: etree._Element, what: str) -> int:
    vcpu = _first(root, "vcpu")
    text = vcpu.get("current") or text_of(vcpu)
    if not _is_number(text, MOST_VCPUS) or int(text) == 0:
        raise UsageError(
            f"{what}: {_named(vcpu)}: '{text[:_MOST_DIGITS]}' is not a number of vCPUs from "
            f"1 to {MOST_VCPUS}",
            hint="Write it as in <vcpu>2</vcpu>.",
        )
    return int(text)


def _fill_in(root: etree._Element, what: str) -> None:
    """Write libvirt's defaults where the owner sets none: one vCPU, and the memory of the NUMA
    cells (https://libvirt.org/formatdomain.html#cpu-allocation, #memory-allocation)."""
    if root.find("vcpu") is None:
        etree.SubElement(root, "vcpu").text = "1"
    if root.find("memory") is None:
        cells = root.findall("cpu/numa/cell[@memory]")
        if not cells:
            raise UsageError(f"{what} has neither <memory> nor NUMA cells with memory", hint=_GIVE)
        kib = sum(memory_kib(cell, what, "memory") for cell in cells)
        etree.SubElement(root, "memory", unit="KiB").text = str(kib)


def _first(root: etree._Element, tag: str) -> etree._Element:
    return next(root.iterchildren(tag))


def _is_number(text: str, most: int) -> bool:
    return text.isdecimal() and len(text) <= len(str(most)) and int(text) <= most


def _texts(root: etree._Element, *paths: str) -> Iterator[str]:
    """Return texts of elements, and values of attributes, as far as they exist."""
    for path in paths:
        tag, _, key = path.partition("/@")
        for element in root.iterfind(tag):
            if text := element.get(key) if key else text_of(element):
                yield text
