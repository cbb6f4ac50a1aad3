"""Name labctl's own guests, so that they are known again whoever finds them."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

MEASURED_SEATS = 2
"""A host has one run at a time. Two of its measured guests may boot at once, and what is saved of
either is restored under its own name; the seats after these are neighbours'."""

MOST_NEIGHBOURS = 1000

OWN_NAME = re.compile(r"labctl-(guest|guest-2|noisy-\d{1,4})")
"""Names of the domains that labctl starts."""


def guest_name(seat: int) -> str:
    """Return the name of the domain that sits there, from 0."""
    if seat < MEASURED_SEATS:
        return f"labctl-guest-{seat + 1}" if seat else "labctl-guest"
    return f"labctl-noisy-{seat - MEASURED_SEATS + 1}"


def neighbour_seat(number: int) -> int:
    """Return the seat of a neighbour, by its number from 0."""
    return MEASURED_SEATS + number


def guest_uuid(work: Path, seat: int) -> str:
    """Return the UUID of the guest that sits there, of a run in that folder."""
    which = f":{seat + 1}" if seat else ""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"labctl:{work}{which}"))


def mac_of(uuid: str) -> str:
    """Return the MAC address of the network card of a guest with that UUID."""
    digits = uuid.replace("-", "")[:6].lower()
    return ":".join(["52:54:00", *(digits[at : at + 2] for at in (0, 2, 4))])
