"""Define what a booted guest goes through before it is saved: facts, hashes, counts, warm files."""

from __future__ import annotations

from typing import Any

from labctl.base.channel import Channel
from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError
from labctl.base.tuning import Kind
from labctl.host.machine_facts import machine_facts, same_kernel
from labctl.run.collectors.calibrate import Calibrations
from labctl.run.guests.lab import Lab
from labctl.run.trials.peer import serving
from labctl.run.trials.proof import Proof
from labctl.run.trials.warmup import WINDOW_S
from labctl.study.plan import Plan
from labctl.study.study import StudyWorkload
from labctl.workloads.registry import workload_of
from labctl.workloads.setting import Setting


class PostBootSetup:
    """Set up each boot; keep the guest's facts from the first one."""

    def __init__(self, lab: Lab, plan: Plan, calibrations: Calibrations, proof: Proof) -> None:
        self._lab = lab
        self._plan = plan
        self._calibrations = calibrations
        self._proof = proof
        self._facts: dict[str, Any] | None = None

    def set_up(self, channel: Channel, data_paths: tuple[str, ...]) -> None:
        """Set up the guest in every boot, so that all are saved in the same state. `data_paths`:
        the data disks in that guest."""
        if self._facts is None:
            self._facts = machine_facts(
                lambda paths: channel.read(paths, Deadline.after(30, "the guest's facts"))
            )
            self._calibrations.count_in_guest(channel)
        self._proof.check(Kind.GUEST, channel)
        # One window of each program: its files are in the guest's page cache when it is saved,
        # so that no restore waits for them.
        programs = {item.program: item for item in self._in_guests()}
        for declared in programs.values():
            program = workload_of(declared)
            setting = Setting(
                parameters=program.check_parameters(declared.parameters),
                vcpus=self._lab.vcpus,
                duration_s=declared.duration_s,
                data_paths=data_paths,
                peer=self._lab.link.guest.peer if self._lab.link else None,
            )
            with (
                serving(self._lab, program, setting.parameters),
                channel.serving(program.servers(setting)),
            ):
                result = channel.run(program.warmup_command(setting, WINDOW_S, None), seconds=60)
            if why := program.why_failed(result):
                raise BrokenError(f"{declared.program} fails in the guest: {why}")

    def _in_guests(self) -> list[StudyWorkload]:
        left_out = self._plan.skipped_workloads
        return [
            declared
            for name, declared in self._plan.workloads.items()
            if Kind.GUEST not in left_out.get(name, {})
        ]

    def facts(self, host: dict[str, Any]) -> dict[str, Any]:
        """Return what run.json says of the guest, and of both sides together."""
        if self._facts is None:
            raise BrokenError("no boot has reported its facts yet")
        same, sentence = same_kernel(host, self._facts)
        return {
            "guest": self._facts,
            "binaries": self._proof.binaries(),
            "same_kernel": same,
            "kernel_sentence": sentence,
        }
