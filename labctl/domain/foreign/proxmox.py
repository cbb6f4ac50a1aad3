"""Read a VM of Proxmox VE: its configuration (qm.conf(5)), or what `qm showcmd --pretty` prints."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Final

from lxml import etree

from labctl.domain.foreign.draft import Draft

_OPTION = re.compile(r"([a-z][a-z0-9_-]*): ?(.*)")
_KNOWN = re.compile(
    r"^(?:cores|sockets|memory|ostype|scsihw|machine|bootdisk|vmgenid|smbios1|(?:scsi|virtio|sata|ide"
    r"|net)\d+): \S",
    re.MULTILINE,
)
_COMMAND = re.compile(r"/usr/bin/(?:kvm|qemu-system-\w+)\s")
_DRIVE = re.compile(r"(scsi|virtio|sata|ide)(\d+)")
_VOLUME = re.compile(r"([A-Za-z][\w.-]*):([\w./+-]+)")
_FOLDERS: Final = {
    "local": "/var/lib/vz/images/{}",
    "local-lvm": "/dev/pve/{}",
    "local-zfs": "/dev/zvol/rpool/data/{}",
}
"""Storages of a default installation: where their volumes are on the node."""

_MODELS: Final = {
    "kvm64": "kvm64",
    "x86-64-v2": "Nehalem",
    "x86-64-v2-AES": "Westmere",
    "x86-64-v3": "Haswell-noTSX",
    "x86-64-v4": "Skylake-Server-noTSX-IBRS",
}
"""Models of Proxmox VE to the nearest of libvirt."""
_CONTROLLERS: Final = {
    "virtio-scsi-pci": "virtio-scsi",
    "virtio-scsi-single": "virtio-scsi",
    "lsi": "lsilogic",
    "lsi53c810": "lsilogic",
    "megasas": "lsisas1078",
    "pvscsi": "vmpvscsi",
}
_SILENT = frozenset(
    ("acpi", "boot", "bootdisk", "cores", "sockets", "vcpus", "cpu", "memory", "balloon", "name")
    + ("numa", "hugepages", "machine", "bios", "ostype", "scsihw", "agent", "kvm", "affinity")
    + ("description", "meta", "onboot", "startup", "tags", "template", "protection", "digest")
    + ("smbios1", "vmgenid", "keephugepages", "localtime", "arch", "lock", "parent", "tablet")
    + (
        "hotplug",
        "allow-ksm",
        "vmstatestorage",
        "shares",
        "autostart",
        "reboot",
        "migrate_downtime",
    )
)
"""Options that are read, or that a copy's guest does not see."""
_SHARES = "results apply to a VM without it"


def is_command(text: str) -> bool:
    """Return whether a text is the output of `qm showcmd`."""
    return _COMMAND.match(text) is not None


def is_config(text: str) -> bool:
    """Return whether a text looks like a VM's configuration: one of its lines has an option that
    only those have."""
    return _KNOWN.search(text) is not None


def drafted(text: str, what: str) -> Draft:
    """Return the domain of a configuration or a command. Raises UsageError naming the line."""
    lines: dict[str, int] = {}
    options = _of_command(text, what) if is_command(text) else _of_config(text, what, lines)
    draft = Draft(what, options.get("name") or "vm")
    _Reader(draft, options, lines).read()
    return draft


def _of_config(text: str, what: str, lines: dict[str, int]) -> dict[str, str]:
    """Return the options of a configuration, and put the line of each into `lines`."""
    draft, options = Draft(what, ""), {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("["):
            break  # snapshots and pending changes
        if not line.strip() or line.startswith("#"):
            continue
        match = _OPTION.fullmatch(line.strip())
        if match is None:
            raise draft.fail(f"expected 'option: value', got {line[:60]!r}", number)
        options[match[1]], lines[match[1]] = match[2].strip(), number
    return options


def parts(value: str, first: str = "") -> dict[str, str]:
    """Return a value such as `host,flags=+aes` by key; `first`: of a part without a key."""
    found = {}
    for part in value.split(","):
        key, equals, given = part.partition("=")
        found[key if equals else first] = given if equals else key
    return found


class _Reader:
    def __init__(self, draft: Draft, options: Mapping[str, str], lines: Mapping[str, int]) -> None:
        self.draft, self.options, self.lines = draft, options, lines

    def number(self, key: str, default: int) -> int:
        text = parts(self.options.get(key, str(default)), "current").get("current", "")
        if not re.fullmatch(r"\d{1,9}", text):
            raise self.draft.fail(
                f"{key}: expected a whole number, got {text[:60]!r}", self.lines.get(key)
            )
        return int(text)

    def is_on(self, key: str, default: str = "0") -> bool:
        return self.options.get(key, default) in ("1", "on", "yes")

    def read(self) -> None:
        draft, options = self.draft, self.options
        sockets, cores = self.number("sockets", 1), self.number("cores", 1)
        memory = self.number("memory", 512)
        draft.size(sockets * cores, memory)
        if (vcpus := self.number("vcpus", 0)) and vcpus < sockets * cores:
            draft.put("vcpu", current=vcpus)
        if not self.is_on("kvm", "1"):
            draft.root.set("type", "qemu")
        machine = parts(options.get("machine", "pc"), "type").get("type", "pc")
        draft.system(
            "q35" if "q35" in machine else "pc",
            uefi=options.get("bios") == "ovmf",
            arch=options.get("arch", "x86_64"),
        )
        draft.put("features/acpi")
        draft.put("features/apic")
        self._cpu(sockets, cores)
        self._memory(sockets * cores, memory)
        if affinity := options.get("affinity"):
            draft.put("vcpu", cpuset=affinity)
        is_windows = options.get("ostype", "").startswith("w")
        draft.put(
            "clock", offset="localtime" if self.is_on("localtime", str(+is_windows)) else "utc"
        )
        if is_windows:
            draft.windows()
        self._devices(sockets * cores)

    def _cpu(self, sockets: int, cores: int) -> None:
        draft = self.draft
        cpu = parts(self.options.get("cpu", "kvm64"), "cputype")
        model = cpu.get("cputype", "kvm64")
        if model in ("host", "max"):
            draft.cpu("host-passthrough" if model == "host" else "maximum")
        else:
            if model.startswith("custom-"):
                draft.notes.append(f"cpu {model}: host-model stands in for the cluster's own model")
                draft.cpu("host-model")
            else:
                nearest = _MODELS.get(model, model)
                if nearest != model:
                    draft.notes.append(f"cpu {model}: {nearest}, the nearest of libvirt's models")
                draft.cpu("custom", nearest)
        draft.topology(sockets, cores, 1)
        for flag in filter(None, cpu.get("flags", "").split(";")):
            if flag[1:] in ("hv-tlbflush", "hv-evmcs"):
                draft.hyperv(flag[4:], "on" if flag[0] == "+" else "off")
            else:
                policy = "require" if flag[0] == "+" else "disable"
                draft.add("cpu", "feature", policy=policy, name=flag[1:])
        if self.is_on_part(cpu, "hidden"):
            draft.put("features/kvm/hidden", state="on")

    @staticmethod
    def is_on_part(found: Mapping[str, str], key: str) -> bool:
        return found.get(key) in ("1", "on", "yes")

    def _memory(self, vcpus: int, memory: int) -> None:
        draft, options = self.draft, self.options
        if size := options.get("hugepages"):
            mib = "1024" if size == "any" and memory % 1024 == 0 else "2" if size == "any" else size
            pages = draft.put("memoryBacking/hugepages")
            etree.SubElement(pages, "page", size=mib, unit="MiB")
        if options.get("allow-ksm") == "0":
            draft.put("memoryBacking/nosharepages")
        draft.balloon(options.get("balloon") != "0")
        if not self.is_on("numa"):
            return
        nodes = [parts(options[f"numa{n}"]) for n in range(8) if f"numa{n}" in options]
        for number, node in enumerate(nodes):
            draft.add(
                "cpu/numa",
                "cell",
                id=number,
                cpus=node.get("cpus", "").replace(";", ","),
                memory=node.get("memory", str(memory // len(nodes))),
                unit="MiB",
            )
            if host := node.get("hostnodes"):
                policy = {"bind": "strict"}.get(node.get("policy", ""), node.get("policy", ""))
                draft.add(
                    "numatune",
                    "memnode",
                    cellid=number,
                    mode=policy or "preferred",
                    nodeset=host.replace(";", ","),
                )

    def _devices(self, vcpus: int) -> None:
        draft, options = self.draft, self.options
        model = _CONTROLLERS.get(options.get("scsihw", "lsi"), "virtio-scsi")
        is_single = options.get("scsihw") == "virtio-scsi-single"
        number = 0
        for key, value in options.items():
            if drive := _DRIVE.fullmatch(key):
                found = parts(value, "file")
                if found.get("media") == "cdrom" or "cloudinit" in found.get("file", ""):
                    draft.left_out(f"{key} ({found.get('file', '')})", "a CD or cloud-init's disk")
                    continue
                if drive[1] == "scsi" and (is_single or number == 0):
                    controller = draft.add(
                        "devices", "controller", type="scsi", index=number, model=model
                    )
                    number += 1
                    if is_single and self.is_on_part(found, "iothread"):
                        etree.SubElement(controller, "driver", iothread=str(draft.iothread()))
                self._disk(key, drive[1], found, number - 1)
            elif re.fullmatch(r"net\d+", key):
                self._card(value)
            elif re.fullmatch(r"numa\d+|unused\d+", key) or key in _SILENT:
                continue
            elif key in ("cpuunits", "cpulimit"):
                draft.left_out(f"{key} {value}", _SHARES)
            else:
                draft.left_out(key)  # a value may be a password
        if parts(options.get("agent", "0"), "enabled").get("enabled") in ("1", "on"):
            draft.agent()

    def _disk(self, key: str, bus: str, found: Mapping[str, str], controller: int) -> None:
        draft = self.draft
        volume = found.get("file") or found.get("volume") or ""
        path, kind = place(volume, found.get("format"))
        disk = draft.disk(
            key,
            bus,
            path,
            kind,
            was=f"volume {volume[:100]}",
            cache=found.get("cache", "none"),
            io=found.get("aio") or "io_uring",
            discard="unmap" if found.get("discard") == "on" else "ignore",
            queues=found.get("queues") if bus == "virtio" else None,
            iothread=draft.iothread()
            if bus == "virtio" and self.is_on_part(found, "iothread")
            else None,
        )
        if bus == "scsi":
            etree.SubElement(
                disk,
                "address",
                type="drive",
                controller=str(controller),
                bus="0",
                target="0",
                unit=str(0 if self.options.get("scsihw") == "virtio-scsi-single" else key[4:]),
            )
        if self.is_on_part(found, "ro"):
            etree.SubElement(disk, "readonly")

    def _card(self, value: str) -> None:
        model, _, mac = value.split(",")[0].partition("=")
        found = parts(value)
        queues = found.get("queues", "0")
        self.draft.card(
            found.get("model", model),
            found.get("macaddr", mac) or None,
            bridge=found.get("bridge", ""),
            queues=int(queues) if re.fullmatch(r"\d{1,3}", queues) else 0,
        )


def place(volume: str, kind: str | None = None) -> tuple[str | None, str | None]:
    """Return the path of a volume on a node of a default installation, and its format; None for
    other storages."""
    if volume.startswith("/"):
        return volume, kind or ("qcow2" if volume.endswith(".qcow2") else "raw")
    match = _VOLUME.fullmatch(volume)
    if match is None or match[1] not in _FOLDERS or ".." in match[2]:
        return None, None
    path = _FOLDERS[match[1]].format(match[2])
    return path, "qcow2" if path.endswith(".qcow2") else "raw"


# Read the command line that `qm showcmd` prints, as the options that made it.


def _of_command(text: str, what: str) -> dict[str, str]:
    draft = Draft(what, "")
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise draft.fail(f"not a command as 'qm showcmd --pretty' prints it: {error}") from error
    pairs = list(_pairs(words[1:]))
    options: dict[str, str] = {}
    drives: dict[str, dict[str, str]] = {}
    for option, value in pairs:
        found = parts(value, "") if not value.startswith("{") else {}
        match option:
            case "name":
                options["name"] = value.split(",")[0]
            case "m":
                options["memory"] = found.get("size", found.get("", "512"))
            case "smp":
                options["sockets"] = found.get("sockets", "1")
                options["cores"] = found.get("cores", found.get("", "1"))
            case "cpu":
                options |= _cpu_option(value)
            case "machine":
                options["machine"] = found.get("type", found.get("", "pc"))
            case "drive":
                drives[found.get("id", "")] = found
            case "blockdev":
                _blockdev(draft, value, drives)
            case "netdev":
                drives[found.get("id", "")] = found
            case "device":
                _device(options, drives, found)
            case "object" if found.get("") == "memory-backend-file":
                options["hugepages"] = "1024" if "1048576" in found.get("mem-path", "") else "2"
                options["numa"] = "1"
            case _:
                continue
    options.setdefault("balloon", "0")
    return options


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    for number, word in enumerate(words):
        if word.startswith("-") and number + 1 < len(words):
            following = words[number + 1]
            yield word.lstrip("-"), "" if following.startswith("-") else following


def _cpu_option(value: str) -> dict[str, str]:
    model, *flags = value.split(",")
    named = [
        flag for flag in flags if flag[:1] in "+-" and not flag[1:].startswith(("kvm_", "hv_"))
    ]
    found = {"cpu": model + (f",flags={';'.join(named)}" if named else "")}
    return found | ({"ostype": "win10"} if any(f.startswith("hv_") for f in flags) else {})


def _blockdev(draft: Draft, value: str, drives: dict[str, dict[str, str]]) -> None:
    try:
        node = json.loads(value)
        throttle = node.get("file", {}) if node.get("driver") == "throttle" else node
        inner = throttle.get("file", {}) if isinstance(throttle, dict) else {}
        name = str(node.get("node-name", ""))
        cache = inner.get("cache", {})
        drives[name] = {
            "file": str(inner.get("filename", "")),
            "format": str(throttle.get("driver", "raw")),
            "aio": str(inner.get("aio", "")),
            "cache": "none" if cache.get("direct") else "writeback",
            "discard": "on" if inner.get("discard") == "unmap" else "ignore",
        }
    except (ValueError, AttributeError, RecursionError) as error:
        raise draft.fail(f"-blockdev is not as Proxmox VE writes it: {error}") from error


def _device(
    options: dict[str, str], drives: Mapping[str, Mapping[str, str]], found: Mapping[str, str]
) -> None:
    kind, named = found.get("", ""), found.get("id", "")
    if kind.startswith("virtio-scsi"):
        single = named.startswith("virtioscsi")
        options["scsihw"] = "virtio-scsi-single" if single else "virtio-scsi-pci"
        if "iothread" in found and single:
            options[f"scsi{named.removeprefix('virtioscsi')}"] = "iothread=1"
    elif _DRIVE.fullmatch(named) and kind.endswith(("-hd", "-blk-pci")):
        drive = drives.get(found.get("drive", ""), {})
        keys = ("file", "format", "cache", "aio", "discard")
        value = [f"{key}={drive[key]}" for key in keys if drive.get(key)]
        iothread = ["iothread=1"] if "iothread" in found or options.get(named) else []
        options[named] = ",".join([*value, *iothread])
    elif kind.startswith(("virtio-net", "e1000")):
        netdev = drives.get(found.get("netdev", ""), {})
        model = "virtio" if kind.startswith("virtio") else kind
        queues = f",queues={netdev['queues']}" if "queues" in netdev else ""
        options[named] = f"{model}={found.get('mac', '')}{queues}"
    elif kind.startswith("virtio-balloon"):
        options["balloon"] = "1"
    elif kind.startswith(("vfio-pci", "usb-host")):
        options[named or "hostpci0"] = kind
