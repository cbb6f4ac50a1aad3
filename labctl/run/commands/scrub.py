"""Remove from texts what identifies a host, but keep their form for parsers.

Pure. The same text gets the same placeholder everywhere, so that related texts stay related.
"""

from __future__ import annotations

import html
import ipaddress
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from labctl.base.json import parse_json

# List patterns of texts whose form alone identifies a host. Pure.
#
# Each pattern's group "value" is removed. Forms that a measured number could have are not listed.


MAC, SERIAL, PATH, SECRET, URL, TOKEN = "mac", "serial", "path", "secret", "url-host", "token"

MAC_FORM: Final = re.compile(
    rb"(?<![0-9A-Za-z])[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5,19}(?![0-9A-Za-z]|:[0-9A-Fa-f])"
    rb"|(?<![0-9A-Za-z-])[0-9A-Fa-f]{2}(?:-[0-9A-Fa-f]{2}){5}(?![0-9A-Za-z-])"
)
_VIRTUAL = rb"(?:525400|00163[eE]|005056|000[cC]29|080027|00155[dD])"
"""First three bytes of MAC addresses of QEMU, Xen, VMware, VirtualBox and Hyper-V."""

_PUBLIC = re.compile(
    rb"(?:[\w-]+\.)*(?:kernel|qemu|libvirt|debian|freedesktop|perfetto|man7|arxiv|doi|sourceforge"
    rb"|fedoraproject|opensuse|gnu|python|rust-lang|linux-kvm|readthedocs|cpan)\.(?:org|io|net|dev)"
    rb"|(?:[\w-]+\.)*(?:ubuntu|redhat|intel|amd|arm|openssl|brendangregg)\.com"
    rb"|[\w.-]+\.invalid|localhost|127(?:\.[0-9]{1,3}){3}|\[::1\]"
)
"""Hosts that sources and messages everywhere name."""

_PART = rb"[^\s\\/:*?\"<>|,;'()\[\]{}]{1,100}"
"""Part of a Windows path, without blanks."""


_NO_SECRETS = frozenset((b"true", b"false", b"null", b"none", b"yes", b"no", b"on", b"off"))


@dataclass(frozen=True, slots=True)
class Form:
    kind: str
    pattern: re.Pattern[bytes]
    stays: Callable[[bytes], bool] = lambda value: False
    """Return whether a value of such a form identifies nothing."""


def _is_public(rest: bytes) -> bool:
    """Return whether the text after "://" begins with a public host, and names no user."""
    host = re.match(rb"\[[^\]]*\]|[^/:?#]*", rest)
    return host is None or not host.group() or _PUBLIC.fullmatch(host.group()) is not None


def _is_regular(value: bytes) -> bool:
    """Return whether a hexadecimal number has few different digits: a mask, not a disk's name."""
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
"""Patterns to search before names, because what surrounds a name is removed with it."""

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
    """Yield a MAC address as written without colons."""
    digits = mac.replace(":", "").replace("-", "")
    if len(digits) == 12:
        yield digits
        yield "-".join(digits[i : i + 2] for i in range(0, 12, 2))
        yield ".".join(digits[i : i + 4] for i in range(0, 12, 4))


# Decide which paths identify a host: all but those that every Linux system has. Pure.


PATH_FORM: Final = re.compile(
    rb"(?:(?<=://)|(?<![\w/.<~*+-]))/[^\s\"'<>&;,|()\[\]{}\\:*?!$`#/]{1,255}"
    rb"(?:/[^\s\"'<>&;,|()\[\]{}\\:*?!$`#/]{1,255}){1,60}/?"
)
"""Two parts at least: '/s' is a unit, '/machine' a cgroup."""

QUOTED_PATH: Final = re.compile(rb"(['\"])(/[^'\"\n<>]{2,4000})\1")
"""Path in quotes, which may contain blanks."""

_KEPT = re.compile(
    rb"/(?:usr|bin|sbin|lib|lib32|lib64|libx32|etc|proc|sys|boot|nix/store|machine|redacted"
    rb"|[a-z]+\.(?:slice|scope))(?:/.*)?"
    rb"|/run(?!/user/|/media/|/mount/)(?:/.*)?"
    rb"|/var/lib/labctl(?:/.*)?"
    rb"|/dev/(?:[a-z]+[0-9]*(?:n[0-9]+(?:p[0-9]+)?)?|(?:shm|hugepages|net|cpu|pts|vfio|input|fd)/.*)"
    rb"|/autogroup-[0-9]+(?: nice -?[0-9]+)?"
    rb"|/home/?|/root/?|/",
    re.DOTALL,
)

_SUFFIX = re.compile(
    rb"\.(?:ya?ml|xml|qcow2|raw|img|iso|json|csv|txt|log|sock|html|sh|py|conf|fd)(?=$|[\s'\"])"
)


def is_commonplace(path: bytes) -> bool:
    """Return whether every system may have a file there, so that its path does not identify this
    one."""
    return _KEPT.fullmatch(path) is not None


def suffix(path: bytes) -> bytes:
    """Return the suffix ('.qcow2' etc.), by which tools and readers know the type; b"" for
    others."""
    found = _SUFFIX.search(path, max(0, len(path) - 8))
    return found.group() if found else b""


UUID, ADDRESS, KEY, MAIL = "uuid", "address", "key", "mail"
BOOT_VALUE, NAME = "boot-value", "name"
_IN_PLACE = frozenset({BOOT_VALUE, NAME, SECRET})
"""Patterns of values that may be words elsewhere, such as 'dhcp' and 'vm': removed only in these
places.
"""

_UUID = re.compile(
    rb"(?<![0-9A-Fa-f-])[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}(?![0-9A-Fa-f-])"
)
_IPV4 = re.compile(rb"(?<![0-9A-Za-z.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![0-9A-Za-z]|\.[0-9])")
_IPV6 = re.compile(
    rb"(?<![0-9A-Za-z.])(?<!::)(?:[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){7}"
    rb"|[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){0,6}::(?:[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){0,5})?)"
    rb"(?![0-9A-Za-z]|:[0-9A-Fa-f:]|\.[0-9])"
)
_KEY = re.compile(
    rb"-----BEGIN [A-Z0-9 ]{3,40}-----.{0,20000}?-----END [A-Z0-9 ]{3,40}-----"
    rb"|(?:ssh|ecdsa|sk-ssh|sk-ecdsa)-[a-z0-9@.-]{3,40} AAAA[0-9A-Za-z+/=]{20,2000}"
    rb"(?: [^\s\"'\\<]{1,100})?"
    rb"|SHA256:[0-9A-Za-z+/]{43}",
    re.DOTALL,
)
_MAIL = re.compile(
    rb"(?<![0-9A-Za-z._%+@-])[0-9A-Za-z_%+-][0-9A-Za-z._%+-]{0,63}@"
    rb"(?![0-9A-Za-z.-]{0,99}\.(?:service|socket|slice|scope|target|device|mount|timer|path)\b)"
    rb"[0-9A-Za-z-]{1,63}(?:\.[0-9A-Za-z-]{1,63}){1,9}"
)
"""Address for mail or `ssh`: a user and a host. A systemd unit has an '@', too."""
KERNEL_VALUE: Final = re.compile(
    rb"(?<![0-9A-Za-z._-])(?:PARTUUID|PARTLABEL|LABEL|(?:systemd\.)?hostname|nfsroot|netroot|ip"
    rb"|ifname|rd\.[a-z]+\.(?:lv|vg|uuid|name)|cryptdevice|nameserver)=([^\s\"'<>\\&,;]{2,200})"
)
"""Values of a kernel's command line (bootparam(7), dracut.cmdline(7)) that name a host or disk."""

_ASKED = (
    rb"(?:host_?name|nodename|run-by|user_?name|logname|machine[-_]?id"
    rb"|(?:[a-z]{1,20}[-_ ])?(?:serial(?:[-_ ]number)?|asset[-_ ]tag))"
)
_SAID = (
    re.compile(
        rb"^(?P<head>[ \t\"'#-]*" + _ASKED + rb"[\"']?[ \t]*[:=][ \t]*[\"']?)"
        rb"(?P<value>[^\s\"',\\<>{}\[\]]{1,100})",
        re.IGNORECASE | re.MULTILINE,
    ),
    re.compile(rb"(?P<head>\bLinux )(?P<value>[\w.-]{1,100})(?= [0-9]+\.[0-9]+\.[0-9]\S* #[0-9])"),
    re.compile(rb"^(?P<head>)(?P<value>[\w.-]{1,100})(?= login: )", re.MULTILINE),
)
"""Names of hosts and users as tools print them (uname(1), stress-ng, perf, getty(8))."""
_SAID_IN_JSON = re.compile(
    rb'(?P<head>"' + _ASKED + rb'"\s*:\s*")(?P<value>[^"\\]{1,200})(?=")', re.IGNORECASE
)
_SECRET_IN_JSON = re.compile(
    rb'(?P<head>"[^"\\]{0,60}(?:password|passwd|passphrase|secret|token|api[-_]?key)"\s*:\s*")'
    rb'(?P<value>[^"\\]{1,2000})(?=")',
    re.IGNORECASE,
)

_EDGE = rb"[0-9A-Za-z]"
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_WHOLE_WORDS_BELOW = 6
"""Length below which a text must be a whole word, because it would be found within others."""


class Scrubber:
    """Remove identifying texts. `known`: text to its kind, as `host.facts.read_identity` returns
    them. `paths`: folder of this host to its placeholder; it may hold a user's name. `vocabulary`:
    words that readers of the texts rely on, so that no name is removed from within them.

    `thorough`: also remove what its form alone identifies: every path but those that every system
    has, addresses, keys, serial numbers.
    """

    def __init__(
        self,
        known: Mapping[str, str],
        paths: Mapping[str, str],
        *,
        thorough: bool = False,
        vocabulary: Collection[str] = (),
    ) -> None:
        self._paths = {
            form: new.encode()
            for old, new in paths.items()
            if old != new
            for form in _forms_of(old)
        }
        self._kinds = {
            form.lower(): kind for text, kind in known.items() for form in _forms_of(text)
        }
        self._vocabulary = [word.lower().encode() for word in vocabulary]
        self._known = _any_of(self._kinds, self._vocabulary)
        self._folders = _folders(self._paths)
        self._thorough = thorough
        self._placeholders: dict[tuple[str, bytes], bytes] = {}
        self._made: set[bytes] = set()
        self.taken_out: Counter[str] = Counter()
        """Number of finds by kind."""

    @property
    def originals(self) -> dict[bytes, str]:
        """Map every text that no file may still hold to its kind; texts removed only in certain
        places are not included."""
        found = {text: kind for kind, text in self._placeholders if kind not in _IN_PLACE}
        return {**found, **self._kinds, **dict.fromkeys(self._paths, PATH)}

    def scrubbed(self, data: bytes, *, is_json: bool = False) -> bytes:
        """Return the data without what identifies the host. `is_json`: only within strings, with
        their escapes decoded; numbers stay numbers."""
        if not is_json:
            return self._text(data)
        data = _STRING.sub(self._string, data)
        if not self._thorough:
            return data
        data = _SAID_IN_JSON.sub(self._said, data)
        return _SECRET_IN_JSON.sub(self._secret, data)

    def _string(self, found: re.Match[bytes]) -> bytes:
        token = found.group()
        text = token[1:-1]
        if b"\\" in text:
            try:
                text = json.loads(token).encode(errors="surrogatepass")
            except ValueError:
                return self._text(token)
        is_path = text.startswith(b"/") and not re.search(rb"\n|: ", text)
        scrubbed = self._foreign_path(text) if self._thorough and is_path else text
        scrubbed = self._text(scrubbed)
        if scrubbed == text:
            return token
        return json.dumps(scrubbed.decode(errors="surrogatepass"), ensure_ascii=False).encode(
            errors="surrogatepass"
        )

    def _text(self, data: bytes) -> bytes:
        if self._folders is not None:
            data = self._folders.sub(lambda found: self._path(found.group()), data)
        if self._thorough:
            for form in EARLY:
                data = form.pattern.sub(self._replacer(form), data)
            data = _KEY.sub(lambda found: self._numbered(KEY, found.group()), data)
            data = _MAIL.sub(lambda found: self._numbered(MAIL, found.group()), data)
            data = QUOTED_PATH.sub(self._quoted, data)
            data = PATH_FORM.sub(lambda found: self._foreign_path(found.group()), data)
        if self._known is not None:
            data = self._known.sub(lambda found: self._named(found.group()), data)
        data = _UUID.sub(lambda found: self._numbered(UUID, found.group()), data)
        data = MAC_FORM.sub(lambda found: self._numbered(MAC, found.group()), data)
        return self._by_form(data) if self._thorough else data

    def _by_form(self, data: bytes) -> bytes:
        for said in _SAID:
            data = said.sub(self._said, data)
        for form in LATE:
            data = form.pattern.sub(self._replacer(form), data)
        data = KERNEL_VALUE.sub(self._kernel_value, data)
        for written in (_IPV4, _IPV6):
            data = written.sub(lambda found: self._address(found.group()), data)
        return data

    def _replacer(self, form: Form) -> Callable[[re.Match[bytes]], bytes]:
        def replaced(found: re.Match[bytes]) -> bytes:
            value, start = found["value"], found.start()
            if form.stays(value) or value in self._made:
                return found.group()
            head = found.group()[: found.start("value") - start]
            return (
                head
                + self._numbered(form.kind, value)
                + found.group()[found.end("value") - start :]
            )

        return replaced

    def _quoted(self, found: re.Match[bytes]) -> bytes:
        mark, path = found.group(1), found.group(2)
        return mark + self._foreign_path(path) + mark

    def _foreign_path(self, text: bytes) -> bytes:
        if is_commonplace(text) or text in self._made:
            return text
        return self._numbered(PATH, text)

    def _said(self, found: re.Match[bytes]) -> bytes:
        value = found["value"]
        is_made = any(made in value for made in self._made) or value.startswith(b"labctl")
        return found.group() if is_made else found["head"] + self._numbered(NAME, value)

    def _secret(self, found: re.Match[bytes]) -> bytes:
        return found["head"] + self._numbered(SECRET, found["value"])

    def _kernel_value(self, found: re.Match[bytes]) -> bytes:
        value = found.group(1)
        if value in self._made or value.startswith((b"/redacted/", b"UUID=")):
            return found.group()
        name = found.group()[: found.start(1) - found.start()]
        return name + self._numbered(BOOT_VALUE, value)

    def _address(self, text: bytes) -> bytes:
        try:
            address = ipaddress.ip_address(text.decode())
        except ValueError:
            return text
        if address.is_loopback or address.is_unspecified:
            return text
        return self._numbered(ADDRESS, text)

    def _path(self, text: bytes) -> bytes:
        self.taken_out[PATH] += 1
        return self._paths[text]

    def _named(self, text: bytes) -> bytes:
        if text in self._made:
            return text
        return self._numbered(self._kinds[text.lower()], text)

    def _numbered(self, kind: str, text: bytes) -> bytes:
        if text in self._made:
            return text  # in a text that was scrubbed before
        self.taken_out[kind] += 1
        key = (kind, text if kind in (PATH, KEY) else text.lower())
        if key not in self._placeholders:
            number = 1 + sum(other == kind for other, _ in self._placeholders)
            made = _placeholder(kind, number, text)
            self._placeholders[key] = made
            self._made.add(made)
        return self._placeholders[key]

    def left_in(self, data: bytes, *, is_json: bool = False) -> Iterator[tuple[str, bytes]]:
        """Return kind and text of each original that is in `data` in any form, found without the
        patterns that removed them."""
        looked = _readings_of(data, is_json=is_json)
        for text, kind in self.originals.items():
            if text in self._made:
                continue
            wanted = text.lower()
            for one in looked:
                if wanted in one and self._stands_alone(wanted, kind, one):
                    yield kind, text
                    break

    def _stands_alone(self, text: bytes, kind: str, data: bytes) -> bool:
        """Return whether a text that could be part of another stands alone."""
        if kind == PATH:
            alone = rb"(?<![\w./~<-])" + re.escape(text) + rb"(?![\w-])"
        elif kind == KEY or not _is_word(text, self._vocabulary):
            return True
        else:
            alone = _as_word(text)
        return re.search(alone, data) is not None


def is_json(name: str, data: bytes) -> bool:
    """Return whether a file's strings are those of JSON."""
    if name.endswith(".jsonl"):
        return True
    if not name.endswith(".json"):
        return False
    try:
        parse_json(data)
    except ValueError:
        return False
    return True


def _forms_of(text: str) -> Iterator[bytes]:
    """Yield a text as it may be written in XML, in a URL and by itself."""
    yield from {
        form.encode(errors="surrogateescape")
        for form in (text, html.escape(text), html.escape(text).replace("&#x27;", "&apos;"))
    } | {quote(text).encode()}


def _readings_of(data: bytes, *, is_json: bool) -> list[bytes]:
    """Return the possible decodings of the bytes, in lower case."""
    if is_json:
        strings = (_decoded(found.group()) for found in _STRING.finditer(data))
        return [b"\n".join(strings).lower()]
    text = data.decode(errors="surrogateescape")
    unescaped = html.unescape(text).encode(errors="surrogateescape") if "&" in text else data
    return [unescaped.lower()] if unescaped == data else [data.lower(), unescaped.lower()]


def _decoded(token: bytes) -> bytes:
    if b"\\" not in token:
        return token[1:-1]
    try:
        return str(json.loads(token)).encode(errors="surrogatepass")
    except ValueError:
        return token


def _is_of_digits(text: bytes) -> bool:
    return re.fullmatch(rb"[0-9A-Fa-f.:-]+", text) is not None


def _as_word(text: bytes) -> bytes:
    return b"(?<!" + _EDGE + b")" + re.escape(text) + b"(?!" + _EDGE + b")"


def _placeholder(kind: str, number: int, text: bytes) -> bytes:
    if kind == UUID:
        return f"00000000-0000-4000-8000-{number:012x}".encode()
    if kind == MAIL:
        return f"mail-{number}@redacted.invalid".encode()
    if kind == MAC:
        # Keep its form: separators stay where they are.
        digits = iter(f"52540000{number & 0xFFFF:04x}".ljust(len(text), "0").encode())
        return bytes(mark if mark in b":.-" else next(digits) for mark in text)
    if kind == URL:
        return f"url-host-{number}.invalid".encode()
    if kind == PATH and not text.startswith(b"/"):
        return rf"C:\redacted\path-{number}".encode() + suffix(text)
    if kind == PATH:
        return f"/redacted/path-{number}".encode() + suffix(text)
    if kind == ADDRESS and _IPV4.fullmatch(text):
        # The block for benchmarks (RFC 2544) has more addresses than those for documentation.
        return f"198.18.{number >> 8 & 255}.{number & 255}".encode()
    if kind == ADDRESS and _IPV6.fullmatch(text):
        return f"2001:db8::{number:x}".encode()
    return f"{kind}-{number}".encode()


def _any_of(
    texts: Mapping[bytes, object], vocabulary: Collection[bytes]
) -> re.Pattern[bytes] | None:
    """Return a pattern for any of the texts: as a whole word, a longer one within a word as
    well."""
    if not texts:
        return None
    longest_first = sorted(texts, key=len, reverse=True)
    either = b"|".join(_pattern(text, vocabulary) for text in longest_first)
    return re.compile(b"(?:" + either + b")", re.IGNORECASE)


def _pattern(text: bytes, vocabulary: Collection[bytes]) -> bytes:
    return _as_word(text) if _is_word(text, vocabulary) else re.escape(text)


def _is_word(text: bytes, vocabulary: Collection[bytes]) -> bool:
    """Return whether it may only be found as a whole word."""
    is_common = len(text) < _WHOLE_WORDS_BELOW or _is_of_digits(text)
    return is_common or any(text in word for word in vocabulary)


def _folders(paths: Mapping[bytes, object]) -> re.Pattern[bytes] | None:
    if not paths:
        return None
    longest_first = sorted(paths, key=len, reverse=True)
    either = b"|".join(re.escape(text) for text in longest_first)
    return re.compile(b"(?<!" + _EDGE + b")(?:" + either + b")(?!" + _EDGE + b")")
