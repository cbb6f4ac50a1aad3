"""`labctl fleet rollout`: each batch measured again, gated, changed by the advice's own steps."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from labctl.analysis.answer.grade import evidence
from labctl.base.errors import ExitCode
from labctl.host.facts import read_host_files
from labctl.host.machines import machine_facts
from labctl.store.archive import RunArchive, archive_digest, pack
from labctl.store.records.run_record import AdviceVerified
from labctl.store.run_folder import LoadedRun
from labctl.store.run_places import find_run
from tests.fleet.conftest import LABCTL, Rig, child
from tests.fleet.test_tune import KSM, real_labctl
from tests.guest.conftest import wait_for
from tests.unit.fleet.fleets import FACTS, STUDY_DIGEST
from tests.unit.synthetic import EFFECTS, synthetic_run, write_run

TUNING = "pinned+fifo"
ARMS = ("native", "native+fifo", "baseline", "control", "handicap", TUNING)
SEED = 99
FILE = f"/etc/tmpfiles.d/90-labctl-{TUNING}.conf"
RUN = "2026-01-01T000000-pinning"
HERE = {**FACTS, **machine_facts(read_host_files)}
"""Its hosts are this machine: CPU numbers of another would be refused."""


def run_of(seed: int, gain: float, **facts: Any) -> LoadedRun:
    """A run in which the tuning gains so much; it turns a setting that each host has for itself."""
    made = synthetic_run(
        tunings=ARMS, seed=seed, boots=5, primary_only=True, noise=0.01,
        effects={**EFFECTS, TUNING: gain},
    )  # fmt: skip
    known = made.run.but(host=HERE, tunings={TUNING: {"host": {"ksm": "1"}}}, **facts)
    return LoadedRun(made.name, known, made.plan, made.trials, ())


def packed(target: Path, run: LoadedRun, name: str) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    made = write_run(target.parent / f"{target.name}.unpacked", run)
    files = {str(p.relative_to(made.path)): p for p in made.path.rglob("*") if p.is_file()}
    with open(target, "wb") as file:
        pack(files, file, name)
    made.remove()
    return target


@dataclass
class Fleet:
    """A fleet that was swept: each host's run gains. `fresh`: what hosts measure once more."""

    rig: Rig
    folder: Path
    gains: dict[str, float] = field(default_factory=dict)

    def make(self) -> None:
        hosts = self.rig.hosts
        content = {
            "schema": 1,
            "study": "pinning",
            "study_digest": STUDY_DIGEST,
            "seed": 1,
            "labctl": "",
            "started": "2026-01-01T00:00:00+00:00",
            "command": ["labctl", "fleet", "sweep", "pinning"],
            "inventory": ["/run/rig/hosts.yml"],
            "serial": "100%",
            "batches": [list(hosts)],
        }
        for number, host in enumerate(hosts, 1):
            place = self.folder / "hosts" / host
            first = packed(place / "run.tar.xz", run_of(number, 2.73), RUN)
            # Hosts have a /tmp of their own.
            shutil.copyfile(first, self.rig.stand / f"{host}.first.tar.xz")
            state = {"schema": 1, "status": "done", "batch": 1, "run": RUN, "digest": host}
            (place / "state.json").write_text(json.dumps(state))
            loaded = find_run(self.folder, str(first)).load()
            verifies = AdviceVerified(run=RUN, tuning=TUNING, evidence=evidence(loaded))
            again = run_of(SEED, self.gains.get(host, 2.73), verifies=verifies)
            fresh = packed(self.rig.stand / f"{host}.run.tar.xz", again, "run-1")
            digest = archive_digest(RunArchive(fresh))
            (self.rig.stand / f"{host}.digest").write_text(digest)
        (self.folder / "fleet.json").write_text(json.dumps(content))

    def roll_out(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.rig.run(*self.command(*words), seconds=800)

    def command(self, *words: str) -> list[str | Path]:
        given = ("labctl_sweep_look_every_s=1", f"labctl_host_tune_command={self._labctl()}")
        begins = () if "--resume" in words else ("--tuning", TUNING, "--seed", str(SEED))
        return [
            LABCTL, "fleet", "rollout", self.folder, *begins,
            "--forks", "1",  # these hosts have one lock together
            *(word for one in given for word in ("--set", one)), *words,
        ]  # fmt: skip

    def measured(self) -> dict[str, int]:
        """How often each host has measured the tuning again."""
        return {
            host: sum("--verify" in call for call in self.rig.calls(host))
            for host in self.rig.hosts
        }

    def _labctl(self) -> Path:
        """The real labctl, to which a host's run is the one of it that was fetched."""
        path = self.rig.stand / "advises"
        real = real_labctl(self.rig)
        path.write_text(
            f"#!/bin/sh\nhang={self.rig.stand}/$(hostname).hang\n"
            'if [ "$1 $2" = "host keep" ] && [ -e "$hang" ]; then\n'
            '  mv "$hang" "$hang.keeping"; sleep 300\nfi\n'
            f'[ "$1" = advise ] || exec {real} "$@"\nshift 2\n'
            f'exec {real} advise "{self.rig.stand}/$(hostname).first.tar.xz" "$@"\n'
        )
        path.chmod(0o755)
        return path

    def hang_in_keeping(self, host: str) -> None:
        """The host answers no more when it is told to keep the change."""
        (self.rig.stand / f"{host}.hang").touch()

    def is_keeping(self, host: str) -> bool:
        return (self.rig.stand / f"{host}.hang.keeping").exists()

    def settings(self) -> dict[str, str]:
        return {host: self.rig.on(host, "cat", KSM).stdout.strip() for host in self.rig.hosts}

    def has_file(self, host: str) -> bool:
        return self.rig.on(host, "test", "-e", FILE).returncode == 0


@pytest.fixture
def fleet(rig: Rig, tmp_path: Path) -> Fleet:
    return Fleet(rig, tmp_path / "fleet-1")


def stands(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert done.stdout.startswith("{"), done.stderr
    return {host: one["stand"] for host, one in json.loads(done.stdout)["hosts"].items()}


def state(fleet: Fleet, host: str) -> dict[str, Any]:
    [path] = fleet.folder.glob(f"rollouts/*/hosts/{host}/state.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.faults
@pytest.mark.hosts(6)
def test_a_host_that_is_lost_in_keeping_undoes_the_change_itself(fleet: Fleet) -> None:
    """The others of its batch keep it; one of four is beyond the budget of the next batch."""
    fleet.make()
    fleet.hang_in_keeping("h3")
    words = fleet.command("--serial", "1,3,100%", "--max-fail", "20%", "--restore-after", "120s")
    with fleet.rig.start(*words) as process:
        wait_for(lambda: fleet.is_keeping("h3"), 240, "h3's keeping", process)
        assert fleet.rig.run("ip", "link", "set", "h3", "down").returncode == 0
        out, _ = process.communicate(timeout=200)
    assert process.returncode == ExitCode.FOUND, out
    found = {host: state(fleet, host)["stand"] for host in fleet.rig.hosts}
    assert found == {
        "h1": "kept", "h2": "kept", "h3": "unknown", "h4": "kept",
        "h5": "not touched", "h6": "not touched",
    }, out  # fmt: skip
    assert "it keeps the change, or undoes it itself 120s after it" in state(fleet, "h3")["reason"]
    wait_for(lambda: fleet.settings()["h3"] == "0", 300, "h3's timer")
    assert fleet.settings() == {**dict.fromkeys(("h1", "h2", "h4"), "1"),
                                **dict.fromkeys(("h3", "h5", "h6"), "0")}  # fmt: skip


@pytest.mark.hosts(5)
def test_a_tuning_that_every_host_shows_again_goes_out_and_can_be_undone(fleet: Fleet) -> None:
    """h5 has a wrong key."""
    fleet.make()
    shown = fleet.roll_out("--check", "--serial", "1,100%")
    assert f"+{KSM}: 1" in shown.stdout, shown.stderr
    assert FILE in shown.stdout
    assert fleet.settings() == dict.fromkeys(fleet.rig.hosts, "0")
    assert not fleet.has_file("h1")

    done = fleet.roll_out("--json", "--serial", "1,1,1,1,1")
    expected = {**dict.fromkeys(("h1", "h2", "h3", "h4"), "kept"), "h5": "unknown"}
    assert stands(done) == expected, done.stderr
    assert done.returncode == ExitCode.FOUND
    assert fleet.settings() == {**dict.fromkeys(("h1", "h2", "h3", "h4"), "1"), "h5": "0"}
    assert fleet.has_file("h4")
    assert any(f"--verify --tuning {TUNING} --seed {SEED}" in c for c in fleet.rig.calls("h1"))

    restored = fleet.rig.on("h1", str(real_labctl(fleet.rig)), "host", "restore")
    assert restored.returncode == 0, restored.stderr
    assert fleet.settings()["h1"] == "0"
    assert not fleet.has_file("h1")


@pytest.mark.hosts(5)
def test_a_batch_with_a_host_that_does_not_show_it_again_stays_as_it_was(fleet: Fleet) -> None:
    fleet.gains["h3"] = 1.0
    fleet.make()
    done = fleet.roll_out("--serial", "1,2,100%")
    assert done.returncode == ExitCode.FOUND
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.startswith("h")}
    assert "kept" in rows["h1"]
    assert "not changed" in rows["h2"]
    assert "its batch was stopped: h3 did not pass" in " ".join(done.stdout.split())
    assert f"Not confirmed: '{TUNING}'" in done.stdout
    assert "not touched" in rows["h4"]
    assert fleet.settings() == {**dict.fromkeys(fleet.rig.hosts, "0"), "h1": "1"}
    assert not fleet.has_file("h2")
    assert not fleet.has_file("h3")
    assert fleet.rig.calls("h4") == []


@pytest.mark.hosts(5)
def test_a_batch_with_a_host_that_can_not_be_changed_is_undone(fleet: Fleet) -> None:
    """On h3 a step fails, after a setting is turned and a file is written."""
    fleet.make()
    broken = "printf '#!/bin/sh\\necho broken >&2; exit 1' > /usr/bin/systemd-tmpfiles"
    assert fleet.rig.on("h3", "sh", "-c", broken).returncode == 0
    done = fleet.roll_out("--json", "--serial", "1,2,100%")
    assert stands(done) == {
        "h1": "kept", "h2": "undone", "h3": "undone", "h4": "not touched", "h5": "not touched",
    }  # fmt: skip
    why = {host: one["reason"] for host, one in json.loads(done.stdout)["hosts"].items()}
    assert why["h2"] == "its batch was stopped: h3 could not be changed"
    assert "broken" in why["h3"]
    assert fleet.settings() == {**dict.fromkeys(fleet.rig.hosts, "0"), "h1": "1"}
    assert not fleet.has_file("h2")
    assert not fleet.has_file("h3")


@pytest.mark.hosts(5)
def test_hosts_that_do_not_pass_are_set_aside_within_the_budget(fleet: Fleet) -> None:
    """h3 does not show the gain again, and h5 has a wrong key."""
    fleet.gains["h3"] = 1.0
    fleet.make()
    done = fleet.roll_out("--json", "--serial", "1,100%", "--max-fail", "50%")
    expected = {"h1": "kept", "h2": "kept", "h3": "not changed", "h4": "kept", "h5": "unknown"}
    assert stands(done) == expected, done.stderr
    assert done.returncode == ExitCode.FOUND
    hosts = json.loads(done.stdout)["hosts"]
    assert [host for host, one in hosts.items() if one["aside"]] == ["h3", "h5"]
    assert fleet.settings() == {"h1": "1", "h2": "1", "h3": "0", "h4": "1", "h5": "0"}
    assert not fleet.has_file("h3")

    again = fleet.roll_out("--json", "--resume", "--max-fail", "100%")
    assert stands(again) == expected, again.stderr
    assert json.loads(again.stdout)["path"] == json.loads(done.stdout)["path"]
    # Its run is there already: it is compared once more, not measured.
    assert fleet.measured() == {"h1": 1, "h2": 1, "h3": 1, "h4": 1, "h5": 0}


@pytest.mark.hosts(4)
def test_a_killed_roll_out_is_resumed_where_it_was(fleet: Fleet) -> None:
    fleet.make()
    fleet.rig.do("h2", "seconds 20")
    words = fleet.command("--serial", "1,1,1", "--limit", "h1,h2,h3")
    with fleet.rig.start(*words) as process:
        wait_for(lambda: fleet.measured()["h2"] == 1, 200, "h2's sweep", process)
        busy = fleet.roll_out()
        assert busy.returncode == ExitCode.HOST
        assert "is in use by root on" in busy.stderr
        os.kill(child(process), signal.SIGKILL)
    [state] = fleet.folder.glob("rollouts/*/hosts/h2/state.json")
    assert json.loads(state.read_text())["stand"] == "measuring"

    done = fleet.roll_out("--json", "--resume", "--limit", "h2,h3")
    assert stands(done) == {"h1": "kept", "h2": "kept", "h3": "kept"}, done.stderr
    assert done.returncode == 0
    assert fleet.measured() == {"h1": 1, "h2": 1, "h3": 1, "h4": 0}


@pytest.mark.faults
@pytest.mark.hosts(3)
def test_a_control_node_that_is_killed_between_change_and_keep(fleet: Fleet) -> None:
    fleet.make()
    fleet.hang_in_keeping("h2")
    words = fleet.command("--serial", "1,1", "--limit", "h1,h2", "--restore-after", "120s")
    with fleet.rig.start(*words) as process:
        wait_for(lambda: fleet.is_keeping("h2"), 240, "h2's keeping", process)
        os.kill(child(process), signal.SIGKILL)
    assert state(fleet, "h2")["stand"] == "changed"
    wait_for(lambda: fleet.settings()["h2"] == "0", 200, "h2's timer")
    assert fleet.settings()["h1"] == "1"
    fleet.rig.run(LABCTL, "fleet", "report", fleet.folder)
    now = state(fleet, "h2")
    assert now["stand"] == "unknown"
    assert "it keeps the change, or undoes it itself 120s after it" in now["reason"]

    done = fleet.roll_out("--json", "--resume")
    assert stands(done) == {"h1": "kept", "h2": "kept"}, done.stderr
    assert fleet.settings()["h2"] == "1"
    assert fleet.measured() == {"h1": 1, "h2": 1, "h3": 0}


@pytest.mark.faults
@pytest.mark.hosts(20)
def test_of_twenty_hosts_two_are_broken_and_the_rest_keep_the_tuning(fleet: Fleet) -> None:
    """h7 does not show the gain again, and h20 has a wrong key."""
    fleet.gains["h7"] = 1.0
    fleet.make()
    done = fleet.roll_out("--json", "--serial", "1,9,10", "--max-fail", "12%")
    expected = {**dict.fromkeys(fleet.rig.hosts, "kept"), "h7": "not changed", "h20": "unknown"}
    assert stands(done) == expected, done.stderr
    said = json.loads(done.stdout)
    assert said["failed"] == ["h7", "h20"]
    limit = Path(said["path"], "failed.limit").read_text()
    assert limit.split() == ["h7", "h20"]
    assert fleet.settings() == {host: "1" if of == "kept" else "0" for host, of in expected.items()}
