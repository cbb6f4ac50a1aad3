"""Read a VM of Proxmox VE: its configuration (qm.conf(5)), or what `qm showcmd --pretty` prints."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

from lxml import etree

from labctl.domain.foreign.draft import Draft

_OPTION = re.compile(r"([a-z][a-z0-9_-]*): ?(.*)")
_KNOWN = re.compile(
    r"^(?:cores|sockets|memory|ostype|scsihw|machine|bootdisk|vmgenid|smbios1|(?:scsi|virtio|sata|ide"
    r"|net)\d+): \S",
    re.MULTILINE,
)
_COMMAND = re.compile(
    r"(?:/usr/bin/taskset[\s\\]+--cpu-list[\s\\]+--all-tasks[\s\\]+"
    r"'?(?P<affinity>[\d,-]+)'?[\s\\]+)?"
    r"/usr/bin/(?:kvm|qemu-system-(?P<arch>\w+))\s"
)
_DRIVE = re.compile(r"(scsi|virtio|sata|ide)(\d+)")
_VOLUME = re.compile(r"([A-Za-z][\w.-]*):([\w./+-]+)")
_FOLDERS: Final = {
    "local": "/var/lib/vz/images/{}",
    "local-lvm": "/dev/pve/{}",
    "local-zfs": "/dev/zvol/rpool/data/{}",
}
"""Storages of a default installation: where their volumes are on the node."""

_V2 = "+popcnt;+pni;+sse4.1;+sse4.2;+ssse3"
_V3 = f"+aes;{_V2};+avx;+avx2;+bmi1;+bmi2;+f16c;+fma;+abm;+movbe;+xsave"
_MODELS: Final = {
    "kvm64": ("kvm64", "+lahf_lm;+sep"),
    "x86-64-v2": ("qemu64", _V2),
    "x86-64-v2-AES": ("qemu64", f"+aes;{_V2}"),
    "x86-64-v3": ("qemu64", _V3),
    "x86-64-v4": (
        "qemu64",
        f"{_V3};+avx512f;+avx512bw;+avx512cd;+avx512dq;+avx512vl",
    ),
}
"""Models of Proxmox VE: QEMU's model and flags that it makes of each."""
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
_LIMIT = re.compile(r"(?:mbps|iops|bps|throttling\.)[\w.-]*|rate")
"""Limits of a disk or a card."""
_PARTS: Final = {
    "disk": frozenset(
        ("file", "volume", "media", "format", "cache", "aio", "discard", "detect_zeroes")
        + ("queues", "iothread", "ro", "ssd", "serial")
        + ("size", "backup", "replicate", "shared", "if", "id", "readonly")
    ),
    "card": frozenset(
        ("model", "macaddr", "bridge", "queues", "firewall", "virtio", "e1000", "e1000e")
        + ("e1000-82540em", "e1000-82544gc", "e1000-82545em", "i82551", "i82557b", "i82559er")
        + ("ne2k_isa", "ne2k_pci", "pcnet", "rtl8139", "vmxnet3")
    ),
    "cpu": frozenset(("cputype", "flags", "hidden")),
    "machine": frozenset(("type",)),
}
"""Parts of an option that are read, or that a copy's guest does not see."""
_SEEN = frozenset(
    ("pci-bridge", "usb-tablet", "usb-kbd", "VGA", "piix3-usb-uhci", "vmgenid", "virtserialport")
    + ("virtio-serial", "virtio-serial-pci", "pcie-root-port", "usb-ehci", "nec-usb-xhci")
    + ("qemu-xhci", "ahci", "lsi", "pc-dimm")
)
"""Devices of every command, or of those that are named themselves."""


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

    def parts(self, key: str, kind: str, first: str, default: str = "") -> dict[str, str]:
        """Return the parts of an option, and note those that the copy does not have."""
        found = parts(self.options.get(key, default), first)
        rest = {k: v for k, v in found.items() if k not in _PARTS[kind] and k != first}
        limits = [k for k in rest if _LIMIT.fullmatch(k)]
        for names, why in ((limits, _SHARES), ([k for k in rest if k not in limits], "")):
            if names:
                said = ",".join(f"{name}={rest[name]}" for name in names)
                self.draft.left_out(f"{key} {said[:100]}", why)
        return found

    def read(self) -> None:
        draft, options = self.draft, self.options
        sockets, cores = self.number("sockets", 1), self.number("cores", 1)
        memory = self.number("memory", 512)
        draft.size(sockets * cores, memory)
        if (vcpus := self.number("vcpus", 0)) and vcpus < sockets * cores:
            draft.put("vcpu", current=vcpus)
        if not self.is_on("kvm", "1"):
            draft.root.set("type", "qemu")
        machine = self.parts("machine", "machine", "type", "pc").get("type", "pc")
        draft.version(machine)
        draft.system(
            "q35" if "q35" in machine else "pc",
            uefi=options.get("bios") == "ovmf",
            arch=options.get("arch", "x86_64"),
        )
        if self.is_on("acpi", "1"):
            draft.put("features/acpi")
        draft.put("features/apic")
        self._cpu(sockets, cores)
        self._memory(sockets, cores, memory)
        if affinity := options.get("affinity"):
            draft.put("vcpu", cpuset=affinity)
        is_windows = options.get("ostype", "").startswith("w")
        draft.put(
            "clock", offset="localtime" if self.is_on("localtime", str(+is_windows)) else "utc"
        )
        if is_windows:
            draft.windows()
        self._devices()

    def _cpu(self, sockets: int, cores: int) -> None:
        draft = self.draft
        cpu = self.parts("cpu", "cpu", "cputype", "kvm64")
        model, flags = cpu.get("cputype", "kvm64"), ""
        if model in ("host", "max"):
            draft.cpu("host-passthrough" if model == "host" else "maximum")
        else:
            if model.startswith("custom-"):
                draft.notes.append(
                    f"cpu {model}: host-model stands in for the cluster's own model; "
                    "'qm showcmd ID --pretty' resolves it"
                )
                draft.cpu("host-model")
            else:
                model, flags = _MODELS.get(model, (model, ""))
                draft.cpu("custom", model)
        draft.topology(sockets, cores, 1)
        for flag in filter(None, f"{flags};{cpu.get('flags', '')}".split(";")):
            if flag[1:] == "nested-virt":
                draft.left_out(f"cpu {flag}", "vmx or svm, by the node's vendor")
            elif flag[1:] in ("hv-tlbflush", "hv-evmcs"):
                draft.hyperv(flag[4:], "on" if flag[0] == "+" else "off")
            else:
                policy = "require" if flag[0] == "+" else "disable"
                draft.add("cpu", "feature", policy=policy, name=flag[1:])
        if self.is_on_part(cpu, "hidden"):
            draft.put("features/kvm/hidden", state="on")

    @staticmethod
    def is_on_part(found: Mapping[str, str], key: str) -> bool:
        return found.get(key) in ("1", "on", "yes")

    def _memory(self, sockets: int, cores: int, memory: int) -> None:
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
        # Without nodes of its own it has one for each socket (PVE::QemuServer::Memory::config).
        nodes = nodes or [{"cpus": f"{n * cores}-{(n + 1) * cores - 1}"} for n in range(sockets)]
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

    def _devices(self) -> None:
        draft, options = self.draft, self.options
        boot = parts(options.get("boot", ""), "legacy").get("order") or options.get("bootdisk", "")
        first = [key for key in boot.split(";") if _DRIVE.fullmatch(key)]
        model = _CONTROLLERS.get(options.get("scsihw", "lsi"), "virtio-scsi")
        is_single = options.get("scsihw") == "virtio-scsi-single"
        number = 0
        for key, value in options.items():
            if drive := _DRIVE.fullmatch(key):
                file = parts(value, "file").get("file", "none")
                if "media=cdrom" in value.split(",") or "cloudinit" in file:
                    draft.left_out(f"{key} ({file})", "a CD or cloud-init's disk")
                    continue
                found = self.parts(key, "disk", "file")
                if drive[1] == "scsi" and (is_single or number == 0):
                    controller = draft.add(
                        "devices", "controller", type="scsi", index=number, model=model
                    )
                    number += 1
                    if is_single:
                        self._controller(controller, found)
                made = self._disk(key, drive[1], found, number - 1)
                if key in first:
                    etree.SubElement(made, "boot", order=str(first.index(key) + 1))
            elif re.fullmatch(r"net\d+", key):
                self._card(self.parts(key, "card", "model"), value)
            elif re.fullmatch(r"numa\d+|unused\d+", key) or key in _SILENT:
                continue
            elif key in ("cpuunits", "cpulimit"):
                draft.left_out(f"{key} {value}", _SHARES)
            else:
                draft.left_out(key)  # a value may be a password
        if parts(options.get("agent", "0"), "enabled").get("enabled") in ("1", "on"):
            draft.agent()

    def _controller(self, controller: etree._Element, found: Mapping[str, str]) -> None:
        """Give a disk's own controller its iothread and its queues."""
        driver = {"queues": found["queues"]} if found.get("queues") else {}
        if self.is_on_part(found, "iothread"):
            driver["iothread"] = str(self.draft.iothread())
        if driver:
            etree.SubElement(controller, "driver", driver)

    def _disk(
        self, key: str, bus: str, found: Mapping[str, str], controller: int
    ) -> etree._Element:
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
            detect_zeroes=_zeroes(found),
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
        if self.is_on_part(found, "ssd"):
            disk.find("target").set("rotation_rate", "1")  # type: ignore[union-attr]
        if serial := found.get("serial"):
            etree.SubElement(disk, "serial").text = unquote(serial)
        if self.is_on_part(found, "ro"):
            etree.SubElement(disk, "readonly")
        return disk

    def _card(self, found: Mapping[str, str], value: str) -> None:
        model, _, mac = value.split(",")[0].partition("=")
        queues = found.get("queues", "0")
        self.draft.card(
            found.get("model", model),
            found.get("macaddr", mac) or None,
            bridge=found.get("bridge", ""),
            queues=int(queues) if re.fullmatch(r"\d{1,3}", queues) else 0,
        )


def _zeroes(found: Mapping[str, str]) -> str:
    """Return what QEMU does with zeroes that are written, as PVE::QemuServer::Drive has it."""
    if found.get("detect_zeroes") in ("0", "off", "no"):
        return "off"
    return "unmap" if found.get("discard") == "on" else "on"


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


_OF_PVE = frozenset(
    ("id", "no-shutdown", "chardev", "mon", "pidfile", "daemonize", "nodefaults", "boot", "vnc")
    + ("global", "iscsi", "smbios", "readconfig", "nographic", "vga", "snapshot", "tpmdev")
)
"""Options of every command, or whose device is named itself."""


def _of_command(text: str, what: str) -> dict[str, str]:
    draft = Draft(what, "")
    match = _COMMAND.match(text)
    assert match is not None  # is_command has seen it
    try:
        words = shlex.split(text[match.end() :].replace("\\\n", " "))
    except ValueError as error:
        raise draft.fail(f"not a command as 'qm showcmd --pretty' prints it: {error}") from error
    options: dict[str, str] = {key: word for key, word in match.groupdict().items() if word}
    drives: dict[str, dict[str, str]] = {}
    memory: dict[str, dict[str, str]] = {}
    boots: dict[str, int] = {}
    for option, value in _pairs(words):
        found = parts(value, "") if not value.startswith("{") else {}
        match option:
            case "name":
                options["name"] = value.split(",")[0]
            case "m":
                options["memory"] = found.get("size", found.get("", "512"))
            case "smp":
                options["sockets"] = found.get("sockets", "1")
                options["cores"] = found.get("cores", found.get("", "1"))
                options["vcpus"] = found.get("", "0")
            case "cpu":
                options |= _cpu_option(value)
            case "machine":
                _machine(options, found)
            case "rtc":
                options["localtime"] = str(+(found.get("base") == "localtime"))
            case "drive" if found.get("if") == "pflash":
                options["bios"] = "ovmf"
            case "drive" | "netdev":
                drives[found.get("id", "")] = found
            case "blockdev":
                _blockdev(draft, value, drives)
            case "numa" if "nodeid" in found:
                _node(options, memory, value, found)
            case "object":
                _object(draft, options, memory, value, found)
            case "device" if found.get("") == "pc-dimm":
                _dimm(draft, options, memory, found)
            case "device":
                _device(options, drives, found)
                if (place := found.get("bootindex", "")).isdecimal():
                    boots[found.get("id", "")] = int(place)
            case _ if option not in _OF_PVE:
                options[f"-{option}"] = ""
            case _:
                continue
    options.setdefault("balloon", "0")
    return options | {"boot": f"order={';'.join(sorted(boots, key=boots.__getitem__))}"}


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    for number, word in enumerate(words):
        if word.startswith("-") and number + 1 < len(words):
            following = words[number + 1]
            yield word.lstrip("-"), "" if following.startswith("-") else following


def _machine(options: dict[str, str], found: Mapping[str, str]) -> None:
    kind = found.get("type", found.get("", "pc"))
    options["machine"] = kind
    if "pflash0" in found:
        options["bios"] = "ovmf"
    if found.get("accel") == "tcg":
        options["kvm"] = "0"
    if kind.startswith("virt"):
        options["arch"] = "aarch64"


def _cpu_option(value: str) -> dict[str, str]:
    model, *flags = value.split(",")
    hyperv = any(flag.startswith("hv_") for flag in flags)
    named = [flag for flag in flags if flag[:1] in "+-" and flag[1:5] != "kvm_"]
    others = [flag for flag in flags if "=" in flag and not flag.startswith(("hv_", "vendor="))]
    found = {"cpu": ",".join([model, *([f"flags={';'.join(named)}"] if named else []), *others])}
    return found | ({"ostype": "win10"} if hyperv else {})


def _mib(draft: Draft, size: str) -> int:
    if match := re.fullmatch(r"(\d{1,9})M?", size):
        return int(match[1])
    raise draft.fail(f"size: expected MiB as Proxmox VE writes them, got {size[:60]!r}")


def _object(
    draft: Draft,
    options: dict[str, str],
    memory: dict[str, dict[str, str]],
    value: str,
    found: Mapping[str, str],
) -> None:
    kind, named = found.get("", ""), found.get("id", "")
    if kind.startswith("memory-backend-"):
        if kind == "memory-backend-file":
            options["hugepages"] = "1024" if "1048576" in found.get("mem-path", "") else "2"
        memory[named] = {"memory": str(_mib(draft, found.get("size", "")))} | {
            key.replace("-", ""): found[key] for key in ("host-nodes", "policy") if key in found
        }
    elif value.startswith("{"):
        throttled = _parsed(draft, "object", value)
        if throttled.get("limits"):
            options[f"-object {throttled.get('id')}"] = ""
    elif kind not in ("iothread", "rng-random"):
        options[f"-object {kind}"] = ""


def _node(
    options: dict[str, str],
    memory: Mapping[str, dict[str, str]],
    value: str,
    found: Mapping[str, str],
) -> None:
    cpus = ";".join(part[5:] for part in value.split(",") if part.startswith("cpus="))
    words = {"cpus": cpus, **memory.get(found.get("memdev", ""), {})}
    options["numa"] = "1"
    options[f"numa{found['nodeid']}"] = ",".join(f"{key}={word}" for key, word in words.items())


def _dimm(
    draft: Draft,
    options: dict[str, str],
    memory: Mapping[str, dict[str, str]],
    found: Mapping[str, str],
) -> None:
    """Add a plugged module to the memory and to its node: the copy starts with all of it."""
    size = int(memory.get(found.get("memdev", ""), {}).get("memory", "0"))
    options["memory"] = str(_mib(draft, options.get("memory", "0")) + size)
    key = f"numa{found.get('node')}"
    if node := parts(options.get(key, "")):
        node["memory"] = str(_mib(draft, node.get("memory", "0")) + size)
        options[key] = ",".join(f"{name}={word}" for name, word in node.items() if name)


def _parsed(draft: Draft, option: str, value: str) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise draft.fail(f"-{option} is not as Proxmox VE writes it: {error}") from error
    if not isinstance(found, dict):
        raise draft.fail(f"-{option} is not as Proxmox VE writes it")
    return found


def _blockdev(draft: Draft, value: str, drives: dict[str, dict[str, str]]) -> None:
    node = _parsed(draft, "blockdev", value)
    throttle = node.get("file", {}) if node.get("driver") == "throttle" else node
    inner = throttle.get("file", {}) if isinstance(throttle, dict) else {}
    cache = inner.get("cache", {}) if isinstance(inner, dict) else {}
    if not isinstance(cache, dict) or not isinstance(inner, dict):
        raise draft.fail("-blockdev is not as Proxmox VE writes it")
    drives[str(node.get("node-name", ""))] = {
        "file": str(inner.get("filename", "")),
        "format": str(throttle.get("driver", "raw")),
        "aio": str(inner.get("aio", "")),
        "cache": "none" if cache.get("direct") else "writeback",
        "discard": "on" if inner.get("discard") == "unmap" else "ignore",
        "detect-zeroes": str(inner.get("detect-zeroes", "")),
    }


_TAKEN = ("file", "format", "cache", "aio", "discard", "media")


def _device(
    options: dict[str, str], drives: Mapping[str, Mapping[str, str]], found: Mapping[str, str]
) -> None:
    kind, named = found.get("", ""), found.get("id", "")
    if kind.startswith("virtio-scsi"):
        single = named.startswith("virtioscsi")
        options["scsihw"] = "virtio-scsi-single" if single else "virtio-scsi-pci"
        many = [f"queues={found['num_queues']}"] if "num_queues" in found else []
        if (own := ["iothread=1"] * ("iothread" in found) + many) and single:
            options[f"scsi{named.removeprefix('virtioscsi')}"] = ",".join(own)
    elif kind in _CONTROLLERS:
        options["scsihw"] = kind
    elif _DRIVE.fullmatch(named) and kind.endswith(
        ("-hd", "-cd", "-blk-pci", "scsi-block", "scsi-generic")
    ):
        drive = drives.get(found.get("drive", ""), {})
        value = [f"{key}={drive[key]}" for key in _TAKEN if drive.get(key)]
        value += ["detect_zeroes=0"] * (drive.get("detect-zeroes") == "off")
        value += ["media=cdrom"] * kind.endswith("-cd")
        value += ["ssd=1"] * (found.get("rotation_rate") == "1")
        value += [f"{key}={word}" for key, word in drive.items() if _LIMIT.fullmatch(key)]
        value += [f"serial={found['serial']}"] if "serial" in found else []
        value += ["iothread=1"] * ("iothread" in found)
        options[named] = ",".join([*value, *filter(None, [options.get(named)])])
    elif kind.startswith(("virtio-net", "e1000", "rtl8139", "vmxnet3")):
        netdev = drives.get(found.get("netdev", ""), {})
        model = "virtio" if kind.startswith("virtio") else kind
        queues = f",queues={netdev['queues']}" if "queues" in netdev else ""
        options[named] = f"{model}={found.get('mac', '')}{queues}"
    elif kind.startswith("virtio-balloon"):
        options["balloon"] = "1"
    elif kind.startswith(("vfio-pci", "usb-host")):
        options[named or "hostpci0"] = kind
    elif kind not in _SEEN:
        options[f"-device {kind}"] = ""
