"""Write what labctl says of the owner's XML: what it takes over, and what it leaves out. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from lxml import etree

from labctl.base.xmldiff import tag_of

_LIMIT = "shares and limits are about its place among the host's guests"
_HOST = "it is the host's"
_WHO = ("global", "emulator", "iothread")

_REASONS = {
    "devices/emulator": "labctl runs this host's own QEMU",
    "devices/audio": "sound leads nowhere",
    "devices/tpm": "its state is the original's: a guest whose disk is sealed to it won't boot",
    "devices/vsock": "its number is the original's",
    "devices/smartcard": _HOST,
    "devices/input": _HOST,
    "devices/pstore": "the guest would write to the file behind it",
    "devices/redirdev": "its device is at a user's display",
    "devices/redirfilter": "its device is at a user's display",
    **dict.fromkeys((f"cputune/{tag}" for tag in ("shares", "period", "quota")), _LIMIT),
    **{f"cputune/{who}_{tag}": _LIMIT for who in _WHO for tag in ("period", "quota")},
    **dict.fromkeys(("blkiotune", "memtune", "cputune/cachetune", "cputune/memorytune"), _LIMIT),
}
"""Elements below the domain to why they are left out. A share is one among the host's own guests, a
cap is no part of the machine, and where the kernel keeps real-time policies out of cpu cgroups
libvirt starts no domain that has one."""

_UNKNOWN = "labctl takes over only what it knows to be part of the machine"

_REPLACED = frozenset(
    ("@id", "genid", "resource", "seclabel", "vcpus", "title", "description", "metadata")
    + ("on_poweroff", "on_reboot", "on_crash", "on_lockfailure")
    + tuple(
        f"devices/disk/{tag}"
        for tag in ("backingStore", "transient", "shareable", "source/seclabel", "source/@index")
    )
    + tuple(
        f"devices/{port}/{tag}"
        for port in ("serial", "parallel", "console", "channel")
        for tag in ("source", "protocol", "log", "@tty")
    )
    + tuple(f"devices/graphics/@{key}" for key in ("port", "tlsPort", "autoport", "listen"))
    + tuple(f"devices/graphics/listen/@{key}" for key in ("address", "network", "socket"))
    + ("devices/rng/backend/text",)
)
"""Nothing is said of them: labctl puts its own in their places, or they are a name, a label, or
what libvirt does when a guest ends."""


def kept_note(root: etree._Element) -> str:
    """Return what of the domain is taken over."""
    devices = root.find("devices")
    count = Counter(map(tag_of, devices if devices is not None else ()))
    parts = [f"<{tag_of(part)}>" for part in root if part.tag not in ("name", "uuid", "devices")]
    parts += [f"<{tag}>" if many == 1 else f"{many} <{tag}>" for tag, many in count.items()]
    return f"this of its XML is taken over: {', '.join(dict.fromkeys(parts))}"


def left_out_notes(left_out: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each reason why something is left out. `left_out`: as Rebuilt has it."""
    reasons: dict[str, list[str]] = {}
    for path in (name.partition("/")[2] for name in left_out):
        if path not in _REPLACED:
            reasons.setdefault(_REASONS.get(path, _UNKNOWN), []).append(path)
    for reason, paths in reasons.items():
        names = [_name(path, is_known=reason != _UNKNOWN) for path in paths]
        verb = "is" if len(names) == 1 else "are"
        yield f"{', '.join(names)} {verb} left out: {reason}"


def _name(path: str, *, is_known: bool) -> str:
    if is_known:
        return f"<{path.rpartition('/')[2]}>"
    owner, _, key = path.rpartition("/")
    tag = owner.rpartition("/")[2] or "domain"
    if key.startswith("@"):
        return f"<{tag} {key[1:]}=…>"
    return f"the text of <{tag}>" if key == "text" else f"<{key}>"
