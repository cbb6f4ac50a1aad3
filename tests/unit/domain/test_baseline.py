"""The baseline is what virt-install makes; each difference is documented."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from lxml import etree

from labctl.domain.render import render
from labctl.study.tunings import load_tuning

from . import hosts

DECISION = Path(__file__).parents[3] / "docs/decisions/baseline-is-virt-install.md"
RECORDED = {"kvm": "virt-install-4.1.0-kvm.xml", "tcg": "virt-install-4.1.0-qemu.xml"}

Fact = tuple[str, str, str]
"""Path, attributes and text of an element."""


def path_of(element: etree._Element) -> str:
    parts = []
    for node in [element, *element.iterancestors()]:
        target = node.find("target")
        name = str(etree.QName(node).localname)
        if target is not None and name == "disk":
            name += f":{target.get('dev')}"
        elif target is not None and name == "channel":
            name += f":{target.get('name')}"
        parts.append(name)
    return "/".join(reversed(parts[:-1]))


def facts(root: etree._Element) -> Counter[Fact]:
    found: Counter[Fact] = Counter()
    for element in root.iterdescendants(etree.Element):
        attributes = {str(key): str(value) for key, value in element.attrib.items()}
        text = (element.text or "").strip()
        if element.tag in ("memory", "currentMemory"):
            kib = int(text) * {"KiB": 1, "MiB": 1024}[attributes.pop("unit", "KiB")]
            text = f"{kib} KiB"
        found[path_of(element), repr(sorted(attributes.items())), text] += 1
    return found


def documented(heading: str) -> set[str]:
    section = DECISION.read_text().partition(f"### {heading}\n")[2].partition("\n#")[0]
    return set(re.findall(r"^- `([^`]+)`: \S", section, re.MULTILINE))


def beneath(path: str, documented_paths: set[str]) -> set[str]:
    return {known for known in documented_paths if path == known or path.startswith(known + "/")}


def differences(accelerator: str) -> tuple[set[str], set[str]]:
    """Paths of what only virt-install has, and of what only we have."""
    theirs = etree.parse(str(hosts.FIXTURES / RECORDED[accelerator])).getroot()
    ours = etree.fromstring(
        render(
            hosts.request(
                load_tuning("baseline"),
                accelerator=accelerator,
                host=hosts.FOUR_CPUS,
                vcpus=1,
                seed_disk=Path("/seed.img"),
            )
        ).encode()
    )
    assert theirs.get("type") == ours.get("type")
    recorded, rendered = facts(theirs), facts(ours)
    return (
        {path for path, _, _ in recorded - rendered},
        {path for path, _, _ in rendered - recorded},
    )


@pytest.mark.parametrize("accelerator", ["kvm", "tcg"])
def test_the_baseline_differs_from_virt_install_only_as_documented(accelerator: str) -> None:
    only_theirs, only_ours = differences(accelerator)
    # A parent is never different by its children, so a changed path stands for itself alone.
    changed = documented("Changed")
    undocumented_theirs = {
        path for path in only_theirs - changed if not beneath(path, documented("Left out"))
    }
    undocumented_ours = {
        path for path in only_ours - changed if not beneath(path, documented("Added"))
    }
    assert (undocumented_theirs, undocumented_ours) == (set(), set())


@pytest.mark.parametrize("accelerator", ["kvm", "tcg"])
def test_every_documented_difference_is_a_real_one(accelerator: str) -> None:
    only_theirs, only_ours = differences(accelerator)
    for heading, paths in (
        ("Left out", only_theirs),
        ("Added", only_ours),
        ("Changed", only_theirs | only_ours),
    ):
        listed = documented(heading)
        assert listed, heading
        assert listed <= {known for path in paths for known in beneath(path, listed)}


def test_what_decides_speed_is_not_among_the_documented_differences() -> None:
    """The lists must not grow over what makes a baseline."""
    listed = documented("Left out") | documented("Added") | documented("Changed")
    for path in (
        "cpu",
        "os/type",
        "features",
        "clock",
        "pm",
        "vcpu",
        "memory",
        "devices/disk:vda/driver",
        "devices/disk:vda/target",
        "devices/disk:vdb/driver",
        "devices/interface/model",
        "devices/controller",
        "devices/memballoon",
        "devices/rng",
    ):
        top_level = {known for known in listed if known == path or path.startswith(known + "/")}
        # `devices/interface` is listed for its own attribute `type`, not for what is in it.
        assert top_level - {"devices/interface"} == set(), path
