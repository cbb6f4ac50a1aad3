"""List what shows by its form alone that it tells one host from others: patterns. Pure.

Each pattern's group "value" is what goes. A form that a measured number could have is not in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

MAC, SERIAL, PATH, SECRET, URL, TOKEN = "mac", "serial", "path", "secret", "url-host", "token"

MAC_FORM: Final = re.compile(
    rb"(?<![0-9A-Za-z])[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5,19}(?![0-9A-Za-z]|:[0-9A-Fa-f])"
    rb"|(?<![0-9A-Za-z-])[0-9A-Fa-f]{2}(?:-[0-9A-Fa-f]{2}){5}(?![0-9A-Za-z-])"
)
_VIRTUAL = rb"(?:525400|00163[eE]|005056|000[cC]29|080027|00155[dD])"
"""The first three bytes that QEMU, Xen, VMware, VirtualBox and Hyper-V give their cards."""

_PUBLIC = re.compile(
    rb"(?:[\w-]+\.)*(?:kernel|qemu|libvirt|debian|freedesktop|perfetto|man7|arxiv|doi|sourceforge"
    rb"|fedoraproject|opensuse|gnu|python|rust-lang|linux-kvm|readthedocs|cpan)\.(?:org|io|net|dev)"
    rb"|(?:[\w-]+\.)*(?:ubuntu|redhat|intel|amd|arm|openssl|brendangregg)\.com"
    rb"|[\w.-]+\.invalid|localhost|127(?:\.[0-9]{1,3}){3}|\[::1\]"
)
"""Hosts that everybody's sources and messages name."""

_PART = rb"[^\s\\/:*?\"<>|,;'()\[\]{}]{1,100}"
"""Part of a Windows path, without blanks."""


_NO_SECRETS = frozenset((b"true", b"false", b"null", b"none", b"yes", b"no", b"on", b"off"))


@dataclass(frozen=True, slots=True)
class Form:
    kind: str
    pattern: re.Pattern[bytes]
    stays: Callable[[bytes], bool] = lambda value: False
    """True if a value that looks so identifies nothing."""


def _is_public(rest: bytes) -> bool:
    """Return whether what follows "://" begins with a host that is everybody's, and names no
    user."""
    host = re.match(rb"\[[^\]]*\]|[^/:?#]*", rest)
    return host is None or not host.group() or _PUBLIC.fullmatch(host.group()) is not None


def _is_regular(value: bytes) -> bool:
    """Return whether a hexadecimal number has few digits that differ: a mask, no name of a disk."""
    return len(set(value.lower())) < 7


EARLY: Final = (
    Form(
        URL,
        re.compile(
            rb"\b[A-Za-z][A-Za-z0-9+.-]{1,20}://"
            rb"(?P<value>[^\s\"'<>\\(){}|,;/][^\s\"'<>\\(){}|,;]{0,2000})"
        ),
        _is_public,
    ),
    Form(
        SECRET,
        re.compile(
            rb"(?i)(?<![A-Za-z])(?:[a-z0-9]{1,30}[_.-]){0,4}(?:password|passwd|passphrase|secret"
            rb"|token|api[-_]?key|access[-_]?key|auth[-_]?key|credential)[\"']?"
            rb"(?:[ \t]*=[ \t]*|[ \t]*:[ \t]+|:(?=[\"']))[\"']?"
            rb"(?P<value>[^\s\"'<>\\&,;|{(\[][^\s\"'<>\\&,;|]{0,400})"
        ),
        lambda value: value.lower() in _NO_SECRETS,
    ),
    Form(
        SECRET,
        re.compile(
            rb"(?i)(?<![A-Za-z0-9-])--?(?:password|passwd|passphrase|secret|token|api-?key) +"
            rb"(?P<value>[^\s\"'<>\\&;|-][^\s\"'<>\\&;|]{0,400})"
        ),
    ),
    Form(
        TOKEN,
        re.compile(
            rb"(?<![0-9A-Za-z_-])(?P<value>gh[pousr]_[0-9A-Za-z]{20,255}|glpat-[0-9A-Za-z_-]{15,100}"
            rb"|AKIA[0-9A-Z]{16}|xox[abprs]-[0-9A-Za-z-]{10,200}"
            rb"|eyJ[0-9A-Za-z_-]{8,2000}\.eyJ[0-9A-Za-z_-]{8,4000}\.[0-9A-Za-z_-]{8,2000})"
        ),
    ),
    Form(
        TOKEN,
        re.compile(
            rb"(?i)\b(?:authorization: *(?:bearer|basic)|bearer) +"
            rb"(?P<value>[0-9A-Za-z+/._~-]{16,4000}=*)"
        ),
    ),
    Form(
        PATH,
        re.compile(
            rb"(?<![0-9A-Za-z_])(?P<value>[A-Za-z]:"
            rb"(?:\\{1,2}" + _PART + rb"(?: " + _PART + rb"){0,5}(?=\\)){1,30}\\{1,2}" + _PART
            + rb"|(?<![^\s\"'=(,;<>\[])\\{2,4}[\w.-]{2,63}"
            rb"(?:\\{1,2}" + _PART + rb"(?: " + _PART + rb"){0,5}(?=\\)){0,30}\\{1,2}" + _PART
            + rb"|[A-Z]:\\{1,2}[\w-]{2,100}\.\w{2,5}\b)"
        ),
    ),
)  # fmt: skip
"""Looked for before names are: what lies around a name goes with it."""

LATE: Final = (
    Form(
        "machine-id",
        re.compile(rb"(?<![0-9A-Za-z])(?P<value>(?=[0-9]{0,31}[a-f])[0-9a-f]{32})(?![0-9A-Za-z])"),
    ),
    Form(
        SERIAL,
        re.compile(
            rb"(?<![0-9A-Za-z])(?P<value>(?:eui|naa|wwn|nvme)[.-](?:0x)?[0-9A-Fa-f]{10,64})"
        ),
    ),
    Form(
        SERIAL,
        re.compile(rb"(?<![0-9A-Za-z])(?P<value>iqn\.[0-9]{4}-[0-9]{2}\.[0-9A-Za-z.:_-]{3,220})"),
    ),
    Form(
        SERIAL,
        re.compile(
            rb"(?<![0-9A-Za-z])(?P<value>0x(?:5[0-9A-Fa-f]{15}|6[0-9A-Fa-f]{31})|500(?=[0-9]{0,12}[A-Fa-f])[0-9A-Fa-f]{13}"
            rb"|6(?=[0-9A-Fa-f]{0,30}[A-Fa-f])[0-9A-Fa-f]{31})(?![0-9A-Za-z])"
        ),
        _is_regular,
    ),
    Form(
        MAC,
        re.compile(
            rb"(?<![0-9A-Za-z.])(?P<value>(?=[0-9.]{0,13}[A-Fa-f]|5254\.00)"
            rb"[0-9A-Fa-f]{4}(?:\.[0-9A-Fa-f]{4}){2})(?![0-9A-Za-z]|\.[0-9])"
        ),
    ),
    Form(
        MAC,
        re.compile(
            rb"(?<![0-9A-Za-z])(?:enx|wlx|(?=" + _VIRTUAL + rb")(?=[0-9]{0,11}[A-Fa-f]))"
            rb"(?P<value>[0-9A-Fa-f]{12})(?![0-9A-Za-z])"
        ),
    ),
)  # fmt: skip


def other_macs(mac: str) -> Iterator[str]:
    """Yield a MAC address as it is written without colons."""
    digits = mac.replace(":", "").replace("-", "")
    if len(digits) == 12:
        yield digits
        yield "-".join(digits[i : i + 2] for i in range(0, 12, 2))
        yield ".".join(digits[i : i + 4] for i in range(0, 12, 4))
