"""Define run.json: how a run was made, from what, and its results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from labctl.store.exit_prices import PriceList
from labctl.store.records.plan_record import BuildFile, PlannedTrial
from labctl.store.records.tolerant import Flag, Number, Record, Text, Whole

_EMULATED_CPU = "QEMU TCG CPU"
"""Beginning of a CPU's model if QEMU's TCG emulates the newest that it can."""


class PinChoice(Record):
    """Define the threads that a tuning pins: "plan", or CPUs of its own."""

    strategy: Text | None = None
    vcpus: Any = None
    emulator: Any = None
    vhost: Any = None
    iothreads: Any = None
    partition: Text | None = None


class RecordedNeeds(Record):
    """Hold a tuning's requirements of its host; keys that no advice uses are kept beside."""

    command_line: tuple[Text, ...] = ()
    """Words of the host kernel's command line."""


class RecordedGuest(Record):
    """Hold what a tuning sets up inside the guest. `sysfs`: path to value."""

    tuned: Text | None = None
    elevator: Text | None = None
    sysfs: dict[str, Text] = {}


class RecordedTuning(Record):
    """Hold a tuning as it was resolved; its requests to libvirt's XML are kept in further keys."""

    kind: Text | None = None
    risks: tuple[Text, ...] = ()
    requires: RecordedNeeds = RecordedNeeds()
    pin: PinChoice = PinChoice()
    vcpu_sched: dict[str, object] | None = None
    """Policy and priority of the vCPU threads."""
    vcpu_slice_ms: Number | None = None
    nice: Whole | None = None
    cpu_weight: Whole | None = None
    iothreads: Any = None
    disk: dict[str, Any] = {}
    host: dict[str, Any] = {}
    """Setting of each knob on the host while the tuning is in force."""
    guest: RecordedGuest = RecordedGuest()


class PinCore(Record):
    core: Whole
    cpus: dict[str, tuple[Text, ...]]
    """Threads by CPU."""


class PinGroup(Record):
    title: Text = ""
    cores: tuple[PinCore, ...]
    free: Text = ""


class PinData(Record):
    """Hold the pin plan's CPUs as CPU lists."""

    strategy: Text | None = None
    vcpus: dict[str, Whole] = {}
    emulator: Text | None = None
    iothreads: dict[str, Text] = {}
    housekeeping: Text | None = None
    usable: Text | None = None
    online: Text | None = None


class RecordedPins(Record):
    """Hold a pin plan; `layout` is the picture on a page."""

    picture: Text = ""
    reasons: tuple[Text, ...] = ()
    data: PinData = PinData()
    layout: tuple[PinGroup, ...] = ()


class ImageUsed(Record):
    name: Text
    digest: Text


class DomainUsed(Record):
    """Name the administrator's domain that guests copy. `asked`: its name or file as given."""

    name: Text | None = None
    asked: Text
    keep_network: Flag = False
    digest: Text | None = None


class KernelUsed(Record):
    file: Text
    initrd: Text | None = None
    release: Text | None = None
    modules: Text | None = None
    sha256: dict[str, Text]


class QemuUser(Record):
    name: Text
    why_root: tuple[Text, ...] = ()


class SideHashes(Record):
    """Hold the SHA-256 of files that ran on one side, and how often they were hashed."""

    checks: Whole
    files: dict[str, Text]


class Hashed(Record):
    native: SideHashes | None = None
    guest: SideHashes | None = None
    unproven: tuple[Text, ...] = ()
    images: dict[str, Hashed] = {}
    """Files of arms in another image, by its name."""


class Calibrated(Record):
    """Hold the number of instructions per operation of a workload."""

    workload: Text | None = None
    second_method: Text | None = None
    bound: Number | None = None


class RestoreShown(Record):
    tuning: Text
    workload: Text
    condition: Text
    run: Text


class RecordedCost(Record):
    """Hold the known cost of collecting when the run began (`store/collecting_costs.py`)."""

    level: Text | None = None
    side: Text
    workload: Text
    estimate: Number
    low: Number | None = None
    high: Number | None = None
    labctl_cpu: Number | None = None
    pairs: Whole | None = None
    seconds: Number | None = None
    measured_at: Text | None = None


class Extended(Record):
    """Hold when and by which command blocks were added."""

    at: Text
    command: Text


class AdviceVerified(Record):
    """Name the run whose advice is measured again, and the tuning of the advice. `evidence`: the
    digest of that run's measurements; None in runs of older versions."""

    run: Text
    tuning: Text
    evidence: Text | None = None


class TrialCounts(Record):
    """Count the trials planned (as far as the run went) and done, and invalid attempts."""

    planned: Whole
    done: Whole
    invalid: Whole


class Stopped(Record):
    """Hold the number of blocks after which the plan's rule ended the run."""

    blocks: Whole
    why: Text


class LeftOut(Record):
    """Name a cell that a look took out of the run. `every`: it runs in each block of so many; 0: in
    none."""

    tuning: Text
    workload: Text
    condition: Text
    every: Whole = 0


class LookTaken(Record):
    """Say what a look after so many blocks left out of the blocks after it."""

    blocks: Whole
    left_out: tuple[LeftOut, ...] = ()

    def leaves_out(self, trial: PlannedTrial) -> bool:
        """Return whether a planned trial doesn't run because of this look."""
        later = trial.block - self.blocks
        return later > 0 and any(
            one.every == 0 or later % one.every != 0 for one in self._of_cell(trial)
        )

    def ends(self, trial: PlannedTrial) -> bool:
        """Return whether no trial of this one's cell runs after the look."""
        return any(one.every == 0 for one in self._of_cell(trial))

    def _of_cell(self, trial: PlannedTrial) -> list[LeftOut]:
        cell = tuple(map(trial.cell.get, ("tuning", "workload", "condition")))
        return [one for one in self.left_out if (one.tuning, one.workload, one.condition) == cell]


def still_to_run(
    trials: Iterable[PlannedTrial], looks: Sequence[LookTaken]
) -> tuple[PlannedTrial, ...]:
    """Return the planned trials that none of the looks took out of the run."""
    if not looks:
        return tuple(trials)
    return tuple(t for t in trials if not any(look.leaves_out(t) for look in looks))


class RedactedCopy(Record):
    at: Text
    labctl: Text
    taken_out: dict[str, Whole]
    left_out: Whole


class ImportedFrom(Record):
    file: Text
    sha256: Text | None = None
    rows: Whole | None = None


class RunRecord(Record):
    """Hold run.json. Facts of host and guest stay as found, by name."""

    labctl: Text | None = None
    started_at: Text | None = None
    command: Text | None = None
    study: Text | None = None
    title: Text | None = None
    seed: Whole | None = None
    connection: Text | None = None
    quick: Flag | None = None
    collect: Text | None = None
    vcpus: Whole | None = None
    memory_mib: Whole | None = None
    data_disk_bytes: Whole | None = None
    skipped: dict[str, Text] = {}
    warnings: tuple[Text, ...] = ()
    notes: tuple[Text, ...] = ()
    verifies: AdviceVerified | None = None
    domain: DomainUsed | None = None
    kernel: KernelUsed | None = None
    builds: dict[str, BuildFile] = {}
    """QEMU binaries, kernels and initrds of tunings, by path."""
    tunings: dict[str, RecordedTuning] = {}
    pin_plan: RecordedPins | None = None
    """Pin plan of the default strategy."""
    pin_plans: dict[str, RecordedPins] = {}
    """Pin plans of other strategies."""
    status: Text | None = None
    ended_at: Text | None = None
    extended: tuple[Extended, ...] = ()
    failure: Text | None = None
    accelerator: Text | None = None
    accelerator_reason: Text | None = None
    qemu_user: QemuUser | None = None
    host: dict[str, Any] = {}
    image: ImageUsed | None = None
    images: dict[str, ImageUsed] = {}
    """Images of tunings that run in another one."""
    xml: dict[str, Text] = {}
    """File of each tuning's domain XML."""
    guest: dict[str, Any] = {}
    binaries: dict[str, dict[str, Text | None]] = {}
    same_kernel: Flag | None = None
    kernel_sentence: Text | None = None
    hashed: Hashed | None = None
    """Files that ran; None for a run by an older labctl."""
    calibration: tuple[Calibrated, ...] = ()
    fresh_boots: Flag | None = None
    restored_state: Flag | None = None
    restores_shown: tuple[RestoreShown, ...] | None = None
    collecting_costs: tuple[RecordedCost, ...] | None = None
    exit_prices: PriceList | None = None
    waited_for_quiet_s: Number | None = None
    stopped: Stopped | None = None
    looks: tuple[LookTaken, ...] = ()
    """Looks that the run went on after, in order."""
    trials: TrialCounts | None = None
    boot_seconds: dict[str, Number] = {}
    redacted: RedactedCopy | None = None
    imported: ImportedFrom | None = None

    @property
    def has_begun(self) -> bool:
        """Return whether the run has got as far as recording its host's facts."""
        return "host" in self.model_fields_set

    @property
    def host_is_emulated(self) -> bool:
        """Return whether the host's own CPUs are QEMU's TCG: its counts are real, and its times are
        the emulation's."""
        return str(self.host.get("cpu_model")).startswith(_EMULATED_CPU)

    @property
    def is_emulated(self) -> bool:
        """Return whether the guests' instructions were emulated, by their host or with it."""
        return self.accelerator == "tcg" or self.host_is_emulated

    @property
    def where_guests_ran(self) -> str:
        """Return the accelerator in words, with the reason why its figures do not apply
        elsewhere."""
        on = " on an emulated host" if self.host_is_emulated else ""
        return f"{self.accelerator or 'unknown accelerator'}{on}"

    def pins_of(self, strategy: str | None) -> RecordedPins:
        """Return the pin plan of a strategy, or the only one that there is."""
        return self.pin_plans.get(str(strategy)) or self.pin_plan or RecordedPins()

    def without(self, key: str) -> RunRecord:
        """Return the record without that key."""
        content = {name: value for name, value in self.to_json().items() if name != key}
        return RunRecord.model_validate(content)

    def but(self, **changes: Any) -> RunRecord:
        """Return the record with other values, as JSON has them. Raises ValueError for an invalid
        value, or a key that is not a field."""
        self.check_keys(changes)
        return RunRecord.model_validate({**self.to_json(), **changes})
