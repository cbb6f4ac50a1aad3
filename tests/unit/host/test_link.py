"""The link's ends, and what the journal knows of its parts. Real ones: tests/guest."""

from __future__ import annotations

import ipaddress

from labctl.host.link import LinkEnds

ENDS = LinkEnds(
    machine="198.18.0.2",
    peer="198.18.0.1",
    machine_mac="52:54:00:00:00:01",
    peer_mac="02:6c:61:62:00:01",
)


def test_each_end_knows_the_other_without_asking() -> None:
    for commands, own, other, mac in (
        (ENDS.machine_commands("enp1s0"), ENDS.machine, ENDS.peer, ENDS.peer_mac),
        (ENDS.peer_commands("labctl1"), ENDS.peer, ENDS.machine, ENDS.machine_mac),
    ):
        [address] = [words for words in commands if words[0] == "address"]
        [neighbour] = [words for words in commands if words[0] == "neighbour"]
        assert f"{own}/30" in address
        assert neighbour[2:5] == (other, "lladdr", mac)
        assert neighbour[-1] == "permanent"
        assert ipaddress.ip_address(other) in ipaddress.ip_interface(f"{own}/30").network


def test_no_address_is_looked_for_by_the_kernel_itself() -> None:
    first, *_, last = ENDS.peer_commands("labctl1")
    assert first == ("link", "set", "dev", "labctl1", "addrgenmode", "none")
    assert last[0] == "neighbour"


def test_a_machine_finds_what_lies_behind_its_peer() -> None:
    *end, behind = ENDS.machine_commands("enp1s0")
    assert end[0] == ("link", "set", "dev", "enp1s0", "addrgenmode", "none")
    assert behind == ("route", "replace", "198.18.0.0/16", "via", ENDS.peer)
