"""`labctl fleet sweep` over ssh: what is fetched, who is named, who goes on. Hosts have a stand-in
of labctl; only test_real.py measures."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from labctl.base.errors import ExitCode
from labctl.fleet.ansible import environment
from labctl.store.archive import RunArchive, archive_digest
from tests.fleet.conftest import LABCTL, PROGRAMS, SEED, STUDY, Rig, child
from tests.guest.conftest import wait_for


def status(results: Path, host: str) -> str:
    """How far a host of the only fleet is."""
    for path in results.glob(f"fleet-*/hosts/{host}/state.json"):
        return str(json.loads(path.read_text())["status"])
    return ""


def begun(rig: Rig, *hosts: str) -> bool:
    return all(any("sweep" in call for call in rig.calls(host)) for host in hosts)


@pytest.mark.hosts(8)
def test_the_good_hosts_arrive_whatever_becomes_of_the_others(rig: Rig, tmp_path: Path) -> None:
    """Six good ones, one that dies in the middle, and one with a wrong key."""
    rig.do("h6", "seconds 20")
    rig.do("h7", "seconds 60")
    command: list[str | Path] = [
        LABCTL,
        "fleet",
        "sweep",
        str(STUDY),
        "--seed",
        str(SEED),
        "--json",
    ]
    command += ["--inventory", "/run/rig/hosts.yml", "--results", str(tmp_path)]
    command += ["--set", "labctl_sweep_look_every_s=1"]
    with rig.start(*command) as process:
        wait_for(lambda: status(tmp_path, "h1") == "done", 60, "h1's end", process)
        # As they finish: the slow ones are still at it.
        assert status(tmp_path, "h6") == "running"
        assert rig.run("/run/rig/die", "h7").returncode == 0
        out, _ = process.communicate(timeout=100)
    assert process.returncode == ExitCode.FOUND, out
    [fleet] = tmp_path.glob("fleet-*")
    states = {
        host: json.loads((fleet / "hosts" / host / "state.json").read_text()) for host in rig.hosts
    }
    assert {host: state["status"] for host, state in states.items()} == {
        **dict.fromkeys(("h1", "h2", "h3", "h4", "h5", "h6"), "done"),
        "h7": "unreachable",
        "h8": "unreachable",
    }
    assert "host key" in states["h8"]["reason"].lower()
    digest = (rig.stand / "all.digest").read_text()
    for host in ("h1", "h2", "h3", "h4", "h5", "h6"):
        archive = RunArchive(fleet / "hosts" / host / "run.tar.xz")
        assert archive_digest(archive) == digest == states[host]["digest"]
    assert not (fleet / "hosts/h7/run.tar.xz").exists()
    assert not (fleet / "hosts/h8/run.tar.xz").exists()
    # The same study and seed everywhere.
    sweeps = {shlex.join(shlex.split(call)[2:4]) for h in rig.hosts for call in rig.calls(h)
              if call.startswith("sweep")}  # fmt: skip
    assert sweeps == {f"--seed {SEED}"}
    record = json.loads((fleet / "fleet.json").read_text())
    assert record["batches"] == [list(rig.hosts)]
    assert (record["schema"], record["seed"]) == (1, SEED)
    # A report reads what was fetched.
    shown = subprocess.run(
        [LABCTL, "report", str(fleet / "hosts/h1/run.tar.xz")], capture_output=True, text=True
    )
    assert shown.returncode == 0, shown.stderr


@pytest.mark.hosts(5)
def test_a_host_that_fails_is_named_with_its_reason_and_resumed(rig: Rig, tmp_path: Path) -> None:
    rig.do("h2", "fail")
    rig.do("h3", "refuse")
    rig.do("h4", "garbage")
    first = rig.sweep(tmp_path)
    assert first.statuses == {
        "h1": "done", "h2": "failed", "h3": "failed", "h4": "failed", "h5": "unreachable",
    }  # fmt: skip
    assert "its answer cannot be read" in first.reason("h4")
    assert "the guest failed to boot 2 times" in first.reason("h2")
    assert "no QEMU here" in first.reason("h3")
    calls = rig.calls("h1")
    rig.do("h2", "seconds 1")
    rig.do("h3", "seconds 1")
    again = rig.sweep(tmp_path, "--resume", first.folder.name)
    assert again.statuses == {
        "h1": "done", "h2": "done", "h3": "done", "h4": "failed", "h5": "unreachable",
    }  # fmt: skip
    assert rig.calls("h1") == calls, "a host that is done is left alone"
    assert any("--resume" in call for call in rig.calls("h2")), "its run is gone on with"
    assert not any("--resume" in call for call in rig.calls("h3")), "it had none"


@pytest.mark.hosts(2)
def test_what_was_fetched_and_is_not_what_the_host_had_does_not_count(
    rig: Rig, tmp_path: Path
) -> None:
    rig.do("h1", "other")
    swept = rig.sweep(tmp_path)
    assert swept.statuses["h1"] == "failed"
    assert "digest" in swept.reason("h1")
    assert not (rig.stand / "h2.calls").exists(), "a host with a wrong key is not talked to"


@pytest.mark.hosts(3)
def test_a_dead_controller_stops_no_sweep_and_another_waits_for_it(
    rig: Rig, tmp_path: Path
) -> None:
    rig.do("h1", "seconds 8")
    rig.do("h2", "seconds 8")
    words = ["--seed", str(SEED), "--inventory", "/run/rig/hosts.yml", "--results", str(tmp_path)]
    with rig.start(LABCTL, "fleet", "sweep", str(STUDY), *words) as process:
        wait_for(lambda: begun(rig, "h1", "h2"), 60, "their beginning", process)
        os.kill(child(process), signal.SIGKILL)
        assert process.wait(timeout=30) == -signal.SIGKILL, "nsenter ends as its child"
    [fleet] = tmp_path.glob("fleet-*")
    swept = rig.sweep(tmp_path, "--resume", fleet.name)
    assert swept.statuses == {"h1": "done", "h2": "done", "h3": "unreachable"}
    for host in ("h1", "h2"):
        starts = [call for call in rig.calls(host) if call.startswith("sweep")]
        assert len(starts) == 1, "its first run is waited for"


@pytest.mark.hosts(2)
def test_ctrl_c_ends_ansible_and_no_sweep(rig: Rig, tmp_path: Path) -> None:
    rig.do("h1", "seconds 5")
    words = ["--seed", str(SEED), "--inventory", "/run/rig/hosts.yml", "--results", str(tmp_path)]
    (tmp_path / "tmp").mkdir()
    own = f"TMPDIR={tmp_path / 'tmp'}"
    with rig.start("env", own, LABCTL, "fleet", "sweep", str(STUDY), *words) as process:
        wait_for(lambda: begun(rig, "h1"), 60, "its beginning", process)
        os.kill(child(process), signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    assert "labctl fleet sweep --resume fleet-" in out
    assert rig.run("pgrep", "-f", "ansible-playbook").returncode == 1
    assert not list(tmp_path.glob("tmp/labctl-fleet-*")), "what runner wrote is removed"
    results = "/var/lib/labctl/fleet/fleet-*/results/run-1/progress.json"
    read = ("h1", "sh", "-c", f"cat {results}")
    wait_for(lambda: '"status": "done"' in rig.on(*read).stdout, 30, "the end of its sweep")


@pytest.mark.hosts(3)
def test_a_host_whose_power_is_cut_does_not_hold_the_others(rig: Rig, tmp_path: Path) -> None:
    """Nobody is told that h1 is gone: ssh's keep-alive finds out."""
    rig.do("h1", "seconds 100")
    words = ["--seed", str(SEED), "--inventory", "/run/rig/hosts.yml", "--results", str(tmp_path)]
    words += ["--set", "labctl_sweep_look_every_s=1"]
    with rig.start(LABCTL, "fleet", "sweep", str(STUDY), *words) as process:
        wait_for(lambda: status(tmp_path, "h2") == "done", 60, "h2's end", process)
        assert rig.run("/run/rig/cut", "h1").returncode == 0
        out, _ = process.communicate(timeout=80)
    assert process.returncode == ExitCode.FOUND, out
    assert status(tmp_path, "h1") == "unreachable"


@pytest.mark.hosts(3)
def test_a_host_whose_disk_blocks_holds_no_other(rig: Rig, tmp_path: Path) -> None:
    """h2's progress.json is a pipe that nobody writes to."""
    rig.do("h2", "block")
    swept = rig.sweep(tmp_path, "--set", "labctl_sweep_look_limit_s=15", seconds=300)
    assert swept.statuses == {"h1": "done", "h2": "failed", "h3": "unreachable"}
    assert "no answer within 15 s" in swept.reason("h2")


@pytest.mark.hosts(2)
def test_an_ordinary_user_measures_as_root_where_the_inventory_says_so(
    rig: Rig, tmp_path: Path
) -> None:
    inventory = tmp_path / "hosts.yml"
    hosts = rig.run("cat", "/run/rig/hosts.yml").stdout.rstrip().removesuffix("}")
    become = "ansible_user: op, ansible_become: true, ansible_become_method: su"
    inventory.write_text(f"{hosts}, vars: {{{become}}}}}\n")
    words = [str(STUDY), "--seed", str(SEED), "--inventory", str(inventory)]
    done = rig.run(
        LABCTL, "fleet", "sweep", "--json", "--results", tmp_path,
        "--set", "labctl_sweep_look_every_s=1", *words,
    )  # fmt: skip
    assert done.stdout.startswith("{"), done.stderr
    said = json.loads(done.stdout)["hosts"]["h1"]
    assert (said["status"], said["reason"]) == ("done", "")
    who = rig.on("h1", "stat", "-c", "%U %a", "/var/lib/labctl/fleet")
    assert who.stdout.startswith("root "), who.stderr


@pytest.mark.hosts(3)
def test_tags_start_a_sweep_and_fetch_it_later(rig: Rig, tmp_path: Path) -> None:
    """AWX shows set_stats' data of each part."""
    given = {
        "labctl_sweep_id": "monday",
        "labctl_sweep_study": str(STUDY),
        "labctl_sweep_seed": SEED,
        "labctl_sweep_look_every_s": 1,
        "labctl_sweep_fetch_to": str(tmp_path / "runs"),
        "labctl_sweep_control_command": str(LABCTL),
    }

    def play(*words: str) -> str:
        done = rig.run(
            PROGRAMS / "ansible-playbook", "labctl.lab.sweep", f"--extra-vars={given}", *words,
            ANSIBLE_COLLECTIONS_PATH=environment()["ANSIBLE_COLLECTIONS_PATH"],
            ANSIBLE_SHOW_CUSTOM_STATS="1", ANSIBLE_NOCOLOR="1",
        )  # fmt: skip
        return done.stdout + done.stderr

    said = play("--tags", "labctl_start")
    assert begun(rig, "h1", "h2"), said
    assert not list(tmp_path.glob("runs/*/run.tar.xz"))
    said = play("--tags", "labctl_fetch")
    assert len(list(tmp_path.glob("runs/*/run.tar.xz"))) == 2, said
    assert '"h1": "fetched"' in said.partition("CUSTOM STATS")[2]
    assert [call.split()[0] for call in rig.calls("h1")].count("sweep") == 1
    # A folder of archives is a fleet.
    shown = rig.run(LABCTL, "fleet", "report", tmp_path / "runs", "--json")
    assert json.loads(shown.stdout)["measured"] == 2, shown.stderr


@pytest.mark.hosts(3)
def test_of_two_control_nodes_at_the_same_instant_one_sweeps(rig: Rig, tmp_path: Path) -> None:
    rig.do("h2", "refuse")
    fleet = rig.sweep(tmp_path).folder
    rig.do("h2", "seconds 3")
    words = ["--resume", fleet.name, "--results", str(tmp_path)]
    with (
        rig.start(LABCTL, "fleet", "sweep", *words) as one,
        rig.start(LABCTL, "fleet", "sweep", *words) as other,
    ):
        said = [node.communicate(timeout=120)[0] for node in (one, other)]
    assert sorted((one.returncode, other.returncode)) == [ExitCode.FOUND, ExitCode.HOST], said
    assert sum("is in use by root on" in text for text in said) == 1, said
    assert status(tmp_path, "h2") == "done"
    assert sum(call.startswith("sweep") for call in rig.calls("h2")) == 2, "the refusal, and one"
