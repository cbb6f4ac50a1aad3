"""Run every feature of labctl once on this host, and bundle the tools' output."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import shutil
import tarfile
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import labctl
from labctl.base.errors import LabctlError, UsageError
from labctl.base.events import Listener, Note
from labctl.base.json import parse_json
from labctl.base.paths import StatePaths, shipped_data
from labctl.host.accelerator import Accelerator, Requested
from labctl.host.facts import host_facts, read_identity
from labctl.run.commands.host_record import ToolOutput, kernel_files, tool_output, tool_outputs
from labctl.run.commands.scrub import Scrubber, is_json
from labctl.run.commands.sweep import last_begun, sweep
from labctl.run.guests.base_guest import guest_base
from labctl.run.guests.bench import Bench, fresh_bench
from labctl.run.guests.lab_opening import open_lab
from labctl.run.guests.leftovers import alone
from labctl.run.planning.host import not_here, restorable
from labctl.run.planning.images import accelerator_of, recipe_asked_for
from labctl.run.planning.plan import plan_sweep
from labctl.run.planning.planned import SweepRequest
from labctl.store.jsonfile import write_output
from labctl.store.run_folder import LoadedRun, RunFolder
from labctl.store.samples import Sample
from labctl.store.trial import TrialStatus
from labctl.study.load_study import Overrides, load_study
from labctl.workloads.registry import checkers, workload_of
from labctl.workloads.setting import Setting

# Record the output of the host's tools about a guest under load, above all its VM exits by reason.
#
# Output from a host with hardware KVM was not recorded yet. Its parsers are `collect.exits.perf`
# and `collect.counters.perf`.


_LOOK_S = "2"
"""Time for which each tool observes."""

_BUSY_S = 30.0
"""Time for which the guest works meanwhile: longer than all tools together."""


def live_outputs(
    request: SweepRequest, accelerator: str, listener: Listener
) -> dict[str, ToolOutput]:
    """Return by name each tool's output about a booted baseline that runs the first workload of a
    request. `accelerator`: the guests'.

    Raises what booting a guest raises.
    """
    listener(Note(text="A guest runs work while tools observe it from the host."))
    places = request.places
    planned = plan_sweep(replace(request, overrides=Overrides(tunings=())), accelerator)
    with ExitStack() as stack:
        stack.enter_context(alone(places, listener, "labctl selftest", request.results))
        base = guest_base(planned, places, request.accel, listener)
        lab = stack.enter_context(open_lab(places, planned, base, listener=listener))
        baseline = planned.tunings[planned.plan.roles.baseline]
        bench = stack.enter_context(fresh_bench(lab, baseline))
        declared = next(iter(planned.plan.workloads.values()))
        program = workload_of(declared)
        setting = Setting(
            parameters=program.check_parameters(declared.parameters),
            vcpus=lab.vcpus,
            duration_s=_BUSY_S,
            data_paths=bench.data_paths,
        )
        command = program.command(setting)
        with (
            bench.channel.serving(program.servers(setting)),
            bench.channel.prepared(command, seconds=2 * _BUSY_S) as execution,
        ):
            execution.go()
            return _looked_at(bench, lab.work)


def _looked_at(bench: Bench, folder: Path) -> dict[str, ToolOutput]:
    pid = str(bench.threads()[0].pid)
    threads = ",".join(map(str, bench.vcpu_tids))
    data = str(folder / "perf-kvm.data")
    counting = ("perf", "stat", "--json-output", "--event")
    asked: dict[str, tuple[str, ...]] = {
        "perf-kvm-record": (
            *("perf", "kvm", "stat", "record", "-p", pid, "-o", data, "sleep", _LOOK_S),
        ),
        "perf-kvm-report": ("perf", "kvm", "-i", data, "stat", "report"),
        "perf-stat-kvm": (*counting, "kvm:*", "--pid", pid, "sleep", _LOOK_S),
        "perf-stat-vcpus": (
            *counting,
            "cycles:G,instructions:G,cycles:uG,instructions:uG,cycles:H",
            *("--tid", threads, "sleep", _LOOK_S),
        ),
    }
    # In this order: a report is made from its record.
    return {name: tool_output(argv) for name, argv in asked.items()}


# Derive the claims that a self-test proves from its run. Pure.


RAN, FAILED, NOT_HERE = "ran", "failed", "not here"

_NO_RUN = "no valid trial"

_CLAIMS = (
    ("native-pmu", "hardware counters of native runs", "native", "ipc{source=pmu}"),
    ("guest-pmu", "hardware counters of guests", "guest", "ipc{source=pmu}"),
    ("exits", "VM exits", "guest", "exits"),
    ("halt-poll", "halt polling", "guest", "halt_poll"),
    ("steal", "steal as guests see it", "guest", "steal"),
)
"""Machines that prove a claim, in words, and the metric that proves it."""

_OF_PMU = ("native-pmu", "guest-pmu")
"""Claims that depend on the PMU; all others depend on KVM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Hold a claim that a host with KVM and a PMU can prove; `why`: the reason for its outcome."""

    name: str
    what: str
    shown: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningResult:
    """Hold a tuning's result. `state`: RAN, FAILED, or NOT_HERE if the host does not support it;
    `why` of the last two."""

    name: str
    state: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SelftestResult:
    """Result of a self-test. `failure`: what ended the trials early, "" if nothing did."""

    accelerator: Accelerator
    claims: tuple[Claim, ...]
    tunings: tuple[TuningResult, ...]
    failure: str

    @property
    def failed(self) -> bool:
        """Return whether something failed that this host supports."""
        return bool(self.failure) or any(tuning.state == FAILED for tuning in self.tunings)

    @property
    def verifies_kvm(self) -> bool:
        """Return whether everything under KVM worked, apart from the PMU's counters."""
        return self._shows(claim for claim in self.claims if claim.name not in _OF_PMU)

    @property
    def verifies_pmu(self) -> bool:
        """Return whether hardware counters worked natively and in guests under KVM."""
        return self._shows(claim for claim in self.claims if claim.name in ("kvm", *_OF_PMU))

    @property
    def verifies_all(self) -> bool:
        """Return whether it proves KVM and the PMU, and so all of labctl's claims about
        hardware."""
        return self.verifies_kvm and self.verifies_pmu

    @property
    def label(self) -> str:
        """Return the bundle's label: what it proves."""
        if self.verifies_all:
            return "KVM and a PMU work here, and everything in labctl that needs them ran."
        missing = ", ".join(claim.what for claim in self.claims if not claim.shown)
        if self.accelerator.name == "tcg":
            return f"Guests were emulated (accelerator tcg), so this does not test {missing}."
        if missing:
            return f"Guests ran under KVM, but this does not test {missing}."
        return "Guests ran under KVM, but not everything that this host supports worked."

    def to_json(self) -> dict[str, object]:
        return {
            "accelerator": self.accelerator.name,
            "accelerator_reason": self.accelerator.reason,
            "label": self.label,
            "verifies_kvm": self.verifies_kvm,
            "verifies_pmu": self.verifies_pmu,
            "claims": [asdict(claim) for claim in self.claims],
            "tunings": [asdict(tuning) for tuning in self.tunings],
            "failure": self.failure,
        }

    def _shows(self, claims: Iterable[Claim]) -> bool:
        return not self.failed and all(claim.shown for claim in claims)


def outcome(
    accelerator: Accelerator,
    names: Collection[str],
    lacking: Mapping[str, str],
    run: LoadedRun,
    failure: str,
) -> SelftestResult:
    """Return the result of the run of these tunings; `lacking`: those that the host does not
    support, and why."""
    return SelftestResult(
        accelerator=accelerator,
        claims=tuple(_claims(accelerator, run)),
        tunings=tuple(_result(name, lacking, run) for name in names),
        failure=failure,
    )


def _claims(accelerator: Accelerator, run: LoadedRun) -> Iterator[Claim]:
    is_kvm = accelerator.name == "kvm"
    yield Claim(name="kvm", what="guests under KVM", shown=is_kvm, why=accelerator.reason)
    for name, what, kind, metric in _CLAIMS:
        missing = _why_missing(run, kind, metric)
        why = "measured in every trial" if missing is None else missing
        yield Claim(name=name, what=what, shown=missing is None, why=why)


def _why_missing(run: LoadedRun, kind: str, metric: str) -> str | None:
    """Return why a metric is not in every valid trial of a kind of machine; None if it is."""
    valid = [
        trial.readings
        for trial in run.trials
        if trial.record.status is TrialStatus.DONE and trial.record.parsed_with.get("kind") == kind
    ]
    for readings in valid:
        measured = {key for r in readings if isinstance(r, Sample) for key in (r.key, r.metric)}
        if metric not in measured:
            reasons = (
                r.reason for r in readings if not isinstance(r, Sample) and r.metric == metric
            )
            return next(reasons, "not measured")
    return None if valid else _NO_RUN


def unavailable(run: LoadedRun) -> dict[str, dict[str, str]]:
    """Return by kind of machine ("guest", "native") every unavailable metric, and why."""
    found: dict[str, dict[str, str]] = {}
    for trial in run.trials:
        kind = str(trial.record.parsed_with.get("kind", "unknown"))
        for reading in trial.readings:
            if not isinstance(reading, Sample):
                found.setdefault(kind, {})[reading.metric] = reading.reason
    return found


def _result(name: str, lacking: Mapping[str, str], run: LoadedRun) -> TuningResult:
    """Return the tunings that ran: each trial that was tried has a valid attempt."""
    if name in lacking:
        return TuningResult(name=name, state=NOT_HERE, why=lacking[name])
    tried = [trial.record for trial in run.trials if trial.record.cell.get("tuning") == name]
    done = {record.number for record in tried if record.status is TrialStatus.DONE}
    failed = [record for record in tried if record.number not in done]
    if tried and not failed:
        return TuningResult(name=name, state=RAN, why="")
    why = "; ".join(failed[-1].reasons) if failed else _NO_RUN
    return TuningResult(name=name, state=FAILED, why=why)


# Bundle the files of a self-test, without what identifies the host.
#
# A bundle is files and a manifest with the SHA-256 of each, in one tar.xz.


MANIFEST = "manifest.json"
FOLDER = "labctl-selftest"
SCHEMA = 1
_LARGEST_BYTES = 1 << 30
"""Limit on an unpacked bundle: real ones are smaller, and a malicious one may try to fill a
disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Report on a bundle. `taken_out`: how many identifying texts of each kind were removed."""

    files: int
    taken_out: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Bundle:
    manifest: Mapping[str, object]
    files: Mapping[str, bytes]


def pack(
    target: Path,
    shown: SelftestResult,
    folder: RunFolder,
    outputs: Mapping[str, ToolOutput],
    places: StatePaths,
    results: Path,
) -> Packed:
    """Write to `target` the bundle of a run, of the tools' output and of the kernel's files."""
    files = {f"run/{name}": data for name, data in _contents(folder.path).items()}
    files |= {f"tools/{name}.txt": output.text.encode() for name, output in outputs.items()}
    files |= {f"kernel/{name}": data for name, data in kernel_files().items()}
    scrubber = Scrubber(read_identity(), _paths(places, results))
    files = {
        name: scrubber.scrubbed(data, is_json=is_json(name, data)) for name, data in files.items()
    }
    tools = {name: output.to_json() for name, output in outputs.items()}
    manifest = _manifest(shown, folder.load(), host_facts(places), tools)
    manifest = json.loads(scrubber.scrubbed(json.dumps(manifest).encode(), is_json=True))
    taken_out = dict(scrubber.taken_out)
    write_bundle(target, {**manifest, "taken_out": taken_out}, files)
    return Packed(files=len(read_bundle(target).files), taken_out=taken_out)


def _contents(folder: Path) -> dict[str, bytes]:
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def _paths(places: StatePaths, results: Path) -> dict[str, str]:
    """Return folders that may hold a user's name, mapped to their placeholders."""
    own = {
        str(results): "/var/lib/labctl/selftest",
        str(places.root): "/var/lib/labctl",
        str(shipped_data()): "/usr/share/labctl",
        str(Path.home()): "/root",
    }
    return {old: new for old, new in own.items() if old != "/"}


def _manifest(
    shown: SelftestResult, run: LoadedRun, facts: Mapping[str, object], tools: Mapping[str, object]
) -> dict[str, object]:
    """Write the manifest, without `boot_id`, which belongs to this boot alone."""
    return {
        "labctl": labctl.__version__,
        "made_on": datetime.now(UTC).date().isoformat(),
        **shown.to_json(),
        "unavailable": unavailable(run),
        "host": {key: value for key, value in facts.items() if key != "boot_id"},
        "tools": tools,
    }


def write_bundle(target: Path, manifest: Mapping[str, object], files: Mapping[str, bytes]) -> None:
    """Write both to a tar.xz at `target`; the manifest gets the files' digests and sizes.

    Raises HostError if it cannot be written.
    """
    listed = {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        for name, data in sorted(files.items())
    }
    text = json.dumps({"schema": SCHEMA, **manifest, "files": listed}, indent=1, ensure_ascii=False)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as tar:
        for name, data in {MANIFEST: (text + "\n").encode(), **dict(sorted(files.items()))}.items():
            # No owner and no times: they would identify who made it.
            entry = tarfile.TarInfo(f"{FOLDER}/{name}")
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))
    write_output(target, packed.getvalue())


def read_bundle(path: Path) -> Bundle:
    """Return the bundle at `path`, each file checked against the manifest.

    Raises UsageError if it is not a bundle, is cut off, or was altered.
    """
    try:
        files = _unpacked(path)
    except (OSError, tarfile.TarError, lzma.LZMAError, EOFError, ValueError) as error:
        raise UsageError(f"{path} is not a bundle of 'labctl selftest': {error}") from error
    try:
        manifest = parse_json(files.pop(MANIFEST))
        listed = {name: entry["sha256"] for name, entry in manifest["files"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{path} has no readable {MANIFEST}: {error!r}") from error
    found = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    if differing := sorted(n for n in found | listed if found.get(n) != listed.get(n)):
        raise UsageError(
            f"{path} was changed: {', '.join(differing[:5])}",
            hint="Get it again: 'labctl selftest' writes a complete bundle or none.",
        )
    return Bundle(manifest, files)


def _unpacked(path: Path) -> dict[str, bytes]:
    """Unpack into memory, so that no name in it can lead outside a folder."""
    files: dict[str, bytes] = {}
    left = _LARGEST_BYTES
    with tarfile.open(path, mode="r:xz") as tar:
        for entry in tar:
            data = tar.extractfile(entry)
            left -= entry.size
            if data is None or left < 0 or not entry.name.startswith(f"{FOLDER}/"):
                raise ValueError(f"it holds '{entry.name[:80]}'")
            files[entry.name.removeprefix(f"{FOLDER}/")] = data.read()
    return files


STUDY = "selftest"
SEED = 1
"""Fixed seed, so that a self-test repeats itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """Report on a self-test. `taken_out`: how many identifying texts of each kind were removed."""

    outcome: SelftestResult
    bundle: Path
    files: int
    taken_out: Mapping[str, int]
    seconds: float

    def to_json(self) -> dict[str, object]:
        return {
            "bundle": str(self.bundle),
            "files": self.files,
            "taken_out": dict(self.taken_out),
            "seconds": round(self.seconds, 1),
            **self.outcome.to_json(),
        }


def selftest(
    places: StatePaths,
    target: Path | None,
    listener: Listener,
    *,
    accel: Requested = "auto",
    only: Collection[str] = (),
) -> SelfTest:
    """Run the study `selftest` with every restorable tuning (or `only` these) and bundle it.

    `target`: the bundle's path; None: a generated name in the current folder. Raises UsageError for
    a tuning that is unknown or cannot be restored; what `sweep` raises before its first trial. A
    run that ends early later is bundled as far as it got.
    """
    started = datetime.now(UTC)
    names = restorable(only)
    study = load_study(STUDY, programs=checkers())
    recipe = recipe_asked_for(study.guest.image, None, None)
    chosen = accelerator_of(recipe, places, accel, listener)
    target = target or Path(f"labctl-selftest-{chosen.name}-{started:%Y%m%dT%H%M%SZ}.tar.xz")
    lacking = not_here(names, study.guest, chosen.name)
    with _folder_of_its_own(places) as results:
        request = SweepRequest(
            study=STUDY,
            places=places,
            results=results,
            overrides=Overrides(tunings=[name for name in names if name not in lacking]),
            seed=SEED,
            accel=accel,
        )
        failure = ""
        try:
            folder = sweep(request, listener)
        except LabctlError as error:
            if (begun := last_begun(results)) is None:
                raise
            folder, failure = begun, error.message
        run = folder.load()
        outputs = tool_outputs()
        if not failure:
            try:
                outputs |= live_outputs(request, chosen.name, listener)
            except LabctlError as error:
                failure = error.message
        shown = outcome(chosen, names, lacking, run, failure)
        packed = pack(target, shown, folder, outputs, places, results)
    return SelfTest(
        outcome=shown,
        bundle=target,
        files=packed.files,
        taken_out=packed.taken_out,
        seconds=(datetime.now(UTC) - started).total_seconds(),
    )


@contextmanager
def _folder_of_its_own(places: StatePaths) -> Iterator[Path]:
    """Make a folder for the run, apart from the user's own results."""
    places.root.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="selftest-", dir=places.root))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
