"""Prove that the programs that run are those that were hashed, on both sides (METHOD rule 28)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from labctl.base.channel import Channel
from labctl.base.errors import HostError
from labctl.base.events import Warned
from labctl.base.process import Deadline
from labctl.base.runner_messages import HashedProgram
from labctl.base.tuning import Kind, Tuning
from labctl.base.wording import counted
from labctl.run.guests.bench import tree_channel
from labctl.run.guests.lab import Lab
from labctl.run.planning.conditions import beside_of, neighbours_of
from labctl.store.records.run_record import Hashed, SideHashes
from labctl.study.plan import Plan
from labctl.workloads.registry import workload_of

_HASHING_S = 300.0
"""Timeout for a guest that is emulated on a busy host."""
_SHOWN = 12
"""Digits of a SHA-256 in a sentence; run.json has all of them."""

_MACHINES = {Kind.NATIVE: "the tree that native runs use", Kind.GUEST: "the guest"}
_MISSING = (
    "Bring the file, or what it needs, with --file PATH or a package with --package NAME ('files' "
    "and 'packages' of a workload's file)."
)
_NO_OTHER_SIDE = (
    "The guest's programs are compared only with the run's earlier boots: there is no native side."
)


def of_older_trials(done: int) -> str:
    """Return the note for a run that an older labctl started, if it is resumed after so many
    trials."""
    return (
        f"The run's first {counted(done, 'trial')} were checked less than the others: an "
        "older labctl did not hash libraries and read threads back only before trials."
    )


class Proof:
    """Hold the files of a run's programs, for each time that they were hashed.

    `earlier`: run.json's entry for them (`to_json`), of a resumed run.
    """

    def __init__(self, lab: Lab, plan: Plan, earlier: Hashed | None = None) -> None:
        self._lab = lab
        self._is_one = lab.source.has_native_side
        self._built = {str(r["path"]): str(r["sha256"]) for r in lab.image.binaries.values()}
        guests = {path for w in plan.workloads.values() for path in workload_of(w).binaries}
        beside = set(_beside(plan))
        self._paths = {
            Kind.GUEST: sorted(guests),
            Kind.NATIVE: sorted(beside | guests if self._is_one else beside),
        }
        self._files: dict[Kind, dict[str, str]] = {}
        self._checks: dict[Kind, int] = {}
        self._comparing = threading.Lock()
        """Two guests that boot at once are hashed at once."""
        for kind in _MACHINES:
            told: SideHashes | None = getattr(earlier, str(kind), None)
            self._files[kind] = dict(told.files) if told else {}
            self._checks[kind] = told.checks if told else 0
        self._programs: dict[Kind, dict[str, HashedProgram]] = {kind: {} for kind in _MACHINES}
        self._unproven = [] if self._is_one else [_NO_OTHER_SIDE]
        images = earlier.images if earlier else {}
        self._others = {
            name: Proof(other, plan, images.get(name)) for name, other in lab.other_images.items()
        }

    def for_arm(self, tuning: Tuning) -> Proof:
        """Return the proof of the image in which a tuning runs."""
        return self._others.get(self._lab.for_arm(tuning).image.name, self)

    def check_tree(self) -> None:
        """Hash all programs of the image in its tree, before any of them runs: neighbours and peers
        run from there as well. Does nothing if none will run; likewise for each other image of the
        run. Raises HostError as `check` does."""
        if self._paths[Kind.NATIVE]:
            with tree_channel(self._lab) as channel:
                self._check(Kind.NATIVE, channel, sorted({*self._paths[Kind.NATIVE], *self._built}))
        for other in self._others.values():
            other.check_tree()

    def check(self, kind: Kind, channel: Channel) -> None:
        """Hash the programs of the run's workloads on this machine, before its first trial.

        Raises HostError if a file differs from the image's build, from an earlier one in the run,
        or from the other side.
        """
        self._check(kind, channel, self._paths[kind])

    def to_json(self) -> dict[str, object]:
        """Return its entry in run.json: by side how often its files were hashed, and each file's
        SHA-256; what could not be proven, in sentences; and the same of each other image."""
        sides = {
            str(kind): {"checks": checks, "files": dict(sorted(self._files[kind].items()))}
            for kind, checks in self._checks.items()
            if checks
        }
        images = {name: other.to_json() for name, other in self._others.items()}
        return {
            **sides,
            "unproven": list(self._unproven),
            **({"images": images} if images else {}),
        }

    def binaries(self) -> dict[str, dict[str, str]]:
        """Return the SHA-256 of each program that guests ran, without its libraries, by name (by
        path where several have that name) and side."""
        paths = {program.path for program in self._programs[Kind.GUEST].values()}
        named = Counter(PurePosixPath(path).name for path in paths)
        return {
            name if named[name := PurePosixPath(path).name] == 1 else path: {
                str(kind): files[path] for kind, files in self._files.items() if path in files
            }
            for path in paths
        }

    def _check(self, kind: Kind, channel: Channel, paths: Sequence[str]) -> None:
        deadline = Deadline.after(_HASHING_S, f"hashing the programs in {_MACHINES[kind]}")
        programs = channel.hashes(paths, deadline)
        with self._comparing:
            self._compare(kind, programs, paths)

    def _compare(
        self, kind: Kind, programs: Mapping[str, HashedProgram], paths: Sequence[str]
    ) -> None:
        for path, program in programs.items():
            if program.problem is not None:
                self._cannot_hash(kind, path, program.problem)
                continue
            if kind is Kind.NATIVE:
                self._hold_to_build(program.path, program.files[program.path])
            if path in paths and path not in self._paths[kind]:
                continue  # the image has it, and this run does not use it
            self._hold_to_earlier(kind, path, program)
            if program.is_script:
                self._say(
                    f"{path} is a script in {_MACHINES[kind]}: the programs that it starts are "
                    "not hashed."
                )
            self._files[kind] |= program.files
            self._programs[kind][path] = program
            self._hold_to_other_side(path)
        self._checks[kind] += 1

    def _cannot_hash(self, kind: Kind, path: str, problem: str) -> None:
        said = f"cannot hash {path} in {_MACHINES[kind]}: {problem}"
        if self._is_one or kind is Kind.NATIVE:
            hint = self._hint if path in self._built else _MISSING
            raise HostError(said, hint=hint)
        self._say(f"{said[0].upper()}{said[1:]}")

    def _say(self, text: str) -> None:
        if text not in self._unproven:
            self._unproven.append(text)
            self._lab.listener(Warned(text=text))

    def _hold_to_build(self, path: str, found: str) -> None:
        built = self._built.get(path, found)
        if found != built:
            raise HostError(
                f"{path} in {_MACHINES[Kind.NATIVE]} is not the file that the image was "
                f"built with (SHA-256 {found[:_SHOWN]}, built {built[:_SHOWN]})",
                hint=self._hint,
            )

    def _hold_to_earlier(self, kind: Kind, path: str, program: HashedProgram) -> None:
        if path in self._programs[kind]:
            before = self._programs[kind][path].files
        else:  # in a resumed run the files are known, but not which program used which
            known = self._files[kind]
            before = {name: known.get(name, digest) for name, digest in program.files.items()}
        if differs := _difference((before, "earlier in the run"), (program.files, "now")):
            raise HostError(f"{path} in {_MACHINES[kind]} changed: {differs}", hint=self._hint)

    def _hold_to_other_side(self, path: str) -> None:
        native, guest = (self._programs[kind].get(path) for kind in (Kind.NATIVE, Kind.GUEST))
        if not self._is_one or native is None or guest is None:
            return
        if differs := _difference((native.files, "natively"), (guest.files, "in the guest")):
            raise HostError(f"{path} differs between the two sides: {differs}", hint=self._hint)

    @property
    def _hint(self) -> str:
        if self._is_one:
            return "Build the image again: 'labctl image rm' and 'labctl image build'."
        return "Start a new run: the program changed during this one."


def _beside(plan: Plan) -> Iterator[str]:
    """Yield the programs that run from the tree beside any machine."""
    for one in neighbours_of(plan):
        yield from beside_of(one).binaries
    for declared in plan.workloads.values():
        program = workload_of(declared)
        parameters = program.check_parameters(declared.parameters)
        for served in (program.peer(parameters), program.competitor(parameters)):
            if served is not None:
                yield served.command.argv[0]


def _difference(one: tuple[Mapping[str, str], str], other: tuple[Mapping[str, str], str]) -> str:
    """Return the first file in which two listings differ; empty if they do not."""
    (ours, here), (theirs, there) = one, other
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            return f"{name} is {_said(ours, name)} {here} and {_said(theirs, name)} {there}"
    return ""


def _said(files: Mapping[str, str], name: str) -> str:
    return f"SHA-256 {files[name][:_SHOWN]}" if name in files else "not used"
