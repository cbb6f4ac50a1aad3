"""How settings of the host and inside the guest are made to last."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from labctl.base.cpus import format_cpus
from labctl.rollout.files import tasks
from labctl.rollout.host_settings import KNOBS, Cpus, guest_steps, host_steps, not_lasting
from labctl.rollout.steps import InForce, Machine, Step
from labctl.store.records.run_record import RecordedGuest

CPUS = Cpus(online=frozenset(range(40)), vcpus=frozenset({1, 2, 35}))
HOST = {
    "swappiness": "10",
    "thp": "always",
    "governor": "performance",
    "halt-poll-ns": "0",
    "c-states": "10",
    "mitigations": "off",
    "irq-affinity": "housekeeping",
    "workqueues": "housekeeping",
    "tuned": "labctl-virtual-host",
}
GUEST = RecordedGuest(tuned="virtual-guest", elevator="none", sysfs={"/sys/a": "b"})


def host(**knobs: str) -> list[Step]:
    return list(host_steps("t", {name.replace("_", "-"): v for name, v in knobs.items()}, (), CPUS))


def text(step: Step) -> str:
    assert step.file is not None
    return step.file.text


def shell(step: Step) -> list[str]:
    return [command.shell("", "") for command in step.commands]


def test_a_sysctl_lasts_in_a_file_of_its_own_and_acts_at_once() -> None:
    [step] = host(swappiness="10", numa_balancing="0")
    assert step.file is not None
    assert step.file.path == "/etc/sysctl.d/90-labctl-t.conf"
    assert text(step).endswith("vm.swappiness = 10\nkernel.numa_balancing = 0\n")
    assert shell(step) == ["sysctl --load /etc/sysctl.d/90-labctl-t.conf"]
    assert (step.machine, step.in_force) == (Machine.HOST, InForce.AT_ONCE)


def test_files_of_sys_are_written_now_and_at_each_boot() -> None:
    [step] = host(thp="always", governor="performance")
    assert "w- /sys/kernel/mm/transparent_hugepage/enabled - - - - always\n" in text(step)
    assert shell(step) == ["systemd-tmpfiles --create /etc/tmpfiles.d/90-labctl-t.conf"]


def test_words_of_the_kernels_command_line_take_a_reboot() -> None:
    words = ["mitigations=off", "isolcpus=1-2"]
    [step] = host_steps("t", {"mitigations": "off"}, words, CPUS)
    assert text(step).endswith(
        'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT mitigations=off isolcpus=1-2"\n'
    ), "each word once"
    assert shell(step) == ["update-grub"]
    assert step.in_force is InForce.HOST_REBOOT


def test_words_that_want_cpus_get_those_of_the_vcpus() -> None:
    [step] = host_steps("t", {}, ["isolcpus", "nohz_full"], CPUS)
    vcpus = format_cpus(CPUS.vcpus)
    line = f"isolcpus=managed_irq,domain,{vcpus} nohz_full={vcpus} rcu_nocbs={vcpus}"
    assert text(step).endswith(f'$GRUB_CMDLINE_LINUX_DEFAULT {line}"\n')


def test_interrupts_and_work_stay_off_the_vcpus_cpus() -> None:
    line, files = host(irq_affinity="housekeeping", workqueues="housekeeping")
    assert "irqaffinity=0,3-34,36-39" in text(line)
    # Bits 1, 2 and 35 are missing of 40.
    assert "w- /sys/devices/virtual/workqueue/cpumask - - - - f7,fffffff9\n" in text(files)


def test_a_profile_of_the_labs_is_brought_to_tuned_before_it_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "templates/tuned/ours"
    own.mkdir(parents=True)
    (own / "tuned.conf.j2").write_text("[sysfs]\n/sys/x/cpumask={{ not_isolated_mask }}\n")
    monkeypatch.setenv("LABCTL_LAB", str(tmp_path))
    profile, switch = host(tuned="ours")
    assert profile.file is not None
    assert profile.file.path == "/etc/tuned/ours/tuned.conf"
    [link] = shell(profile)
    assert text(profile) == "[sysfs]\n/sys/x/cpumask=f7,fffffff9\n"
    # tuned 2.25 has a folder for profiles and looks nowhere else.
    etc = tmp_path / "tuned"
    (etc / "profiles").mkdir(parents=True)
    (etc / "ours").mkdir()
    for _ in range(2):
        subprocess.run(["sh", "-c", link.replace("/etc/tuned", str(etc))], check=True)
    assert (etc / "profiles/ours").readlink() == Path("../ours")
    [command] = shell(switch)
    assert command.startswith("tuned-adm active | grep -qxF")
    assert command.endswith("tuned-adm profile ours")


@pytest.mark.parametrize("profile", ["virtual-host", "../../../../etc/passwd"])
def test_a_profile_that_tuned_has_or_that_leads_elsewhere_is_only_chosen(profile: str) -> None:
    [switch] = host(tuned=profile)
    assert switch.file is None


def test_halt_polling_is_set_now_and_when_the_module_is_loaded() -> None:
    now, loaded = host(halt_poll_ns="0")
    assert "w- /sys/module/kvm/parameters/halt_poll_ns - - - - 0\n" in text(now)
    assert text(loaded).endswith("options kvm halt_poll_ns=0\n")


def test_what_nobody_knows_to_make_last_is_named_not_guessed() -> None:
    knobs = {"frobnicate": "1", "c-states": "deep", "swappiness": "10"}
    assert not_lasting(knobs, CPUS) == ["frobnicate", "c-states"]
    [step] = host_steps("t", knobs, (), CPUS)
    assert "swappiness" in text(step)
    unknown = Cpus(online=frozenset(), vcpus=frozenset())
    assert not_lasting({"irq-affinity": "housekeeping"}, unknown) == ["irq-affinity"]


def test_every_knob_of_the_host_can_be_made_to_last() -> None:
    table = pytest.importorskip("labctl.host.settings.knob_table").TABLE
    # A program of the host's is told as a note: it takes a service there.
    assert {knob.name for knob in table} - {"program"} <= set(KNOBS)


def test_inside_the_guest_profile_scheduler_files_and_command_line() -> None:
    line, profile, elevator, files = guest_steps("t", GUEST, ["idle=poll"])
    assert "idle=poll" in text(line)
    assert line.in_force is InForce.GUEST_REBOOT
    assert shell(profile)[0].endswith("tuned-adm profile virtual-guest")
    assert 'ATTR{queue/scheduler}="none"' in text(elevator)
    assert "w- /sys/a - - - - b\n" in text(files)
    assert {step.machine for step in (line, profile, elevator, files)} == {Machine.GUEST}


def loaded(steps: list[Step]) -> Any:
    written = tasks("n", steps, domain="d", disk="vda", vcpus=None, tuning="t")
    [play] = yaml.safe_load(written)
    return play["block"]


@pytest.mark.parametrize(
    "steps",
    [list(host_steps("t", HOST, (), CPUS)), list(guest_steps("t", GUEST, ["idle=poll"]))],
)
def test_ansibles_tasks_say_the_same_with_modules_that_ansible_brings(steps: list[Step]) -> None:
    block = loaded(steps)
    modules = {key for task in block for key in task if "." in key}
    assert modules <= {f"ansible.builtin.{name}" for name in ("command", "copy", "file")}
    copied = [task["ansible.builtin.copy"] for task in block if "ansible.builtin.copy" in task]
    files = [step.file for step in steps if step.file is not None]
    assert [(c["dest"], c["content"]) for c in copied] == [(f.path, f.text) for f in files]
    argvs = [
        tuple(task["ansible.builtin.command"]["argv"])
        for task in block
        if "ansible.builtin.command" in task and task.get("changed_when") is not False
    ]
    assert argvs == [command.argv for step in steps for command in step.commands]


def test_all_commands_are_shell() -> None:
    steps = [*host_steps("t", HOST, (), CPUS), *guest_steps("t", GUEST, ["idle=poll"])]
    lines = "\n".join(line for step in steps for line in shell(step))
    subprocess.run(["sh", "-n"], input=lines, text=True, check=True)


def test_a_limit_that_must_be_held_gets_a_service_that_stays() -> None:
    idle, held = host(c_states="10", cpu_dma_latency="0")
    assert idle.file is not None
    assert held.file is not None
    assert idle.file.path == "/etc/systemd/system/labctl-t.service"
    assert held.file.path == "/etc/systemd/system/labctl-t-latency.service"
    # Four bytes would be taken for a number.
    assert "echo 0x00000000 >&3 && exec sleep infinity" in text(held)
    assert "systemctl restart labctl-t-latency.service" in shell(held)
    assert not_lasting({"cpu-dma-latency": "0; reboot"}, CPUS) == ["cpu-dma-latency"]
