"""`labctl advise` of a run folder that somebody else wrote: root carries out what it writes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.unit.analysis.alter import with_run

from .conftest import Labctl
from .test_advise import GOLDEN, made, stored

PLAIN: dict[str, Any] = {
    "host": {"swappiness": "10"},
    "requires": {"command_line": ["idle=poll"]},
    "guest": {"elevator": "none", "sysfs": {"/sys/module/haltpoll/parameters/force": "Y"}},
}


def advice_of(
    results: Path, labctl: Labctl, settings: dict[str, Any], xml: str | None = None
) -> Any:
    run = with_run(made(), tunings={"pinned+fifo": settings, "baseline": {}})
    folder = stored(results, run)
    if xml is not None:
        (folder.path / "xml" / "pinned+fifo.xml").write_text(xml)
    return labctl("advise", "r1", "--out", str(results / "out"))


def files(folder: Path) -> str:
    return "".join(path.read_text() for path in sorted(folder.rglob("*")) if path.is_file())


def test_settings_as_labctl_writes_them_are_advised(results: Path, labctl: Labctl) -> None:
    said = advice_of(results, labctl, PLAIN)
    assert said.code == 0, said.err
    assert "vm.swappiness = 10" in files(results / "out")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"host": {"swappiness": "10\nLABCTL-END\ntouch X\n"}}, "'host.swappiness'"),
        ({"host": {"tuned": "x; touch X"}}, "'host.tuned'"),
        ({"host": {"mitigations": "off\ntouch X"}}, "'host.mitigations'"),
        ({"host": {"isolcpus": "1 x=$(touch X)"}}, "'host.isolcpus'"),
        ({"requires": {"command_line": ["x=$(touch X)"]}}, "'requires.command_line'"),
        ({"requires": {"command_line": ['x="; touch X; "']}}, "'requires.command_line'"),
        ({"requires": {"command_line": ["x=`touch X`"]}}, "'requires.command_line'"),
        ({"guest": {"elevator": 'none", RUN+="/bin/touch X'}}, "'guest.elevator'"),
        ({"guest": {"tuned": "../../tmp/x"}}, "'guest.tuned'"),
        ({"guest": {"sysfs": {"/etc/cron.d/x": "1"}}}, "'guest.sysfs'"),
        ({"guest": {"sysfs": {"/sys/../etc/cron.d/x": "1"}}}, "'guest.sysfs'"),
        ({"guest": {"sysfs": {"/sys/x": "1\nf /etc/x - - - - 1"}}}, "'guest.sysfs' /sys/x"),
    ],
)
def test_a_setting_that_is_none_of_its_values_ends_the_advice(
    results: Path, labctl: Labctl, settings: dict[str, Any], named: str
) -> None:
    said = advice_of(results, labctl, settings)
    assert said.code == 2
    assert named in said.err
    assert "touch X\n" not in said.err
    assert not (results / "out").exists()


@pytest.mark.parametrize(
    ("was", "now", "named"),
    [
        (
            "<devices>",
            "<devices><rng model='virtio'><backend>/dev/x</backend></rng>",
            "devices/rng",
        ),
        ("<devices>", "<devices><memballoon model='x; touch X'/>", "devices/memballoon"),
        ("</cputune>", "<vcpupin vcpu='7' cpuset='0$(x)'/></cputune>", "cputune/vcpupin"),
    ],
)
def test_a_domain_that_differs_as_no_tuning_makes_it_ends_the_advice(
    results: Path, labctl: Labctl, was: str, now: str, named: str
) -> None:
    xml = (GOLDEN / "pinned+fifo.kvm.xml").read_text()
    assert was in xml
    said = advice_of(results, labctl, {}, xml.replace(was, now, 1))
    assert said.code == 2, files(results / "out")
    assert named in said.err


def test_the_card_shows_markup_as_text(results: Path, labctl: Labctl) -> None:
    run = with_run(made(), host={"cpu_model": "<script>alert(1)</script> [a](javascript:x) | `c`"})
    stored(results, run)
    said = labctl("advise", "r1", "--card", str(results / "card.md"))
    assert said.code == 0, said.err
    card = (results / "card.md").read_text()
    assert "<script>" not in card
    assert r"&lt;script&gt;alert(1)&lt;/script&gt; \[a\](javascript:x) \| \`c\`" in card


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a link to another user")
def test_advice_is_not_written_through_a_folder_link_of_another_user(
    results: Path, labctl: Labctl, tmp_path: Path
) -> None:
    results.mkdir(exist_ok=True)
    (tmp_path / "elsewhere").mkdir()
    (results / "out").symlink_to(tmp_path / "elsewhere")
    os.chown(results / "out", 65534, 65534, follow_symlinks=False)
    said = advice_of(results, labctl, PLAIN)
    assert said.code == 2
    assert "belongs to another user" in said.err
    assert not list((tmp_path / "elsewhere").iterdir())


def test_scripts_of_the_advice_are_whole_shell(results: Path, labctl: Labctl) -> None:
    advice_of(results, labctl, PLAIN)
    shellcheck = shutil.which("shellcheck")
    scripts = sorted((results / "out").rglob("*.sh"))
    assert len(scripts) == 3
    for script in scripts:
        ends = re.findall(r"^LABCTL-END$", script.read_text(), re.M)
        begins = re.findall(r"<<'LABCTL-END'$", script.read_text(), re.M)
        assert len(ends) == len(begins)
        subprocess.run(["sh", "-n", script], check=True)
        if shellcheck:
            subprocess.run([shellcheck, "--severity=error", script], check=True)
