"""What runs is hashed: real programs and real runners, and machines that are made up."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labctl.base.channel import Channel
from labctl.base.errors import HostError
from labctl.base.events import Event
from labctl.base.runner_messages import HashedProgram
from labctl.base.tuning import Kind
from labctl.run.trials import proof as module
from labctl.run.trials.proof import Proof
from labctl.store.records.run_record import Hashed
from tests.unit.runner.runners import running_runner

PROGRAM = "/usr/bin/sysbench"
LIBRARY = "/lib/libluajit.so"
RUNNER = "/usr/bin/python3"
SAME = {PROGRAM: "a" * 64, LIBRARY: "b" * 64}


class Machine:
    """A machine whose programs' files are made up."""

    def __init__(self, programs: Mapping[str, HashedProgram]) -> None:
        self.programs = programs

    def hashes(self, paths: list[str], deadline: Any) -> dict[str, HashedProgram]:
        python = HashedProgram(files={RUNNER: "c" * 64})
        return {RUNNER: python} | {path: self.programs[path] for path in paths}


def machine(files: Mapping[str, str] = SAME, **fields: Any) -> Any:
    return Machine({PROGRAM: HashedProgram(files=files, **fields)})


@pytest.fixture
def said() -> list[Event]:
    return []


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, said: list[Event]) -> Any:
    """Makes the proof of a run of one workload. `built`: program to its digest in the manifest."""

    def made(
        program: str = PROGRAM,
        *,
        built: Mapping[str, str] | None = None,
        own_vm: bool = False,
        earlier: Any = None,
        conditions: tuple[str, ...] = ("quiet",),
        peer: str | None = None,
    ) -> Proof:
        serves = peer and SimpleNamespace(command=SimpleNamespace(argv=(peer, "--server")))
        workload = SimpleNamespace(
            binaries=(program,),
            check_parameters=dict,
            peer=lambda parameters: serves,
            competitor=lambda parameters: None,
        )
        monkeypatch.setattr(module, "workload_of", lambda _: workload)
        records = {p: {"path": p, "sha256": digest} for p, digest in (built or {}).items()}
        lab: Any = SimpleNamespace(
            source=SimpleNamespace(has_native_side=not own_vm),
            image=SimpleNamespace(binaries=records),
            other_images={},
            listener=said.append,
        )
        workloads = {"it": SimpleNamespace(program="it", parameters={})}
        plan: Any = SimpleNamespace(workloads=workloads, conditions=conditions, neighbours={})
        known = earlier and Hashed.model_validate(earlier)
        return Proof(lab, plan, known)

    return made


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """A program and a library of this host's, copied to where the loader finds them first."""
    program = tmp_path / "ls"
    shutil.copy("/bin/ls", program)
    listed = subprocess.run(["ldd", "/bin/ls"], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"=> (/\S+)", listed)
    copied = tmp_path / Path(found[0]).name
    shutil.copy(found[0], copied)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    return {"program": program, "library": copied}


@pytest.fixture
def runner(real: dict[str, Path]) -> Iterator[Channel]:
    with running_runner() as found:
        yield found.channel


def append_a_byte(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0")


def test_the_same_files_on_both_sides_are_proof(make: Any, said: list[Event]) -> None:
    proof = make(built={PROGRAM: "a" * 64})
    for kind in (Kind.NATIVE, Kind.GUEST, Kind.GUEST):
        proof.check(kind, machine())
    told = proof.to_json()
    assert told["unproven"] == said == []
    assert [told[side]["checks"] for side in ("native", "guest")] == [1, 2]
    assert told["native"]["files"] == told["guest"]["files"] == SAME | {RUNNER: "c" * 64}
    assert proof.binaries()["sysbench"] == {"native": "a" * 64, "guest": "a" * 64}


@pytest.mark.parametrize("which", ["program", "library"])
def test_a_byte_appended_on_one_side_ends_the_run(
    make: Any, real: dict[str, Path], runner: Channel, which: str
) -> None:
    proof = make(str(real["program"]))
    proof.check(Kind.NATIVE, runner)
    append_a_byte(real[which])
    with pytest.raises(HostError, match="differs between the two sides") as caught:
        proof.check(Kind.GUEST, runner)
    (one, other) = re.findall(r"SHA-256 ([0-9a-f]{12})", caught.value.message)
    assert one != other
    assert str(real[which]) in caught.value.message
    assert "labctl image build" in str(caught.value.hint)


@pytest.mark.parametrize("which", ["program", "library"])
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_byte_appended_between_two_set_ups_ends_the_run(
    make: Any, real: dict[str, Path], runner: Channel, which: str, goes_on: bool
) -> None:
    proof = make(str(real["program"]))
    proof.check(Kind.NATIVE, runner)
    append_a_byte(real[which])
    if goes_on:
        proof = make(str(real["program"]), earlier=proof.to_json())
    with pytest.raises(HostError, match="earlier in the run and SHA-256 .* now") as caught:
        proof.check(Kind.NATIVE, runner)
    assert str(real[which]) in caught.value.message


def test_a_tree_that_is_not_what_was_built_ends_the_run(make: Any) -> None:
    proof = make(built={PROGRAM: "0" * 64})
    with pytest.raises(HostError, match="built with .SHA-256 aaaaaaaaaaaa, built 000000000000"):
        proof.check(Kind.NATIVE, machine())


def test_a_changed_program_that_no_workload_runs_is_noticed_at_the_start(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hog = "/usr/bin/stress-ng"
    proof = make(built={PROGRAM: "a" * 64, hog: "0" * 64})
    tree = Machine({path: HashedProgram(files={path: "a" * 64}) for path in (PROGRAM, hog)})
    monkeypatch.setattr(module, "tree_channel", lambda lab: nullcontext(tree))
    with pytest.raises(HostError, match=f"{hog} in the tree that native runs use"):
        proof.check_tree()


def test_another_library_on_one_side_is_a_difference(make: Any) -> None:
    proof = make()
    proof.check(Kind.GUEST, machine())
    faster = "/lib/glibc-hwcaps/x86-64-v3/libluajit.so"
    with pytest.raises(HostError, match=rf"{faster} is SHA-256 bbbbbbbbbbbb natively and not used"):
        proof.check(Kind.NATIVE, machine({PROGRAM: "a" * 64, faster: "b" * 64}))


def test_what_a_script_starts_is_said_to_be_unknown(make: Any, said: list[Event]) -> None:
    proof = make()
    for _ in range(2):
        proof.check(Kind.GUEST, machine(is_script=True))
    (text,) = proof.to_json()["unproven"]
    assert (
        text == f"{PROGRAM} is a script in the guest: the programs that it starts are not hashed."
    )
    assert len(said) == 1


def test_a_program_that_cannot_be_hashed_ends_a_run_that_compares_two_sides(make: Any) -> None:
    with pytest.raises(HostError, match="no loader") as caught:
        make().check(Kind.GUEST, machine({}, problem="no loader"))
    assert "--file PATH" in str(caught.value.hint)
    assert "image rm" not in str(caught.value.hint), "another image would lack it, too"


def test_of_a_vm_of_ones_own_what_cannot_be_proven_is_said(make: Any) -> None:
    proof = make(own_vm=True)
    proof.check(Kind.GUEST, machine({}, problem="no loader"))
    alone, problem = proof.to_json()["unproven"]
    assert "there is no native side" in alone
    assert problem == f"Cannot hash {PROGRAM} in the guest: no loader"


def test_a_vm_of_ones_own_is_held_to_its_earlier_boots(make: Any) -> None:
    proof = make(own_vm=True)
    proof.check(Kind.GUEST, machine())
    with pytest.raises(HostError, match="changed") as caught:
        proof.check(Kind.GUEST, machine({**SAME, LIBRARY: "d" * 64}))
    assert "start a new run" in str(caught.value.hint).lower()


@pytest.mark.parametrize(
    "beside", [{"conditions": ("quiet", "neighbour")}, {"peer": "/usr/bin/stress-ng"}]
)
def test_what_runs_beside_a_vm_of_ones_own_is_held_to_the_images_build(
    make: Any, monkeypatch: pytest.MonkeyPatch, beside: dict[str, Any]
) -> None:
    program = "/usr/bin/stress-ng"
    tree = Machine({program: HashedProgram(files={program: "a" * 64})})
    monkeypatch.setattr(module, "tree_channel", lambda lab: nullcontext(tree))
    proof = make(own_vm=True, built={program: "a" * 64}, **beside)
    proof.check_tree()
    assert proof.to_json()["native"]["files"][program] == "a" * 64
    with pytest.raises(HostError, match="is not the file that the image was built with"):
        make(own_vm=True, built={program: "0" * 64}, **beside).check_tree()


def test_where_nothing_of_the_tree_runs_none_of_it_is_hashed(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "tree_channel", lambda lab: pytest.fail("the tree was opened"))
    proof = make(own_vm=True, built={PROGRAM: "0" * 64})
    proof.check_tree()
    assert "native" not in proof.to_json()
