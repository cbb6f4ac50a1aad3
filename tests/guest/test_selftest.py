"""`labctl selftest` on real guests: what it says, what it bundles, what it leaves behind."""

from __future__ import annotations

import json
import re
from pathlib import Path

from labctl.host.facts import read_identity
from labctl.run.commands.selftest import Bundle, read_bundle
from tests.guest.conftest import Sandbox

_UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def test_a_small_selection_is_run_and_bundled_without_what_identifies_the_host(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    out = tmp_path / "bundle.tar.xz"
    tracefs = _tracefs_mounts()
    words = ("selftest", "--tuning", "pinned", "--out", str(out), "--json")
    done = sandbox.labctl(*words)
    said = json.loads(done.stdout)
    states = {tuning["name"]: tuning["state"] for tuning in said["tunings"]}
    assert states == {"pinned": "ran"}, done.stdout
    # 3: the host has no KVM or no PMU, which is no failure of anything.
    shown = said["verifies_kvm"] and said["verifies_pmu"]
    assert done.returncode == (0 if shown else 3), done.stderr
    bundle = read_bundle(out)
    assert bundle.manifest["accelerator"] == said["accelerator"]
    assert said["accelerator"] == "kvm" or "accelerator tcg" in bundle.manifest["label"]
    _check_contents(bundle)
    _check_anonymous(bundle, sandbox)
    assert sandbox.leftovers() == []
    assert _tracefs_mounts() == tracefs, "perf mounts tracefs"
    assert list(sandbox.state.glob("selftest-*")) == []
    assert sandbox.runs() == [], "its run is nobody's result"


def _tracefs_mounts() -> list[str]:
    return [line for line in Path("/proc/mounts").read_text().splitlines() if "tracefs" in line]


def _check_contents(bundle: Bundle) -> None:
    trials = [name for name in bundle.files if name.endswith("/trial.json")]
    cells = [json.loads(bundle.files[name])["cell"]["tuning"] for name in trials]
    assert set(cells) == {"native", "baseline", "control", "handicap", "pinned"}
    for name in ("host.json", "stdout.txt", "runner.json", "live.xml"):
        assert any(path.endswith(name) for path in bundle.files)
    assert b"processor" in bundle.files["kernel/proc/cpuinfo"]
    assert "QEMU emulator" in bundle.files["tools/qemu-version.txt"].decode()
    assert "kernel/sys/devices/system/cpu/online" in bundle.files
    assert "perf kvm stat record -p " in bundle.files["tools/perf-kvm-record.txt"].decode()
    missing = bundle.manifest["unavailable"]["native"]["steal"]
    assert missing == "natively there is no guest to steal from."


def _check_anonymous(bundle: Bundle, sandbox: Sandbox) -> None:
    telling = [text.encode() for text in read_identity()] + [str(sandbox.state).encode()]
    packed = {**bundle.files, "manifest.json": json.dumps(bundle.manifest).encode()}
    for name, data in packed.items():
        assert not [text for text in telling if re.search(rb"\b" + re.escape(text) + rb"\b", data)]
        assert all(uuid.startswith(b"00000000-") for uuid in _UUID.findall(data)), name
