from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from labctl.base.errors import ExitCode, HostError
from labctl.base.paths import StatePaths
from labctl.host import accelerator as module
from labctl.host.accelerator import accelerator

FakeTool = Callable[[str, str], Path]
BOOTS = "echo \"$@\" >>$0.log; echo 'SeaBIOS'; echo '[    0.0] Linux version 6.1.0'; exec sleep 60"
SILENT = 'echo "$@" >>$0.log; exec sleep 60'
REFUSES = "echo \"$@\" >>$0.log; echo 'qemu: error: failed to set MSR 0x10a' >&2; exit 1"
QEMU = "qemu-system-x86_64"


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    path = tmp_path / "vmlinuz"
    path.write_bytes(b"kernel")
    return path


@pytest.fixture(autouse=True)
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "kvm"
    path.touch()
    monkeypatch.setattr(module, "KVM_DEVICE", path)
    monkeypatch.setattr(module.probe_kvm, "__kwdefaults__", {"deadline_s": 0.3})
    return path


def boots(qemu: Path) -> list[str]:
    return Path(f"{qemu}.log").read_text().splitlines()


def test_kvm_is_taken_where_a_kernel_boots_with_it(
    fake_tool: FakeTool, kernel: Path, places: StatePaths
) -> None:
    qemu = fake_tool(QEMU, BOOTS)
    chosen = accelerator("auto", kernel, places)
    assert (chosen.name, chosen.disabled_features) == ("kvm", ())
    assert "-accel kvm -cpu host " in boots(qemu)[0]


def test_a_device_that_opens_is_not_enough(
    fake_tool: FakeTool, kernel: Path, places: StatePaths
) -> None:
    qemu = fake_tool(QEMU, SILENT)
    chosen = accelerator("auto", kernel, places)
    assert chosen.name == "tcg"
    assert "opens, but a kernel booted with it prints nothing within 0.3 s" in chosen.reason
    assert "emulation, not virtualization" in chosen.reason
    assert len(boots(qemu)) == 1


def test_a_feature_that_hinders_is_left_out(
    fake_tool: FakeTool, kernel: Path, places: StatePaths
) -> None:
    fake_tool(QEMU, f'case "$*" in *arch-capabilities=off*) {BOOTS};; esac; {REFUSES}')
    chosen = accelerator("auto", kernel, places)
    assert (chosen.name, chosen.disabled_features) == ("kvm", ("arch-capabilities",))
    assert "without arch-capabilities" in chosen.reason


def test_what_qemu_said_is_told_when_it_never_starts(
    fake_tool: FakeTool, kernel: Path, places: StatePaths
) -> None:
    qemu = fake_tool(QEMU, REFUSES)
    chosen = accelerator("auto", kernel, places)
    assert chosen.name == "tcg"
    assert "failed to set MSR 0x10a" in chosen.reason
    assert len(boots(qemu)) == 2


def test_the_answer_is_kept_until_something_changes(
    fake_tool: FakeTool, kernel: Path, places: StatePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    qemu = fake_tool(QEMU, BOOTS)
    first = accelerator("auto", kernel, places)
    assert accelerator("auto", kernel, places) == first
    assert len(boots(qemu)) == 1
    kernel.write_bytes(b"another kernel")
    accelerator("auto", kernel, places)
    assert len(boots(qemu)) == 2
    monkeypatch.setattr(module, "boot_id", lambda: "after a reboot")
    accelerator("auto", kernel, places)
    assert len(boots(qemu)) == 3


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": 1}'])
def test_a_spoilt_answer_is_asked_for_again(
    fake_tool: FakeTool, kernel: Path, places: StatePaths, text: str
) -> None:
    fake_tool(QEMU, BOOTS)
    places.cache.mkdir(parents=True)
    (places.cache / "accelerator.json").write_text(text)
    assert accelerator("auto", kernel, places).name == "kvm"


def test_kvm_asked_for_where_it_does_not_work_is_an_error_with_a_remedy(
    fake_tool: FakeTool, kernel: Path, places: StatePaths
) -> None:
    fake_tool(QEMU, SILENT)
    with pytest.raises(HostError, match=r"KVM was requested, but .*prints nothing") as caught:
        accelerator("kvm", kernel, places)
    assert caught.value.exit_code is ExitCode.HOST
    assert "--accel tcg" in (caught.value.hint or "")


def test_without_the_device_nothing_is_booted(
    kernel: Path, places: StatePaths, device: Path
) -> None:
    device.unlink()
    chosen = accelerator("auto", kernel, places)
    assert chosen.name == "tcg"
    assert f"the host has no {device}" in chosen.reason


def test_emulation_asked_for_is_not_questioned(kernel: Path, places: StatePaths) -> None:
    assert accelerator("tcg", kernel, places).name == "tcg"
    assert not places.root.exists()


def test_a_kernel_that_is_not_there_is_an_error_with_a_remedy(
    fake_tool: FakeTool, tmp_path: Path, places: StatePaths
) -> None:
    fake_tool(QEMU, BOOTS)
    with pytest.raises(HostError, match="cannot read the kernel") as caught:
        accelerator("auto", tmp_path / "none", places)
    assert "labctl image build" in (caught.value.hint or "")


def test_without_qemu_nobody_knows_and_nothing_is_refused(
    kernel: Path, places: StatePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert module.known_accelerator("auto", kernel, places) is None
