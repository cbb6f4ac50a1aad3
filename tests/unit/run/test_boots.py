"""What is looked at as soon as a guest has started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labctl.base.errors import HostError
from labctl.host.cgroups import Hierarchy, Layout
from labctl.run import boots as module

REAL_TIME = Layout({"cpu": Hierarchy(1, Path("/sys/fs/cgroup/cpu"))}, None, rt_group_sched=True)
IN_A_GROUP = {"cpu": "/machine/qemu-1-labctl-guest.libvirt-qemu/emulator", "autogroup": "/a nice 0"}


def lab(uri: str) -> Any:
    session = SimpleNamespace(uri=uri, is_embedded=uri.startswith("qemu:///embed"))
    return SimpleNamespace(layout=REAL_TIME, session=session)


@pytest.fixture(autouse=True)
def _place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "placement", lambda pid: IN_A_GROUP)


def test_a_daemon_whose_cgroups_would_make_every_trial_invalid_ends_the_run_at_once() -> None:
    with pytest.raises(HostError, match="it is in the cpu cgroup /machine") as caught:
        module._check_place(lab("qemu:///system"), SimpleNamespace(pid=1))
    assert """'cgroup_controllers = ["devices"]' to /etc/libvirt""" in str(caught.value.hint)


def test_the_embedded_driver_has_a_qemu_conf_of_labctls() -> None:
    module._check_place(lab("qemu:///embed?root=/var/lib/labctl/lv"), SimpleNamespace(pid=1))
