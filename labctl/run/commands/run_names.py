"""Find names that only a run itself knows: of its host, its users, their VMs and networks. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from labctl.base.jsontext import parse_json
from labctl.host.identity import (
    GROUP,
    HOST_NAME,
    INTERFACE,
    SERIAL,
    USER,
    is_no_name,
    is_usual_interface,
)
from labctl.run.commands.scrub import BOOT_VALUE, KERNEL_VALUE, is_json
from labctl.run.commands.scrub_forms import MAC, MAC_FORM, other_macs

VM_NAME = "vm-name"

_NAMES = (
    (rb"<(?:name|title)>\s*([^<>\n]{3,200}?)\s*</", VM_NAME),
    (rb"<description>\s*([^<>]{3,2000}?)\s*</", VM_NAME),
    (rb"<(?:serial|wwn)>\s*([^<>\n]{3,200}?)\s*</", SERIAL),
    (rb"<source\b[^<>]{0,400}?\b(?:bridge|network|pool|volume|portgroup|name)="
     rb"(?:'([^'<>]{3,200})'|\"([^\"<>]{3,200})\")", VM_NAME),
    (rb"<(?:host|auth)\b[^<>]{0,400}?\b(?:name|username)="
     rb"(?:'([^'<>]{3,200})'|\"([^\"<>]{3,200})\")", HOST_NAME),
    (rb"<entry name=['\"](?:serial|asset|sku|location)['\"]>\s*([^<>\n]{3,200}?)\s*</", SERIAL),
    (rb"(?im)^[\s\"'#-]*(?:hostname|nodename|host_name)[\"']?\s*[:=]\s*[\"']?([\w.-]{3,100})",
     HOST_NAME),
    (rb"(?m)(?:^|\n)([A-Za-z][\w.-]{2,62}) login: ", HOST_NAME),
    (rb"Hostname set to <([\w.-]{3,100})>", HOST_NAME),
    (rb"\bLinux ([A-Za-z][\w.-]{2,62}) [0-9]+\.[0-9]+\.[0-9]+\S* #[0-9]", HOST_NAME),
    (rb"\bqemu\+\w+://(?:[^@/\s\"']{1,64}@)?([\w.-]{3,100})", HOST_NAME),
    (rb"\bqemu\+\w+://([\w.-]{3,64})@", USER),
    (rb"(?im)^[\s\"'-]*(?:run-by|user_?name|logname)[\"']?\s*[:=]\s*[\"']?([A-Za-z][\w.-]{2,62})"
     rb"[\"']?,?\s*$", USER),
    (rb"/(?:home|Users)/([^/\s\"'<>&;,:|()\[\]{}\\]{3,64})", USER),
    (rb"--domain[= ]'?([\w.+-]{3,100})", VM_NAME),
    (rb"(?m)^[ \t]*[0-9]{1,4}: ([\w.-]{3,15})(?:@[\w.-]+)?: <[A-Z]", INTERFACE),
    (rb"(?m)^[ \t]*(?!cpu[0-9])([a-z][\w.-]{2,14}):(?:[ \t]+[0-9]+){16}[ \t]*$", INTERFACE),
    (rb"/(?:class|virtual)/net/([\w.-]{3,15})", INTERFACE),
    (rb"<target\b[^<>]{0,400}?\bdev=['\"]([\w.-]{3,15})['\"]", INTERFACE),
    (rb"(?m)^([a-z_][\w.-]{2,31}):x:[1-9][0-9]{3,8}:", USER),
    (rb"(?m)^[a-z_][\w.-]{2,31}:x:[1-9][0-9]{3,8}:[0-9]+:([^:,\n]{3,60})", USER),
    (rb"\bmaster ([\w.-]{3,15}) state ", INTERFACE),
    (rb"\b(?:br|bridge|ifname)=['\"]?([A-Za-z][\w.-]{2,14})(?![\w.-])", INTERFACE),
    (rb"<source\b[^<>]{0,400}?\bdev=['\"]([\w.-]{3,15})['\"]", INTERFACE),
    (rb"\b[ug]id=[1-9][0-9]{3,8}\(([\w.-]{3,64})\)", USER),
    (rb"(?:\bgroups=|(?<=\)),)[1-9][0-9]{3,8}\(([\w.-]{3,64})\)", GROUP),
)  # fmt: skip
"""Names that only the run itself knows: of its host, where another made the copy, and of VMs."""

_COMPILED = (
    *((re.compile(pattern), kind) for pattern, kind in _NAMES),
    (KERNEL_VALUE, BOOT_VALUE),
)
_OWN_NAME = re.compile(
    r"labctl\b.*|[-+]?[0-9.]+|on|off|any|none|both|auto6?|dhcp6?|ibft|default|virbr[0-9]+|user|(?:UUID=|/).*",
    re.DOTALL,
)
"""Names that identify nothing on the host: labctl's guests, numbers, and kernel parameters."""


def names_in(texts: Iterable[tuple[str, bytes]]) -> dict[str, str]:
    """Return names that files of a run, given by name and text, give as such, to their kind."""
    found: dict[str, str] = {}
    for name, text in texts:
        looked = [text]
        if is_json(name, text):
            looked += _nested(text)
        for one in looked:
            for pattern, kind in _COMPILED:
                for match in pattern.finditer(one):
                    value = next(filter(None, match.groups())).decode(errors="replace")
                    if not (is_no_name(value) or _is_usual(value, kind)):
                        found.setdefault(value, kind)
            for mac in set(MAC_FORM.findall(one)):
                found |= dict.fromkeys(other_macs(mac.decode()), MAC)
        if name == "run.json":
            found |= _domain_of(text)
    return found


def _nested(text: bytes) -> Iterator[bytes]:
    """Strings of a JSON text that hold lines themselves: what tools printed."""
    for found in re.finditer(rb'"[^"\\]*(?:\\.[^"\\]*)*"', text, re.DOTALL):
        if b"\\" in found.group():
            try:
                yield str(json.loads(found.group())).encode(errors="surrogatepass")
            except ValueError:
                continue


def _domain_of(run: bytes) -> dict[str, str]:
    """Return the VM's name as `--domain` was given it."""
    try:
        domain = parse_json(run).get("domain")
    except (ValueError, AttributeError):
        return {}
    names = domain.values() if isinstance(domain, dict) else ()
    texts = {name for name in names if isinstance(name, str) and not name.startswith("/")}
    is_digest = re.compile("[0-9a-f]{64}").fullmatch
    return {text: VM_NAME for text in texts if not (is_no_name(text) or is_digest(text))}


_DISK = re.compile("(?:[svhf]d|xvd|nvme)[a-z0-9]*")
"""Names of disks in libvirt's XML that are also names of interfaces."""


def _is_usual(value: str, kind: str) -> bool:
    if kind == INTERFACE and (is_usual_interface(value) or _DISK.fullmatch(value)):
        return True
    return _OWN_NAME.fullmatch(value) is not None
