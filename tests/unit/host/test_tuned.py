"""How a profile of tuned is applied: on files that stand for a host's, without tuned."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from labctl.base.errors import HostError
from labctl.host.settings import tuned, tuned_state
from labctl.host.settings.journal import Journal, rebuild
from labctl.host.settings.knob import Impossible, KnobPlace
from labctl.host.settings.tuned_state import ActiveProfile, ProfileFolder, chosen, daemon_runs

FILES = {
    "usr/lib/tuned/balanced/tuned.conf": "[vm]\ntransparent_hugepages=madvise\n",
    "usr/lib/tuned/virtual-host/tuned.conf": (
        "[main]\nsummary=Hosts\n[cpu]\nforce_latency=3\n[disk]\nreadahead=>4096\n"
        "[sysctl]\nvm.swappiness=10\nvm.no_such=1\n"
    ),
    "usr/lib/tuned/realtime-virtual-host/tuned.conf": (
        "[main]\ninclude=virtual-host\n[variables]\nisolated_cores=${isolated_cores}\n"
        "[bootloader]\ncmdline=+isolcpus=${managed_irq}${isolated_cores} "
        "irqaffinity=${non_isolated_cores} x=${unknown}\n[script]\nscript=run.sh\n"
    ),
    "etc/tuned/active_profile": "balanced\n",
    "etc/tuned/profile_mode": "manual\n",
    "proc/sys/vm/swappiness": "60\n",
    "proc/sys/vm/min_free_kbytes": "67584\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/block/vda/queue/read_ahead_kb": "128\n",
    "sys/block/vda/queue/nr_requests": "256\n",
    "sys/devices/system/cpu/present": "0-3\n",
}


@pytest.fixture
def place(tmp_path: Path) -> KnobPlace:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return KnobPlace(root=tmp_path, housekeeping=frozenset({0}), isolated=frozenset({2, 3}))


@pytest.fixture
def daemon(place: KnobPlace, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """tuned's daemon lives; what tuned-adm was asked."""
    pid_file = place.root / "run/tuned/tuned.pid"
    pid_file.parent.mkdir(parents=True)
    pid_file.write_text(str(os.getpid()))
    asked: list[list[str]] = []

    def switch(words: list[str]) -> None:
        asked.append(words)
        (place.root / "etc/tuned/active_profile").write_text(" ".join(words[1:]) + "\n")

    for module in (tuned, tuned_state):
        monkeypatch.setattr(module, "daemon_runs", lambda path: Path(path).exists())
    monkeypatch.setattr(tuned_state, "_tuned_adm", switch)
    return asked


def names(how: tuned.Application, place: KnobPlace) -> list[str]:
    return [change.tunable.name.removeprefix(f"{place.root}/") for change in how.changes]


def test_every_file_that_the_profile_may_set_is_written_down(place: KnobPlace) -> None:
    how = tuned.application("virtual-host", place)
    assert names(how, place) == [
        "sys/block/vda/queue/nr_requests",
        "sys/block/vda/queue/read_ahead_kb",
        "proc/sys/vm/swappiness",
    ]
    assert all(change.value is None for change in how.changes)
    assert [change.follows for change in how.changes] == [True, False, False]


def test_what_holds_only_while_tuned_lives_is_said_where_it_does_not(place: KnobPlace) -> None:
    (part,) = tuned.application("virtual-host", place).left_out
    assert part.sentence("virtual-host") == (
        "'force_latency' in [cpu] of 'virtual-host' is left out: it holds only while tuned's "
        "daemon lives"
    )


@pytest.mark.parametrize("folder", ["etc/tuned", "etc/tuned/profiles"])
def test_a_living_daemon_applies_a_profile_of_ours_without_what_cannot_be_undone(
    place: KnobPlace, daemon: list[list[str]], tmp_path: Path, folder: str
) -> None:
    """`folder`: where tuned looks for profiles, the newer ones in the second alone."""
    (place.root / folder).mkdir(exist_ok=True)
    how = tuned.application("realtime-virtual-host", place)
    assert how.act is None
    assert [part.unit for part in how.left_out] == ["bootloader", "script"]
    # And what its present profile has set, which it puts back before it applies another.
    assert "sys/kernel/mm/transparent_hugepage/enabled" in names(how, place)
    journal = Journal(tmp_path / "journal.jsonl")
    applied = place.root / folder / "labctl-applied"
    with journal.changing() as changes:
        changes.make(how.changes)
        text = (applied / "tuned.conf").read_text()
        assert daemon == [["profile", "labctl-applied"]]
    assert "include=realtime-virtual-host\n" in text
    assert "[variables]\nisolated_cores=2-3\n" in text
    assert "[bootloader]\nenabled=false\n[script]\nenabled=false\n" in text
    assert daemon[1:] == [["profile", "balanced"]]
    assert not applied.exists()
    assert journal.pending() == []


def test_words_for_the_kernel_are_filled_in_as_far_as_they_can_be_told(place: KnobPlace) -> None:
    assert tuned.kernel_words("realtime-virtual-host", place) == [
        "isolcpus=managed_irq,domain,2-3",
        "irqaffinity=0-1",
    ]
    assert tuned.kernel_words("virtual-host", place) == []


def test_our_own_profile_keeps_work_off_the_vcpus_cpus(place: KnobPlace) -> None:
    assert "labctl-virtual-host" in tuned.own_profiles()
    mask = place.root / "sys/devices/virtual/workqueue/cpumask"
    mask.parent.mkdir(parents=True)
    mask.write_text("f\n")
    how = tuned.application("labctl-virtual-host", place)
    assert "sys/devices/virtual/workqueue/cpumask" in names(how, place)
    assert how.left_out == []
    assert "workqueue/cpumask=00000003\n" in tuned._own("labctl-virtual-host", place).popitem()[1]


def test_a_host_without_tuned_is_told_how_to_get_it(
    place: KnobPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(Impossible, match="apt-get install tuned"):
        tuned.knob().changes("virtual-host", place)


def test_a_profile_that_is_not_there_is_impossible(
    place: KnobPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/sbin/{name}")
    with pytest.raises(Impossible, match="no profile 'latency-performance'"):
        tuned.knob().changes("latency-performance", place)


def test_profiles_of_tuned_are_values_wherever_labctl_runs() -> None:
    accepts = tuned.knob().values.accepts
    assert all(accepts(name) for name in (*tuned.USUAL, *tuned.own_profiles()))
    assert not accepts("no-such-profile")


def test_a_one_shot_that_could_not_load_the_profile_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """tuned exits with 0 whatever becomes of it."""
    said = "12:00 ERROR    tuned.daemon: Cannot load profile(s) 'labctl-applied': no such\n"

    def run(argv: list[str], **how: object) -> object:
        return type("Done", (), {"returncode": 0, "stderr": said})

    monkeypatch.setattr("labctl.base.process.run", run)
    with pytest.raises(HostError, match=r"tuned could not apply .* Cannot load profile"):
        tuned._apply_once({})


@pytest.mark.parametrize(
    ("profile", "mode", "value"),
    [
        ("balanced\n", "manual\n", "manual balanced"),
        ("a b\n", "manual\n", "manual a b"),
        ("balanced\n", "auto\n", "auto"),
        ("balanced\n", "", "manual balanced"),
        ("", "", "auto"),
        ("", "manual\n", "none"),
    ],
)
def test_the_active_profile_is_read_and_written_as_tuned_keeps_it(
    tmp_path: Path, profile: str, mode: str, value: str
) -> None:
    (tmp_path / "active_profile").write_text(profile)
    (tmp_path / "profile_mode").write_text(mode)
    tunable = ActiveProfile(str(tmp_path), str(tmp_path / "no-daemon.pid"))
    assert tunable.read() == value
    tunable.write(chosen("other"))
    assert tunable.read() == "manual other"
    tunable.write(value)
    assert tunable.read() == value
    assert rebuild(tunable.kind, tunable.arguments()) == tunable


def test_a_profile_of_ours_comes_and_goes_with_its_folder(tmp_path: Path) -> None:
    tunable = ProfileFolder(str(tmp_path / "ours"))
    assert tunable.read() == "absent"
    tunable.write("[main]\n")
    assert tunable.read() == "[main]\n"
    tunable.write("absent")
    assert list(tmp_path.iterdir()) == []


def test_a_pid_that_is_somebody_elses_by_now_is_no_daemon(tmp_path: Path) -> None:
    pid_file = tmp_path / "tuned.pid"
    assert not daemon_runs(pid_file)
    pid_file.write_text("1")
    assert not daemon_runs(pid_file)
    pid_file.write_text("no number")
    assert not daemon_runs(pid_file)
