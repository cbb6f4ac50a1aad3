"""`labctl advise --apply`: what it refuses before anything is changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from labctl.analysis.answer.record import Grade
from labctl.base.errors import HostError, UsageError
from labctl.base.paths import StatePaths
from labctl.cli.parts.apply import Target, apply_advice
from labctl.rollout.advice import Advised
from labctl.rollout.cost import Cost
from labctl.rollout.host_settings import Cpus
from labctl.rollout.rollout_steps import RolloutSteps
from labctl.rollout.steps import DISK, DOMAIN, Command, InForce, Machine, Step, TextFile

NOWHERE = Target(domain=None, disk=None, uri="qemu:///system", vcpus=None, other_host="")


def step(*commands: Command, **fields: Any) -> Step:
    given = {"title": "a step", "machine": Machine.HOST, "in_force": InForce.AT_ONCE, **fields}
    return Step(commands=commands, **given)


EDIT = step(Command(argv=("virt-xml", DOMAIN, "--edit", "--print-diff", "--define")))
DISK_EDIT = step(Command(argv=("virt-xml", DOMAIN, "--edit", f"target={DISK}")))


def advised(*steps: Step, vcpus: int | None = None, **host: str) -> Advised:
    rollout = RolloutSteps(
        steps=steps, host=tuple(host.items()), cpus=Cpus(frozenset({0, 1}), frozenset({1})),
        live=(), fragment="", changes=(), vcpus=vcpus, disk="vda", notes=("mind this",),
    )  # fmt: skip
    cost = Cost(takes=(), side_costs=(), neighbour_loss=(), worse=(), largest=(), risks=())
    return Advised(
        tuning="t", grade=Grade.CANDIDATE, description="", judged=(), unjudged=(), cost=cost,
        rollout=rollout,
    )  # fmt: skip


def applied(folder: Path, of: Advised, target: Target = NOWHERE, **options: Any) -> None:
    given = {"restore_after": None, "check": False, "as_json": True, **options}
    apply_advice(StatePaths(folder / "state"), "r1", of, target, **given)


@pytest.mark.parametrize(
    ("of", "target", "why"),
    [
        (advised(), {}, "changes nothing on the host"),
        (advised(step(machine=Machine.GUEST)), {}, "changes nothing on the host"),
        (advised(step(), tuned="virtual-host"), {}, "sets 'tuned', which cannot be undone"),
        (advised(step(), **{"c-states": "0"}), {}, "sets 'c-states', which cannot be undone"),
        (advised(step(), **{"cpu-dma-latency": "0"}), {}, "a service must keep it open"),
        (advised(EDIT), {}, "changes a virtual machine, but none is named"),
        (advised(DISK_EDIT), {"domain": "web1"}, "changes a disk, but none is named"),
        (advised(step()), {"other_host": "another CPU"}, "the run measured another host"),
        (
            advised(EDIT, vcpus=2),
            {"domain": "web1", "vcpus": 4},
            "are for 2 vCPUs, but 'web1' has 4",
        ),
    ],
)
def test_what_it_does_not_take_is_refused(
    of: Advised, target: Mapping[str, Any], why: str, tmp_path: Path
) -> None:
    given = {"domain": None, "disk": None, "uri": "x:///y", "vcpus": None, "other_host": ""}
    with pytest.raises(UsageError, match=why):
        applied(tmp_path, of, Target(**{**given, **target}))


def writing(path: Path, *commands: Command) -> Step:
    return step(*commands, file=TextFile(str(path), "text\n"))


def test_files_are_written_once_and_undone_where_a_later_step_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from labctl.run.commands import host_tuning

    monkeypatch.setattr(host_tuning, "host_lock", lambda: tmp_path / "lock")
    file = tmp_path / "etc/a.conf"
    fails = step(Command(argv=("false",)))
    with pytest.raises(Exception, match="'false' ended with status 1"):
        applied(tmp_path, advised(writing(file), fails))
    assert not file.exists()

    applied(tmp_path, advised(writing(file)), check=True)
    assert json.loads(capsys.readouterr().out)["would_change"][0]["after"] == "0644:0:0:text:text\n"
    assert not file.exists()
    applied(tmp_path, advised(writing(file)))
    said = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in said["changed"]] == [str(file)]
    assert said["notes"] == ["mind this"]
    assert file.read_text() == "text\n"
    applied(tmp_path, advised(writing(file, Command(argv=("false",)))))
    assert json.loads(capsys.readouterr().out)["changed"] == [], "it is so already"


def test_a_domain_that_is_not_there_is_said_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from labctl.host.settings import permanent

    def fails(*_: str) -> str:
        raise OSError(0, "error: failed to get domain 'web1'")

    monkeypatch.setattr(permanent, "_tool", fails)
    target = Target(domain="web1", disk=None, uri="x:///y", vcpus=2, other_host="")
    with pytest.raises(HostError, match="the domain 'web1' can't be read: no domain 'web1'"):
        applied(tmp_path, advised(EDIT), target)
