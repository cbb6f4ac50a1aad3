"""What a booted guest goes through before it is saved: facts, hashes, counts, warm files."""

from __future__ import annotations

from typing import Any

from labctl.base.channel import Channel
from labctl.base.command import Command
from labctl.base.deadline import Deadline
from labctl.base.errors import BrokenError
from labctl.host.machine_facts import machine_facts, same_kernel
from labctl.run.calibrate import Calibrations
from labctl.run.lab import Lab
from labctl.run.peer import serving
from labctl.run.trial import WINDOW_S
from labctl.study.plan import Plan
from labctl.workloads.failures import last_words
from labctl.workloads.model import Setting
from labctl.workloads.registry import workload


class Settler:
    """Settles each boot; keeps what the first one told of the guest."""

    def __init__(self, lab: Lab, plan: Plan, calibrations: Calibrations) -> None:
        self._lab = lab
        self._plan = plan
        self._calibrations = calibrations
        self._facts: dict[str, Any] | None = None
        self._hashes: dict[str, str] = {}

    def settle(self, channel: Channel, data_path: str) -> None:
        """Done in every boot, so that all are saved in the same state. `data_path`: the data disk
        in that guest."""
        if self._facts is None:
            self._facts = machine_facts(
                lambda paths: channel.read(paths, Deadline.after(30, "the guest's facts"))
            )
            self._hashes = self._hash(channel)
            self._calibrations.count_in_guest(channel)
        # One window of each workload: its files are in the guest's page cache when it is saved,
        # so that no restore waits for them.
        for declared in self._plan.workloads.values():
            program = workload(declared.program)
            setting = Setting(
                parameters=program.check_parameters(declared.parameters),
                vcpus=self._lab.vcpus,
                duration_s=declared.duration_s,
                data_path=data_path,
                peer=self._lab.link.guest.peer if self._lab.link else None,
            )
            with serving(self._lab, program, setting.parameters):
                result = channel.run(program.warmup_command(setting, WINDOW_S, None), seconds=60)
            if result.returncode != 0:
                said = last_words(result.stderr, lines=4)
                raise BrokenError(f"{declared.program} fails in the guest: {said}")

    def facts(self, host: dict[str, Any]) -> dict[str, Any]:
        """What run.json says of the guest, and of both sides together.

        Raises BrokenError when a program is not the same file natively and in the guest.
        """
        if self._facts is None:
            raise BrokenError("no boot has told its facts yet")
        binaries = {}
        for program, path in self._lab.source.programs.items():
            native, guest = self._lab.source.hash_elsewhere(program), self._hashes[program]
            if native is None:
                binaries[program] = {"guest": guest}
                continue
            if native != guest:
                raise BrokenError(
                    f"{path} differs between the guest ({guest[:12]}) and the tree that "
                    f"native runs use ({native[:12]})",
                    hint="Build the image again: 'labctl image rm' and 'labctl image build'.",
                )
            binaries[program] = {"native": native, "guest": guest}
        same, sentence = same_kernel(host, self._facts)
        return {
            "guest": self._facts,
            "binaries": binaries,
            "same_kernel": same,
            "kernel_sentence": sentence,
        }

    def _hash(self, channel: Channel) -> dict[str, str]:
        paths = self._lab.source.programs
        result = channel.run(Command(argv=("sha256sum", *paths.values())), seconds=60)
        lines = result.stdout.decode(errors="replace").splitlines()
        hashes = [line.split()[0] for line in lines if line.strip()]
        if result.returncode != 0 or len(hashes) != len(paths):
            raise BrokenError(f"sha256sum fails in the guest: {last_words(result.stderr)}")
        return dict(zip(paths, hashes, strict=True))
