"""What identifies a host goes; what parsers read stays."""

from __future__ import annotations

import json
from pathlib import Path

from labctl.host.facts import read_identity
from labctl.run.commands.scrub import Scrubber

UUID = "4cb54d0d-fd38-518a-9ecf-b07240e1e3ee"


def scrubbed(text: str, known: dict[str, str] | None = None, **paths: str) -> str:
    return Scrubber(known or {}, paths).scrubbed(text.encode()).decode()


def test_uuids_and_mac_addresses_keep_their_form_and_their_sameness() -> None:
    text = f"<uuid>{UUID}</uuid> <mac address='52:54:00:ab:cd:ef'/> root=UUID={UUID.upper()} "
    other = "f385c207-8584-51c9-a086-88fc41725aa1"
    assert scrubbed(text + other) == (
        "<uuid>00000000-0000-4000-8000-000000000001</uuid> <mac address='52:54:00:00:00:01'/> "
        "root=UUID=00000000-0000-4000-8000-000000000001 00000000-0000-4000-8000-000000000002"
    )


def test_digests_pci_addresses_times_and_cpu_masks_are_no_identity() -> None:
    text = f"{'ab' * 32} 0000:00:1f.3 12:34:56 ffffffff,ffffffff 4cb54d0d-fd38 sda:1:2"
    assert scrubbed(text) == text


def test_a_name_is_taken_out_as_a_word_and_the_longest_first() -> None:
    known = {"db7": "host-name", "db7.example.org": "host-name", "S/N 4711": "serial"}
    text = "node=db7.example.org,db7:/ adb70 db7_x 'S/N 4711'"
    assert scrubbed(text, known) == (
        "node=host-name-1,host-name-2:/ adb70 host-name-2_x 'serial-1'"
    )


def test_folders_with_a_users_name_become_the_usual_ones() -> None:
    scrubber = Scrubber({}, {"/home/ann/state": "/var/lib/labctl", "/home/ann": "/root"})
    text = b"'/home/ann/state/images/disk.qcow2' /home/ann/x /home/anna"
    assert scrubber.scrubbed(text) == b"'/var/lib/labctl/images/disk.qcow2' /root/x /home/anna"
    assert scrubber.taken_out == {"path": 2}


def test_what_is_no_text_stays_byte_for_byte_but_for_what_identifies() -> None:
    data = bytes(range(256))
    scrubber = Scrubber({"db7": "host-name"}, {})
    assert scrubber.scrubbed(data + b" db7 ") == data + b" host-name-1 "


def host(root: Path, **files: str) -> dict[str, str]:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = read_identity(root)
    return {
        text: kind for text, kind in found.items() if kind not in ("address", "mac", "interface")
    }


def test_a_host_is_identified_by_its_names_its_id_and_its_serials(tmp_path: Path) -> None:
    dmi = "sys__class__dmi__id__"
    files = {
        "proc__sys__kernel__hostname": "db7.example.org\n",
        "etc__machine-id": "3d1219c7c4c5404aaa1f6d2a48adfda4\n",
        f"{dmi}board_serial": "CN7016\n",
        f"{dmi}product_serial": "To Be Filled By O.E.M.\n",
        f"{dmi}chassis_serial": "00000000\n",
        "sys__block__nvme0n1__device__serial": "S5GXNF0R\n",
    }
    assert host(tmp_path, **files) == {
        "3d1219c7c4c5404aaa1f6d2a48adfda4": "machine-id",
        "db7.example.org": "host-name",
        "db7": "host-name",
        "CN7016": "serial",
        "S5GXNF0R": "serial",
    }


def test_a_name_that_many_hosts_have_is_none(tmp_path: Path) -> None:
    """It would also be a word of what tools print: 'kvm' in every line of perf's list."""
    files = {"proc__sys__kernel__hostname": "kvm\n", "proc__sys__kernel__domainname": "(none)\n"}
    assert host(tmp_path, **files) == {}


def test_a_name_after_an_escape_of_json_is_a_word_too() -> None:
    """The bytes before it are '\\n', whose last is a letter."""
    data = json.dumps({"console": "up\nann\tann", "n": 1.50}).encode()
    scrubber = Scrubber({"ann": "user"}, {})
    assert scrubber.scrubbed(data, is_json=True) == b'{"console": "up\\nuser-1\\tuser-1", "n": 1.5}'
