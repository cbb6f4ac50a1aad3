"""Read the host's package sources and apt options, as far as a guest image needs them, and the
reason why apt refused what a mirror served."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labctl.base import process
from labctl.base.errors import BrokenError
from labctl.base.process import Deadline, ProcessError

_APT = Path("/etc/apt")
_RELEASE = Path("/etc/os-release")

_OPTION = re.compile(
    r"Acquire::(Check-Valid-Until|Check-Date|Retries|ForceIPv[46]|(https?|ftp)::(Proxy.*|Timeout))$"
)
"""Options that decide whether packages are available here at all: apt.conf(5),
apt-transport-http(1).
"""


def sources_of(suite: str, apt: Path = _APT, release: Path = _RELEASE) -> list[str]:
    """Return the host's own Debian sources of a suite, else those of its own release with the suite
    replaced, because mirrors have all releases. Empty on another distribution."""
    if found := host_sources(suite, apt):
        return found
    text = release.read_text(encoding="utf-8") if release.exists() else ""
    own = re.search(r"^VERSION_CODENAME=(\w+)$", text, re.M)
    lines = host_sources(own[1], apt) if own else []
    return [re.sub(rf" {own[1]}(-\w+)? main$", rf" {suite}\1 main", one) for one in lines if own]


def host_sources(suite: str, apt: Path = _APT) -> list[str]:
    """Return the host's own Debian sources of a suite, as lines of sources.list(5).

    Empty when the host has none: it runs another release or distribution.
    """
    lines: list[str] = []
    for path in [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]:
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        # apt reads these two endings and no others.
        if path.suffix == ".list":
            lines += _of_list(text, suite)
        elif path.suffix == ".sources":
            lines += _of_stanzas(text, suite)
    return list(dict.fromkeys(lines))


def host_options(deadline: Deadline) -> list[str]:
    """Return the host's apt options that a download here needs, as lines of apt.conf(5)."""
    return download_options(process.run(["apt-config", "dump"], deadline=deadline).stdout)


def download_options(dump: str) -> list[str]:
    """Return the options in an `apt-config dump` that decide whether and how packages are
    fetched."""
    lines = []
    for line in dump.splitlines():
        name, _, value = line.partition(" ")
        if _OPTION.match(name) and value != '"";':
            lines.append(line)
    return lines


_REFUSED = re.compile(
    r"^E: (The repository .* is not signed|"
    r"Failed to fetch \S+ +(?:Hash Sum mismatch|File has unexpected size))",
    re.M,
)
"""Apt's sentence about a file whose signature, digest or size is another one. More lines follow
it."""


@contextmanager
def refusing() -> Iterator[None]:
    """Raise BrokenError with the file that apt refused, instead of ProcessError."""
    try:
        yield
    except ProcessError as error:
        if (found := _REFUSED.search(error.completed.stderr)) is None:
            raise
        raise BrokenError(
            f"apt refused a file of a mirror: {' '.join(found[1].split())}",
            hint="A mirror that is being updated serves such files for some minutes: repeat the "
            "command. If it fails again, use another mirror: the files were changed.",
        ) from error


def _of_list(text: str, suite: str) -> Iterator[str]:
    for line in text.splitlines():
        entry = re.match(r"\s*deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)\s+([^#]+)", line)
        if entry is None:
            continue
        options = dict(part.split("=", 1) for part in (entry[1] or "").split() if "=" in part)
        yield from _line(
            uri=entry[2],
            suite_found=entry[3],
            components=entry[4].split(),
            signed_by=options.get("signed-by", ""),
            trusted=options.get("trusted", ""),
            suite=suite,
        )


def _of_stanzas(text: str, suite: str) -> Iterator[str]:
    """Entries of the deb822 format of sources.list(5)."""
    kept = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n\s*\n", kept):
        unfolded = re.sub(r"\n[ \t]+", " ", stanza)
        fields = {
            name.strip().lower(): value.strip()
            for name, colon, value in (line.partition(":") for line in unfolded.splitlines())
            if colon
        }
        enabled = fields.get("enabled", "yes").lower() not in ("no", "false", "0", "off")
        if not enabled or "deb" not in fields.get("types", "").split():
            continue
        for uri in fields.get("uris", "").split():
            for suite_found in fields.get("suites", "").split():
                yield from _line(
                    uri=uri,
                    suite_found=suite_found,
                    components=fields.get("components", "").split(),
                    signed_by=fields.get("signed-by", ""),
                    trusted=fields.get("trusted", ""),
                    suite=suite,
                )


def _line(
    *, uri: str, suite_found: str, components: list[str], signed_by: str, trusted: str, suite: str
) -> Iterator[str]:
    """Yield one line, if it is Debian's own: other publishers use the suite's name as well, but not
    with `main` and Debian's keys."""
    if suite_found not in (suite, f"{suite}-updates", f"{suite}-security"):
        return
    if "main" not in components or (signed_by and "debian" not in signed_by):
        return
    options = []
    # A key inside the stanza does not fit into a line; mmdebstrap finds Debian's keyring itself.
    if signed_by.startswith("/"):
        options.append(f"signed-by={signed_by}")
    if trusted == "yes":
        options.append("trusted=yes")
    bracket = f"[{' '.join(options)}] " if options else ""
    yield f"deb {bracket}{uri} {suite_found} main"
