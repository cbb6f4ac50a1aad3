"""labctl's guests have names of their own, by which they are known again."""

from __future__ import annotations

import pytest

from labctl.base.paths import MOST_NEIGHBOURS, OWN_NAME, guest_name, neighbour_seat

LIBVIRTS = 20
"""Characters of a name that libvirt keeps in the paths of its sockets
(VIR_DOMAIN_SHORT_NAME_MAX)."""


def test_every_seat_has_a_name_of_its_own_that_is_known_again() -> None:
    seats = [0, 1, *map(neighbour_seat, range(MOST_NEIGHBOURS))]
    names = [guest_name(seat) for seat in seats]
    assert names[:4] == ["labctl-guest", "labctl-guest-2", "labctl-noisy-1", "labctl-noisy-2"]
    assert len({name[:LIBVIRTS] for name in names}) == len(names)
    assert all(map(OWN_NAME.fullmatch, names))


@pytest.mark.parametrize(
    "name", ["labctl-db", "labctl-guest-3", "labctl-guest-copy", "labctl-noisy-", "web1"]
)
def test_a_guest_of_somebody_else_has_none_of_them(name: str) -> None:
    assert OWN_NAME.fullmatch(name) is None
