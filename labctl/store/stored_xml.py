"""Keep domain XML in a run's folder."""

from __future__ import annotations

from pathlib import Path

from labctl.base.errors import BrokenError

_LARGEST_XML_BYTES = 256 * 1024


def stored_xml(folder: Path, place: str) -> str:
    """Return the domain XML that a run stored at `place` in its folder.

    Raises BrokenError for a file that isn't there, isn't text, or isn't the run's own: a run
    folder that came from elsewhere must not make its reader publish /etc/shadow.
    """
    path = (folder / place).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise BrokenError(f"{place} lies outside of the run's folder")
    try:
        if path.stat().st_size > _LARGEST_XML_BYTES:
            raise BrokenError(f"{place} is too large for a domain XML")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BrokenError(f"{place} cannot be read: {error}") from error
