"""Read the configuration that a kernel was built with."""

from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path


def config_paths(release: str) -> list[str]:
    """Return where a kernel's configuration may be: its own copy, then the distribution's."""
    return ["/proc/config.gz", f"/boot/config-{release}", f"/lib/modules/{release}/config"]


def read_config(release: str, root: Path = Path("/")) -> str | None:
    """Return the configuration of the kernel of that release as text, None where there is none."""
    for path in config_paths(release):
        try:
            data = (root / path.lstrip("/")).read_bytes()
            return (gzip.decompress(data) if path.endswith(".gz") else data).decode()
        except (OSError, EOFError, UnicodeDecodeError):
            continue
    return None


def config_digest(config: str) -> str:
    """Return SHA-256 of what a configuration sets, its comments (they may hold paths) left out."""
    options = re.findall(r"^(?:CONFIG_\w+=.*|# CONFIG_\w+ is not set)$", config, re.MULTILINE)
    return hashlib.sha256("\n".join(sorted(options)).encode()).hexdigest()


def config_value(config: str, option: str) -> str:
    """Return the value of an option ("y", "m", "250"); "n" when it isn't set."""
    found = re.search(rf"^{re.escape(option)}=(.*)$", config, re.MULTILINE)
    return found.group(1).strip('"') if found else "n"
