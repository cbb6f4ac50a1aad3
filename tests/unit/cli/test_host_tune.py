"""`labctl host tune`, `status` and `restore`, on files that stand for the kernel's."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from labctl.base.paths import StatePaths
from labctl.cli import host as host_tune
from labctl.host.lock import host_locked
from labctl.host.settings import knobs, restore_timer
from labctl.host.settings.journal import Journal
from labctl.host.settings.knob import KnobPlace
from labctl.host.settings.knob_table import TABLE
from labctl.host.settings.tunables import FileValue
from labctl.run.commands import host_tuning
from labctl.run.planning import host as host_request
from tests.unit.cli.conftest import Labctl, Said
from tests.unit.domain import hosts
from tests.unit.host import fake_host


class Host:
    """labctl on a host of its own."""

    def __init__(self, labctl: Labctl, root: Path, state: Path, lock: Path) -> None:
        self._labctl = labctl
        self.root, self.state, self.lock = root, state, lock
        self.swappiness = root / "proc/sys/vm/swappiness"

    def __call__(self, *words: str) -> Said:
        return self._labctl("--state-dir", str(self.state), *words)

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json").out)


@pytest.fixture
def host(labctl: Labctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    root = fake_host.make(tmp_path / "host")

    def place(tunings: object, vcpus: int | None) -> KnobPlace:
        return KnobPlace(root=root, housekeeping=frozenset({0, 1}), isolated=frozenset({2, 3}))

    def write(self: FileValue, value: str) -> None:
        Path(self.path).write_text(value)

    monkeypatch.setattr(FileValue, "write", write)
    monkeypatch.setattr(host_request, "_place", place)
    monkeypatch.setattr(host_tuning, "host_lock", lambda: tmp_path / "lock")
    monkeypatch.setattr(host_request, "booted_with", lambda: ["ro", "quiet"])
    really = knobs.states
    monkeypatch.setattr(knobs, "states", lambda: really(KnobPlace(root=root)))
    return Host(labctl, root, tmp_path / "state", tmp_path / "lock")


def test_a_tuning_is_in_force_until_it_is_asked_back(host: Host) -> None:
    said = host("host", "tune", "swappiness-10")
    assert said.code == 0
    assert f"{host.swappiness}: 60 -> 10\n" in said.out
    assert "in force until 'labctl host restore'" in said.out
    assert "risk: less page cache" in said.out
    assert host.swappiness.read_text() == "10"
    assert host("host", "restore").out == f"restored: {host.swappiness} = 60 (was '10')\n"
    assert host.swappiness.read_text() == "60"
    assert host("host", "restore").out == "nothing to restore\n"


def test_what_is_so_already_needs_no_undoing(host: Host) -> None:
    said = host("host", "tune", "thp-madvise")
    assert "nothing to do: already set" in said.out
    assert Journal(StatePaths(host.state).journal).pending() == []


def test_other_commands_say_what_is_in_force(host: Host) -> None:
    assert host("tuning", "list").err == ""
    host("host", "tune", "swappiness-10", "thp-never")
    said = host("tuning", "list", "--json")
    assert "'labctl host tune swappiness-10 thp-never' is active on this host" in said.err
    assert json.loads(said.out)
    assert host("host", "status").err == ""


def test_status_shows_every_knob_and_how_a_change_stands(host: Host) -> None:
    host("host", "tune", "swappiness-10", "governor-performance")
    host.swappiness.write_text("33\n")
    status = host.json("host", "status")
    now = {knob["name"]: knob["now"] for knob in status["knobs"]}
    assert list(now) == [knob.name for knob in TABLE]
    assert (now["swappiness"], now["governor"]) == ("33", "performance")
    states = {item["name"]: (item["state"], item["present"]) for item in status["pending"]}
    assert states[str(host.swappiness)] == ("changed by someone else", "33")
    assert {state for state, _ in states.values()} == {
        "in force",
        "has its old value",
        "changed by someone else",
    }
    assert "host tune" in host("host", "status").out


def test_what_someone_else_set_is_left_without_force(host: Host) -> None:
    host("host", "tune", "swappiness-10")
    host.swappiness.write_text("33")
    refused = host("host", "restore")
    assert refused.code == 4
    assert "someone else has set it to '33' since" in refused.out
    assert "--force" in refused.err
    assert host.swappiness.read_text() == "33"
    assert host("host", "restore", "--force", "--accept").code == 2
    assert host("host", "restore", "--force").code == 0
    assert host.swappiness.read_text() == "60"


def test_what_someone_else_set_can_be_left_for_good(host: Host) -> None:
    host("host", "tune", "swappiness-10")
    host.swappiness.write_text("33")
    assert host("host", "restore", "--accept").code == 0
    assert host.swappiness.read_text() == "33"
    assert host("host", "restore").out == "nothing to restore\n"


def test_what_needs_a_reboot_is_planned_and_not_done(host: Host) -> None:
    before = fake_host.values(host.root)
    said = host("host", "tune", "isolcpus", "nohz-full")
    assert said.code == 0
    words = "isolcpus=managed_irq,domain,2-3 nohz_full=2-3 rcu_nocbs=2-3"
    assert "Not done, because it needs a reboot" in said.out
    assert "/etc/default/grub.d/90-labctl-isolcpus+nohz-full.cfg" in said.out
    assert f'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT {words}"' in said.out
    assert "run: update-grub\n  run: reboot" in said.out
    assert fake_host.values(host.root) == before
    assert not (host.state / "journal.jsonl").exists()
    [step] = host.json("host", "tune", "mitigations-off")["needs_reboot"]
    assert step["words"] == ["mitigations=off"]
    assert step["commands"] == [["update-grub"]]


def test_a_kernel_that_was_booted_so_needs_no_plan(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_request, "booted_with", lambda: ["isolcpus=2-3", "mitigations=off"])
    said = host("host", "tune", "isolcpus", "mitigations-off")
    assert "nothing to do: the host's kernel was booted with it" in said.out


@pytest.mark.parametrize(
    ("names", "code", "message"),
    [
        (["vcpupin"], 2, "'vcpupin' changes only the guest, not"),
        (["swapiness-10"], 2, "no tuning 'swapiness-10'"),
        (["thp-never", "thp-always"], 2, "'thp-never' and 'thp-always' conflict"),
        ([], 2, "missing argument"),
    ],
)
def test_what_cannot_be_asked_of_a_host_is_named(
    host: Host, names: list[str], code: int, message: str
) -> None:
    said = host("host", "tune", *names)
    assert (said.code, message in said.err) == (code, True), said.err


def test_only_tunings_of_the_host_are_offered(host: Host) -> None:
    assert "Did you mean 'governor-performance'?" in host("host", "tune", "governer").err
    said = host("host", "tune", "zzz").err
    assert "thp-never" in said
    assert "cache-none" not in said


def test_what_this_host_cannot_have_is_told_and_nothing_is_changed(host: Host) -> None:
    (host.root / "sys/module/kvm/parameters/halt_poll_ns").chmod(0o444)
    said = host("host", "tune", "swappiness-10", "halt-poll-off")
    assert said.code == 3
    assert "is read-only on this kernel" in said.err
    assert host.swappiness.read_text() == "60\n"


def test_a_host_that_measures_is_not_tuned(host: Host) -> None:
    with host_locked(host.lock, what="labctl sweep pinning"):
        said = host("host", "tune", "swappiness-10")
    assert said.code == 3
    assert "'labctl sweep pinning'" in said.err
    assert host.swappiness.read_text() == "60\n"


def test_restoring_waits_until_nobody_measures(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host("host", "tune", "swappiness-10")
    over = threading.Event()
    waited = threading.Event()
    held = threading.Event()

    def measure() -> None:
        with host_locked(host.lock, what="labctl sweep pinning"):
            held.set()
            over.wait(10)
            assert host.swappiness.read_text() == "10"

    def tell(event: Any) -> None:
        if "Waiting: this host is in use" in event.text:
            waited.set()
            over.set()

    monkeypatch.setattr(host_tune, "tell", tell)
    thread = threading.Thread(target=measure)
    thread.start()
    assert held.wait(10)
    try:
        assert host("host", "restore").code == 0
    finally:
        over.set()
        thread.join()
    assert waited.is_set()
    assert host.swappiness.read_text() == "60"


def test_the_cpus_of_the_guest_are_those_of_the_pin_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_request, "read_topology", lambda: hosts.TWO_CPUS)
    monkeypatch.setattr(knobs, "problems", lambda host, place: [])
    place = host_request.asked_for(["irq-affinity"]).place
    assert place.isolated == {1}
    assert place.housekeeping == {0}


def test_what_ends_with_the_command_cannot_be_kept(host: Host) -> None:
    said = host("host", "tune", "cpu-dma-latency-0", "swappiness-10")
    assert said.code == 2
    assert "this command cannot keep 'cpu-dma-latency-0'" in said.err
    assert "force_latency" in said.err
    assert host.swappiness.read_text() == "60\n", "all of them, or none"


def test_a_check_names_what_would_change_and_changes_nothing(host: Host) -> None:
    said = host.json("host", "tune", "swappiness-10", "--check")
    assert said["would_change"] == [{"name": str(host.swappiness), "before": "60", "after": "10"}]
    assert f"{host.swappiness}: 60 -> 10\n" in host("host", "tune", "swappiness-10", "--check").out
    assert host.swappiness.read_text() == "60\n"
    assert not StatePaths(host.state).journal.exists()
    host("host", "tune", "swappiness-10")
    assert host.json("host", "tune", "swappiness-10", "--check")["would_change"] == []


class Started:
    """After how many seconds, and with which script, each timer's shell would restore."""

    def __init__(self) -> None:
        self.loops: dict[str, tuple[str, str]] = {}

    def __call__(self, argv: list[str], **_: object) -> None:
        *_, name, seconds, script = argv
        self.loops[name] = (seconds, Path(script).read_text())


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Started:
    made = Started()
    monkeypatch.setattr(restore_timer, "_SYSTEMD", tmp_path / "no-systemd")
    monkeypatch.setattr(restore_timer.subprocess, "Popen", made)
    return made


def test_a_timer_puts_the_host_back_unless_it_is_told_to_keep(host: Host, started: Started) -> None:
    host("host", "tune", "swappiness-10", "--restore-after", "10m")
    [(name, (seconds, _))] = started.loops.items()
    assert seconds == "600"
    assert host("host", "keep").out == "kept until 'labctl host restore'\n"
    assert host("host", "keep").out == "nothing to keep: no restore is pending\n"
    assert host("host", "restore", "--timer", name).code == 0
    assert host.swappiness.read_text() == "10", "it was told to keep it"


def test_a_timer_that_nobody_stopped_restores_once(host: Host, started: Started) -> None:
    host("host", "tune", "swappiness-10", "--restore-after", "10m")
    [name] = started.loops
    assert 'host restore --timer "$1"' in started.loops[name][1]
    host("host", "restore", "--timer", "labctl-restore-of-another")
    assert host.swappiness.read_text() == "10"
    host("host", "restore", "--timer", name)
    assert host.swappiness.read_text() == "60"
    host("host", "tune", "swappiness-10")
    host("host", "restore", "--timer", name)
    assert host.swappiness.read_text() == "10", "what was tuned since is not the timer's"


@pytest.mark.parametrize("by", ["--timer", "--not-kept"])
def test_what_was_kept_before_stays(host: Host, started: Started, by: str) -> None:
    ksm = host.root / "sys/kernel/mm/ksm/run"
    host("host", "tune", "swappiness-10", "--restore-after", "10m")
    host("host", "keep")
    host("host", "restore", "--not-kept")
    assert host.swappiness.read_text() == "10"
    host("host", "tune", "ksm-on", "--restore-after", "10m")
    assert ksm.read_text().strip() == "1"
    *_, name = started.loops
    assert host("host", "restore", by, *([name] if by == "--timer" else [])).code == 0
    assert (host.swappiness.read_text(), ksm.read_text().strip()) == ("10", "0")
    host("host", "restore")
    assert host.swappiness.read_text() == "60"


def test_what_was_kept_while_a_timer_waited_for_a_sweep_stays(
    host: Host, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    host("host", "tune", "swappiness-10", "--restore-after", "10m")
    [name] = started.loops

    def tell(event: object) -> None:
        # It waits for the lock by now, and has seen that its timer was due.
        restore_timer.stop(StatePaths(host.state))
        released.set()

    released = threading.Event()
    monkeypatch.setattr(host_tune, "tell", tell)
    with host_locked(host.lock, what="labctl sweep"):
        restoring = threading.Thread(target=host, args=("host", "restore", "--timer", name))
        restoring.start()
        assert released.wait(20)
    restoring.join(20)
    assert host.swappiness.read_text() == "10"


def test_a_reboot_ends_a_timer_that_no_unit_takes_over(
    host: Host, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    host("host", "tune", "swappiness-10", "--restore-after", "10m")
    monkeypatch.setattr(restore_timer, "boot_id", lambda: "another boot")
    assert host("host", "keep").out == "nothing to keep: no restore is pending\n"


def test_a_long_value_is_a_digest_in_json(host: Host) -> None:
    assert host_tune.told("60") == "60"
    assert host_tune.told(None) is None
    said = host_tune.told("<graphics passwd='secret'/>" * 100)
    assert said is not None
    assert said.startswith("2700 characters, SHA-256 ")


def test_a_second_timer_undoes_what_the_first_would_have(host: Host, started: Started) -> None:
    host("host", "tune", "swappiness-10", "--restore-after", "10m")
    host("host", "tune", "ksm-on", "--restore-after", "20m")
    *_, name = started.loops
    host("host", "restore", "--timer", name)
    assert host.swappiness.read_text() == "60"


def test_the_timer_runs_before_the_first_change(
    host: Host, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    really = FileValue.write

    def write(self: FileValue, value: str) -> None:
        found.extend(started.loops)
        really(self, value)

    monkeypatch.setattr(FileValue, "write", write)
    host("host", "tune", "swappiness-10", "--restore-after", "10m")
    assert found
    assert host("host", "tune", "swappiness-10", "--restore-after", "soon").code == 2


def test_a_change_that_failed_leaves_a_timer_for_an_earlier_one(
    host: Host, started: Started
) -> None:
    host("host", "tune", "swappiness-10", "--restore-after", "10m")
    with host_locked(host.lock, what="labctl sweep"):
        assert host("host", "tune", "swappiness-10", "--restore-after", "20m").code == 3
    *_, name = started.loops
    host("host", "restore", "--timer", name)
    assert host.swappiness.read_text() == "60"


def test_a_timer_that_can_not_be_started_is_none(
    host: Host, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no process")

    monkeypatch.setattr(restore_timer.subprocess, "Popen", fail)
    assert host("host", "tune", "swappiness-10", "--restore-after", "10m").code != 0
    assert host.swappiness.read_text().strip() == "60"
    assert host("host", "keep").out == "nothing to keep: no restore is pending\n"


def test_no_timer_is_left_of_a_change_that_failed(host: Host, started: Started) -> None:
    with host_locked(host.lock, what="labctl sweep"):
        assert host("host", "tune", "swappiness-10", "--restore-after", "10m").code == 3
    assert host("host", "keep").out == "nothing to keep: no restore is pending\n"
