"""Write a rollout in the words of a platform: Proxmox VE, KubeVirt, OpenStack, libvirt's tools.

`templates/platforms/` has a table for each: a tuning's key to the platform's field, or the reason
why the platform has none. docs/platforms.md shows them.
"""

from __future__ import annotations

import re
import shlex
import string
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import yaml
from pydantic import Field

from labctl.base.paths import shipped_data
from labctl.base.placement import refuse
from labctl.base.wording import printable
from labctl.base.yaml import FileModel, load
from labctl.rollout.advice import Advice, Advised
from labctl.rollout.files import UNNAMED, Names, rendered, script
from labctl.rollout.settings import Setting
from labctl.rollout.steps import Machine, Step

MEASURING = ("handicap_percent", "emulator", "kernel", "initrd", "image", "workload")
"""Keys of a tuning that only a measurement has."""


class Entry(FileModel):
    """Map keys of a tuning. `say`: kind of line to its text or texts; `values`: the values that the
    platform has, in its words; `only`: a pattern of them; `words`: further values that it has;
    `needs`: other keys that must be set as
    well; `by`: the key whose line says this one too; `already`: why nothing has to be set;
    `cannot`: why the platform has no field, or not for other values."""

    say: dict[str, str | list[str]] = Field(default_factory=dict)
    values: dict[str, str] = Field(default_factory=dict)
    only: str = ""
    words: dict[str, str] = Field(default_factory=dict)
    needs: list[str] = Field(default_factory=list)
    by: str = ""
    already: str = ""
    cannot: str = ""
    since: str = ""
    docs: str = ""

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Return the kind and text of each line."""
        return [
            (kind, text)
            for kind, texts in self.say.items()
            for text in ([texts] if isinstance(texts, str) else texts)
        ]


class Platform(FileModel):
    """Hold a platform's table. `since`: the version that has every field without its own;
    `checked`: the versions whose sources were read; `docs`: pages by the entries' names for them;
    `keys`: entries by the keys, of which one may end in `*` and one have `=VALUE`."""

    title: str
    since: str
    checked: str
    docs: dict[str, str]
    keys: dict[str, Entry]

    def entry(self, key: str, value: str = "") -> Entry | None:
        """Return the entry of a key: for that value, else for all, else for its group."""
        named = {name: entry for names, entry in self.keys.items() for name in names.split()}
        for name in (f"{key}={value}", key):
            if name in named:
                return named[name]
        return next((one for name, one in named.items() if fnmatchcase(key, name)), None)

    def order(self, key: str) -> int:
        """Return the place of a key in the table."""
        for number, names in enumerate(self.keys):
            if any(fnmatchcase(key, name.partition("=")[0]) for name in names.split()):
                return number
        return len(self.keys)


@dataclass(frozen=True, slots=True)
class Left:
    """Name a setting that a platform cannot express, and why."""

    key: str
    value: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Hold a tuning in a platform's words. `files`: text by name; `already`: settings that need
    nothing; `left`: those that it cannot express."""

    platform: str
    tuning: str
    files: Mapping[str, str]
    already: tuple[str, ...]
    left: tuple[Left, ...]
    notes: tuple[str, ...]


@cache
def platform(name: str) -> Platform:
    """Return the table of a platform: proxmox, kubevirt, openstack, virsh, virt-xml or cockpit."""
    return load(Platform, shipped_data() / "templates" / "platforms" / f"{name}.yaml")


def written(advice: Advice, advised: Advised, names: Names, name: str) -> Written:
    """Return a tuning in the words of a platform. Raises UsageError if the tuning must not be
    applied, as for scripts."""
    refuse(advised.tuning, advised.rollout.refused)
    said = in_words(platform(name), advised.rollout.settings, names)
    files = _FILES[name](said.lines, advice, advised, names)
    for machine, file in ((Machine.HOST, "node.sh"), (Machine.GUEST, "in-guest.sh")):
        outside = [
            step
            for step in advised.rollout.at(machine)
            if not any(command.edits_domain for command in step.commands)
        ]
        if outside:
            only = replace(advised, rollout=replace(advised.rollout, steps=tuple(outside)))
            files[file] = script(advice, only, names, machine)
    return Written(
        platform=name,
        tuning=advised.tuning,
        files=files,
        already=tuple(said.already),
        left=tuple(said.left),
        notes=advised.rollout.notes,
    )


def written_json(found: Written) -> dict[str, object]:
    """Return plain JSON values; docs/advice.md has the keys."""
    return {
        "schema": 1,
        "platform": found.platform,
        "tuning": found.tuning,
        "files": dict(found.files),
        "already": list(found.already),
        "left": [{"key": one.key, "value": one.value, "why": one.why} for one in found.left],
        "notes": list(found.notes),
    }


@dataclass(frozen=True, slots=True)
class Said:
    """Hold lines by kind, the settings that need none, and those that the platform lacks."""

    lines: dict[str, list[str]]
    already: list[str]
    left: list[Left]


def in_words(table: Platform, settings: Sequence[Setting], names: Names) -> Said:
    """Return a tuning's settings as lines of a platform, in the order of its table."""
    said = Said({}, [], [])
    given = {setting.key: setting for setting in settings}
    refused: set[str] = set()
    for setting in sorted(settings, key=lambda one: table.order(one.key)):
        entry = table.entry(setting.key, _one_value(setting))
        why = _why_not(entry, setting, given.keys() - refused, table)
        if why or entry is None:
            refused.add(setting.key)
            said.left.append(Left(setting.key, setting.value, why))
        elif entry.already:
            said.already.append(f"{setting.key}: {entry.already}")
        elif not (entry.by or (entry.values and not entry.values[setting.value])):
            for kind, text in entry.lines:
                said.lines.setdefault(kind, []).extend(_filled(text, entry, setting, given, names))
    return said


def _one_value(setting: Setting) -> str:
    """Return the value by which an entry is chosen: of named values the one that all have."""
    values = set(setting.items.values())
    return values.pop() if len(values) == 1 else setting.value


def _why_not(entry: Entry | None, setting: Setting, given: set[str], table: Platform) -> str:
    """Return why the platform cannot express a setting; "" if it can."""
    if entry is None:
        return "no field is known"
    is_accepted = (not entry.values or setting.value in entry.values) and (
        not entry.only or re.fullmatch(entry.only, setting.value)
    )
    is_accepted = is_accepted and entry.words.items() <= setting.words.items()
    if not is_accepted or not (entry.say or entry.by or entry.already):
        return entry.cannot or "no such value"
    if lacking := [key for key in (*entry.needs, *filter(None, [entry.by])) if key not in given]:
        return f"needs {' and '.join(lacking)}, which {table.title} does not get from this tuning"
    return ""


def _filled(
    text: str, entry: Entry, setting: Setting, given: Mapping[str, Setting], names: Names
) -> Iterator[str]:
    quoted = shlex.quote
    value = entry.values.get(setting.value, setting.value)
    others = {key.replace(".", "_"): one.value for key, one in given.items() if "." not in key}
    known = {
        "priority": "0",
        **others,
        **setting.words,
        "value": value,
        "name": setting.key.rpartition(".")[2],
        "count": str(len(setting.items)),
        "domain": quoted(names.domain or UNNAMED),
        "disk": names.disk or "DISK",
    }
    fields = {name for _, name, _, _ in string.Formatter().parse(text) if name}
    if fields & {"index", "item"}:
        for index, item in setting.items.items():
            yield text.format_map({**known, "index": index, "item": item})
    else:
        yield text.format_map(known)


# Write the files of each platform from its lines.


Lines = Mapping[str, Sequence[str]]

_SHELL = {
    "option": 'qm set "$vm" --{} {}',
    "drive": 'put "$disk" {}',
    "card": 'put "$card" {}',
    "cpu": "first cpu {}",
    "model": "model {}",
    "flag": "flag {}",
}
"""Line of Proxmox's script by kind."""


def _proxmox(lines: Lines, advice: Advice, advised: Advised, names: Names) -> dict[str, str]:
    calls: dict[str, None] = {}
    for kind, pattern in _SHELL.items():
        for text in lines.get(kind, ()):
            words = text.partition("=")[::2] if kind == "option" else (text,)
            calls[pattern.format(*(f'"{word}"' if "$" in word else word for word in words))] = None
    files = {}
    hook = f"labctl-{advised.tuning}.sh" if "hook" in lines else ""
    vm = names.domain if (names.domain or "").isdecimal() else None
    if calls or hook:
        files["proxmox.sh"] = rendered(
            "proxmox.sh.j2",
            tuning=advised.tuning,
            run=advice.run,
            vm=vm,
            disk=names.disk or "scsi0",
            vcpus=advised.rollout.vcpus,
            lines=list(calls),
            used={call.split()[0] for call in calls},
            hook=hook,
        )
    if hook:
        # Pins before policies: a policy of its own must not run on the CPUs of all.
        ordered = sorted(lines["hook"], key=lambda line: "taskset" not in line)
        files[hook] = rendered("proxmox-hook.sh.j2", tuning=advised.tuning, lines=ordered)
    return files


def _kubevirt(lines: Lines, advice: Advice, advised: Advised, names: Names) -> dict[str, str]:
    files = {}
    if "vm" in lines:
        spec = {"template": {"spec": tree(lines["vm"])}}
        name = names.domain or UNNAMED
        files["vm.yaml"] = (
            f"# Fields for 'kubectl edit vm {printable(name)}'. Join lists by name: a patch would "
            "replace them.\n"
            + _yaml(
                {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine"}
                | {"metadata": {"name": name}, "spec": spec}
            )
        )
    if "kubelet" in lines:
        kubelet = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
        files["kubelet.yaml"] = (
            "# For the kubelet of each node; drain it and remove cpu_manager_state first.\n"
            "# It does not start with a static policy unless CPUs are reserved for the host "
            "(reservedSystemCPUs).\n" + _yaml(kubelet | tree(lines["kubelet"]))
        )
    if "kubevirt" in lines:
        gates = {"developerConfiguration": {"featureGates": list(dict.fromkeys(lines["kubevirt"]))}}
        kubevirt = {"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt"}
        files["kubevirt.yaml"] = (
            "# Fields for 'kubectl edit kubevirt -n kubevirt'. Add to the list: a patch would "
            "replace it.\n"
        ) + _yaml(
            kubevirt
            | {"metadata": {"name": "kubevirt", "namespace": "kubevirt"}}
            | {"spec": {"configuration": gates}}
        )
    if nodes := list(_node_objects(advised.tuning, advised.rollout.at(Machine.HOST))):
        files["nodes.yaml"] = "---\n".join(map(_yaml, nodes))
    return files


def _openstack(lines: Lines, advice: Advice, advised: Advised, names: Names) -> dict[str, str]:
    files = {}
    commands = []
    for kind, variable in (("flavor", "flavor"), ("image", "image")):
        if texts := lines.get(kind):
            words = "".join(
                f" \\\n  --property {shlex.quote(text)}" for text in dict.fromkeys(texts)
            )
            commands.append(f'openstack {kind} set "${variable}"{words}\n')
    if commands:
        given = "".join(
            f'{kind}=${{{number}:?"give the name of the {kind}"}}\n'
            for number, kind in enumerate((k for k in ("flavor", "image") if lines.get(k)), start=1)
        )
        files["openstack.sh"] = "#!/bin/sh\nset -eu\n" + given + "".join(commands)
    sections: dict[str, dict[str, str]] = {}
    for text in lines.get("nova.conf", ()):
        place, _, value = text.partition("=")
        section, _, key = place.partition(".")
        options = sections.setdefault(section, {})
        options[key] = (
            f"{options[key]},{value}" if key.endswith("flags") and key in options else value
        )
    if sections:
        pins = "cpu_dedicated_set" in sections.get("compute", {})
        more = (
            "# cpu_dedicated_set: these CPUs and those of other pinned instances.\n" if pins else ""
        )
        files["nova.conf"] = f"# Of the compute nodes; restart nova-compute.\n{more}" + "".join(
            f"[{section}]\n" + "".join(f"{key} = {value}\n" for key, value in options.items())
            for section, options in sections.items()
        )
    return files


def _virsh(lines: Lines, advice: Advice, advised: Advised, names: Names) -> dict[str, str]:
    files = {}
    domain = shlex.quote(names.domain or UNNAMED)
    if commands := lines.get("command"):
        files["virsh.sh"] = "#!/bin/sh\nset -eu\n" + "".join(
            f"{line}\n" for line in (*_as_many_vcpus(domain, advised.rollout.vcpus), *commands)
        )
    if "edit" in lines:
        files["domain.xml"] = (
            f"<!-- Elements for 'virsh edit {printable(domain)}' -->\n{advised.rollout.fragment}"
        )
    return files


def _as_many_vcpus(domain: str, vcpus: int | None) -> Iterator[str]:
    if vcpus is not None:
        yield f'[ "$(virsh vcpucount {domain} --maximum --config)" = {vcpus} ]'


def _virt_xml(lines: Lines, advice: Advice, advised: Advised, names: Names) -> dict[str, str]:
    edits = [
        step
        for step in advised.rollout.at(Machine.HOST)
        if any(command.edits_domain for command in step.commands)
    ]
    if not edits:
        return {}
    only = replace(advised, rollout=replace(advised.rollout, steps=tuple(edits)))
    return {"virt-xml.sh": script(advice, only, names, Machine.HOST)}


def _cockpit(lines: Lines, advice: Advice, advised: Advised, names: Names) -> dict[str, str]:
    clicks = lines.get("click", ())
    text = "".join(f"{number}. {line}\n" for number, line in enumerate(clicks, start=1))
    return {"cockpit.txt": text} if text else {}


_FILES = {
    "proxmox": _proxmox,
    "kubevirt": _kubevirt,
    "openstack": _openstack,
    "virsh": _virsh,
    "virt-xml": _virt_xml,
    "cockpit": _cockpit,
}


def tree(lines: Sequence[str]) -> dict[str, object]:
    """Return nested mappings of lines `a.b[NAME].c: VALUE`; `b[NAME]` is a list's entry of that
    name."""
    root: dict[str, object] = {}
    for line in lines:
        path, _, value = line.partition(": ")
        node = root
        *steps, last = path.split(".")
        for step in steps:
            name, _, entry = step.rstrip("]").partition("[")
            if not entry:
                node = node.setdefault(name, {})  # type: ignore[assignment]
                continue
            entries: list[dict[str, object]] = node.setdefault(name, [])  # type: ignore[assignment]
            found = [one for one in entries if one["name"] == entry]
            if not found:
                found = [{"name": entry}]
                entries += found
            node = found[0]
        node[last] = yaml.safe_load(value)
    return root


def _yaml(content: object) -> str:
    text: str = yaml.safe_dump(content, sort_keys=False, width=4096)
    return text


_WORDS = re.compile(
    r'^GRUB_CMDLINE_LINUX_DEFAULT="\$GRUB_CMDLINE_LINUX_DEFAULT (.*)"$', re.MULTILINE
)
_ROLE = {"machineconfiguration.openshift.io/role": "worker"}


def _node_objects(tuning: str, steps: Sequence[Step]) -> Iterator[dict[str, object]]:
    """Yield the objects of OpenShift that make a tuning's host settings on the worker nodes."""
    name = f"99-labctl-{re.sub('[^a-z0-9.-]', '-', tuning.lower())}"
    words: list[str] = []
    files: list[dict[str, object]] = []
    units: list[dict[str, object]] = []
    profile = ""
    for step in steps:
        for command in step.commands:
            if command.argv[:2] == ("tuned-adm", "profile"):
                yield _tuned_object(name, command.argv[2], profile)
        if step.file is None:
            continue
        if step.file.path.startswith("/etc/tuned/"):
            profile = step.file.text
            continue
        if match := _WORDS.search(step.file.text):
            words += match[1].split()
        elif step.file.path.startswith("/etc/systemd/system/"):
            unit = Path(step.file.path).name
            units.append({"name": unit, "enabled": True, "contents": step.file.text})
        else:
            source = b64encode(step.file.text.encode()).decode()
            files.append(
                {
                    "path": step.file.path,
                    "mode": 0o644,
                    "contents": {"source": f"data:text/plain;base64,{source}"},
                }
            )
    if words or files or units:
        config = {
            "ignition": {"version": "3.2.0"},
            **({"storage": {"files": files}} if files else {}),
            **({"systemd": {"units": units}} if units else {}),
        }
        yield {
            "apiVersion": "machineconfiguration.openshift.io/v1",
            "kind": "MachineConfig",
            "metadata": {"name": name, "labels": _ROLE},
            "spec": {**({"kernelArguments": words} if words else {}), "config": config},
        }


def _tuned_object(name: str, profile: str, text: str) -> dict[str, object]:
    """Return the object that switches to a profile. `text`: its content if it is labctl's own."""
    data = text or f"[main]\nsummary=labctl\ninclude={profile}\n"
    return {
        "apiVersion": "tuned.openshift.io/v1",
        "kind": "Tuned",
        "metadata": {"name": name, "namespace": "openshift-cluster-node-tuning-operator"},
        "spec": {
            "profile": [{"name": name, "data": data}],
            "recommend": [{"machineConfigLabels": _ROLE, "priority": 20, "profile": name}],
        },
    }
