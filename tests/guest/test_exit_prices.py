"""The exit price list on the host's own KVM: no kernel need boot with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.guest.conftest import DISTURBED, Sandbox

pytestmark = [DISTURBED, pytest.mark.kvm]


def test_exits_to_qemu_have_a_price_and_what_makes_no_exit_has_a_reason(sandbox: Sandbox) -> None:
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        pytest.skip("this host has no /dev/kvm that opens")
    done = sandbox.labctl("exits", "price", "--json", seconds=120)
    assert done.returncode == 0, done.stderr
    prices = {price["kind"]: price for price in json.loads(done.stdout)["prices"]}
    for kind in ("io-qemu", "mmio-qemu"):
        price = prices[kind]
        assert price["problem"] == ""
        # An exit that ends in another process's memory and back: no host does it in 100 ns.
        assert 100 < price["low_ns"] <= price["ns"] <= price["high_ns"]
        if price["exits_per_op"] is not None:
            # The host's own interrupts make exits as well, more of them where an operation is slow.
            assert 0.95 < price["exits_per_op"] < 2
    for price in prices.values():
        assert (price["ns"] is None) == bool(price["problem"])
    assert (sandbox.state / "exit-prices.json").is_file()
    assert sandbox.leftovers() == []


def test_without_kvm_there_is_no_price_list_and_the_reason(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    broken = tmp_path / "qemu-system-x86_64"
    broken.write_text("#!/bin/sh\necho 'failed to initialize kvm: No such file' >&2\nexit 1\n")
    broken.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = sandbox.labctl("exits", "price", environment={"PATH": path})
    assert done.returncode == 3
    assert "failed to initialize kvm" in done.stderr
    assert not (sandbox.state / "exit-prices.json").exists()


_WAITS = """
import sys
from pathlib import Path
from labctl.run.commands.measure_exits import NOTHING, _assembled, _cpu_model, _Guest
folder = Path(sys.argv[1])
program = _assembled(folder)
model = _cpu_model(folder, program)
with _Guest(folder, program, model, None).stopped(NOTHING, 1, 1) as guest:
    print(guest.vcpu, flush=True)
    sys.stdin.read()
"""


def test_its_guest_ends_when_labctl_is_killed(tmp_path: Path) -> None:
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        pytest.skip("this host has no /dev/kvm that opens")
    with subprocess.Popen(
        [sys.executable, "-c", _WAITS, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as killed:
        assert killed.stdout is not None
        vcpu = Path(f"/proc/{int(killed.stdout.readline())}")
        assert vcpu.exists()
        killed.kill()
    until = time.monotonic() + 10
    while vcpu.exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert not vcpu.exists()
