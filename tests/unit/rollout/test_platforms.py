"""Every setting of the catalogue has an entry in each platform's table, and its words are valid."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from labctl.base.cpus import parse_cpus
from labctl.base.tuning import KNOB_VALUES, PLAN, Kind
from labctl.cli.advise import PLATFORMS
from labctl.rollout.files import Names
from labctl.rollout.host_settings import BOOT
from labctl.rollout.platforms import MEASURING, in_words, platform, tree
from labctl.rollout.settings import UNKNOWN, Setting, named_settings
from labctl.store.records.run_record import RecordedTuning
from labctl.study.changes import changes, dotted, values
from labctl.study.tunings import load_tuning, tuning_json, tuning_names
from tests.unit.schema_check import misfits

GOLDEN = Path(__file__).parents[2] / "golden"
FIXTURES = Path(__file__).parents[1] / "fixtures" / "platforms"
GUESTS = [name for name in tuning_names() if load_tuning(name).kind is Kind.GUEST]
KEYED_BY_NAME = ("timers", "host", "cpu.features", "guest.sysfs")


@cache
def keys() -> set[str]:
    """Every key that a tuning may have, those with names of their own for each known name."""
    found = {
        dotted(key)
        for name in GUESTS
        for key in (
            *values(load_tuning(name)),
            *changes(load_tuning(name), load_tuning("baseline")),
        )
    }
    found = {"cpu.features" if key.startswith("cpu.features") else key for key in found}
    found = {"guest.sysfs" if key.startswith("guest.sysfs") else key for key in found}
    found |= {f"host.{knob}" for knob in (*KNOB_VALUES, *BOOT)} | {"requires.command_line"}
    return found - set(MEASURING) - set(KEYED_BY_NAME[:2])


@cache
def settings(name: str) -> tuple[Setting, ...]:
    tuning, baseline = load_tuning(name), load_tuning("baseline")
    recorded, former = (
        RecordedTuning.model_validate(tuning_json(one)) for one in (tuning, baseline)
    )
    before, after = (GOLDEN / "domain" / f"{one}.kvm.xml" for one in ("baseline", name))
    host = {knob: str(value) for knob, value in recorded.host.items()}
    return named_settings(
        before.read_text(),
        after.read_text(),
        recorded,
        former,
        host=host,
        vhost=parse_cpus("2") if recorded.pin.vhost == PLAN else frozenset(),
    )


def test_the_catalogue_is_known() -> None:
    assert len(GUESTS) > 100
    assert {"pin.vcpus", "memory.hugepages", "host.ksm", "timers.hpet", "disk.cache"} <= keys()


@pytest.mark.parametrize("name", PLATFORMS)
def test_every_key_has_an_entry(name: str) -> None:
    table = platform(name)
    lacking = [key for key in sorted(keys()) if table.entry(key, "x") is None]
    only_for = [key for key in lacking if not any(n.startswith(f"{key}=") for n in names(table))]
    assert only_for == []


@pytest.mark.parametrize("name", PLATFORMS)
def test_every_entry_says_something_of_a_key_that_exists(name: str) -> None:
    table = platform(name)
    for named, entry in table.keys.items():
        assert entry.say or entry.by or entry.already or entry.cannot, named
        assert entry.docs in ("", *table.docs), named
        for key in named.split():
            assert any(fnmatchcase(one, key.partition("=")[0]) for one in keys()), key
        for key in (*entry.needs, *filter(None, [entry.by])):
            assert table.entry(key) or table.entry(key, "1"), key


def names(table: Any) -> Iterator[str]:
    for named in table.keys:
        yield from named.split()


@pytest.mark.parametrize("name", GUESTS)
def test_a_domain_s_changes_are_known_by_the_keys_of_the_tuning(name: str) -> None:
    found = {setting.key for setting in settings(name)}
    tuning = load_tuning(name)
    wanted = {dotted(key) for key in changes(tuning, load_tuning("baseline"))} - set(MEASURING)
    wanted = {re.sub(r"^(cpu\.features|guest\.sysfs)\..*", r"\1", key) for key in wanted}
    if tuning.requires.command_line:
        wanted.add("requires.command_line")
    assert UNKNOWN not in found
    # The golden guest has virt-install's own, so that a tuning that names one changes nothing.
    unchanged = {
        "cpu.mode",
        "network.vhost",
        "timers.kvmclock",
        "timers.hpet",
        "kvm.hint_dedicated",
    }
    assert found - {"guest.command_line"} <= wanted
    assert wanted - found <= {*unchanged, "guest.command_line"}, wanted - found


@pytest.mark.parametrize("name", PLATFORMS)
def test_the_catalogue_in_a_platform_s_words_is_as_recorded(
    name: str, regenerate_golden: bool
) -> None:
    lines = []
    for tuning in GUESTS:
        said = in_words(platform(name), settings(tuning), Names("web", "sda"))
        lines.append(f"## {tuning}")
        lines += [f"{kind}: {text}" for kind, texts in said.lines.items() for text in texts]
        lines += [f"already {text}" for text in said.already]
        lines += [f"cannot {one.key} ({one.value}): {one.why}" for one in said.left]
    text = "\n".join(lines) + "\n"
    golden = GOLDEN / "platforms" / f"{name}.txt"
    if regenerate_golden:
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text(), "run pytest with --regenerate-golden and read the difference"


def said_by(name: str, kind: str) -> Iterator[str]:
    for tuning in GUESTS:
        yield from in_words(platform(name), settings(tuning), Names()).lines.get(kind, ())


def strict(definition: Mapping[str, Any]) -> dict[str, Any]:
    """A definition of OpenAPI that allows no unknown field."""
    known = {"type", "properties", "items", "additionalProperties", "enum", "required", "$ref"}
    found = {key: value for key, value in definition.items() if key in known}
    found.pop("required", None)  # the VM has the rest
    for key in ("items", "additionalProperties"):
        if isinstance(found.get(key), dict):
            found[key] = strict(found[key])
    if "properties" in found:
        found["properties"] = {k: strict(v) for k, v in found["properties"].items()}
        found["additionalProperties"] = False
    return found


@cache
def kubevirt() -> Mapping[str, Any]:
    file = json.loads((FIXTURES / "kubevirt-1.9-domain.json").read_text())
    return {"$defs": {name: strict(one) for name, one in file["definitions"].items()}}


def kubevirt_misfits(spec: Any) -> list[str]:
    schema = {"$ref": "#/definitions/v1.DomainSpec"}
    return list(misfits(spec["domain"], schema, kubevirt()))


@pytest.mark.parametrize("tuning", [*GUESTS, "all"])
def test_kubevirt_s_schema_has_each_field(tuning: str) -> None:
    lines = (
        list(said_by("kubevirt", "vm"))
        if tuning == "all"
        else in_words(platform("kubevirt"), settings(tuning), Names()).lines.get("vm", [])
    )
    if lines:
        assert kubevirt_misfits(tree(lines)) == []


@pytest.mark.parametrize(
    "line",
    [
        "domain.cpu.dedicatedCpuPlacements: true",
        "domain.cpu.dedicatedCpuPlacement: 1",
        "domain.devices.disks[a].cached: none",
        "domain.features.hyperv.relaxed: true",
        "domain.memory.hugepages.pageSize: 2",
    ],
)
def test_kubevirt_s_schema_refuses_another_field(line: str) -> None:
    assert kubevirt_misfits(tree([line])) != []


def test_nova_s_extra_specs_are_those_that_it_validates() -> None:
    """Names of nova/api/validation/extra_specs/hw.py and quota.py at Nova 33."""
    known = set((FIXTURES / "nova-33-extra-specs.txt").read_text().split())
    said = {line.partition("=")[0] for line in said_by("openstack", "flavor")}
    assert said - known == set()


def test_nova_s_options_are_in_sections_that_it_has() -> None:
    known = set((FIXTURES / "nova-33-options.txt").read_text().split())
    said = {line.partition("=")[0] for line in said_by("openstack", "nova.conf")}
    assert said - known == set()
    assert len(said) > 5


def test_kubelet_s_lines_are_yaml() -> None:
    assert (
        yaml.safe_load(yaml.safe_dump(tree(list(said_by("kubevirt", "kubelet")))))[
            "cpuManagerPolicy"
        ]
        == "static"
    )
