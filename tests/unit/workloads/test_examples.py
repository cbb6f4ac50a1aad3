"""Workloads that are there to be copied, on what their programs have printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.command import CommandCgroup, Server
from labctl.base.errors import BrokenError, UsageError
from labctl.base.tuning import Policy, Sched
from labctl.run.commands.try_workload import commands_of
from labctl.workloads.registry import workload
from labctl.workloads.setting import Setting
from labctl.workloads.workload import Workload
from tests.unit.workloads.trials import recorded, trial, values

OTHER = Sched(policy=Policy.OTHER)


def _declared(name: str) -> Workload:
    found = workload(name)
    assert isinstance(found, Workload)
    return found


def _setting(name: str, **parameters: object) -> Setting:
    checked = workload(name).check_parameters(parameters)
    return Setting(parameters=checked, vcpus=2, duration_s=10, data_paths=("/dev/vdb",))


def _read(folder: Path, name: str, stdout: str = "", **files: str) -> dict[str, float]:
    counts = '{"duration_s": 10, "rusage": {"utime_s": 1, "stime_s": 1, "nvcsw": 1, "nivcsw": 1}}'
    made = trial(folder, stdout_txt=stdout, stderr_txt="", runner_json=counts)
    for file, text in files.items():
        made.write_raw(f"files/{file.replace('_', '.')}", text)
    return values(list(_declared(name).with_parameters({}).parse(made)))


@pytest.mark.parametrize(
    ("fixture", "requests", "p99"),
    [
        ("wrk-4.1.0-native.txt", 134764.29, 743e-6),
        ("wrk-4.1.0-tcg-guest.txt", 2402.58, 40.96e-3),
    ],
)
def test_wrk_s_rate_and_latency_have_their_units(
    tmp_path: Path, fixture: str, requests: float, p99: float
) -> None:
    found = _read(tmp_path, "nginx-wrk", recorded(fixture))
    assert found["requests"] == requests
    assert found["wrk_p99"] == pytest.approx(p99)


@pytest.mark.parametrize(
    "line",
    ["  Socket errors: connect 0, read 3, write 0, timeout 0", "  Non-2xx or 3xx responses: 9"],
)
def test_requests_that_failed_are_no_rate(tmp_path: Path, line: str) -> None:
    text = recorded("wrk-4.1.0-native.txt").replace("Requests/sec", f"{line}\nRequests/sec")
    with pytest.raises(BrokenError, match="which it must not"):
        _read(tmp_path, "nginx-wrk", text)


def test_nginx_stays_in_the_foreground_with_a_worker_for_each_vcpu() -> None:
    declared = _declared("nginx-wrk")
    (server,) = declared.servers(_setting("nginx-wrk"))
    assert "worker_processes 2;" in server.argv  # type: ignore[union-attr]
    assert "daemon off;" in declared.file.files["nginx.conf"]


def test_pgbench_s_transactions_count_from_when_they_were_due(tmp_path: Path) -> None:
    log = recorded("pgbench-15.20-transactions.txt")
    found = _read(tmp_path, "pgbench", recorded("pgbench-15.20-native.txt"), transactions_1=log)
    latencies = sorted(int(line.split()[2]) for line in log.splitlines())
    assert found["operations"] == len(latencies)
    assert found["latency_max"] == pytest.approx(latencies[-1] / 1e6)
    assert found["latency_p50"] < found["latency_p95"] < found["latency_max"]


def test_a_cluster_is_made_on_the_data_disk_before_its_server_starts() -> None:
    declared = _declared("pgbench")
    disk, server = declared.servers(_setting("pgbench", scale=2))
    assert (disk.device, disk.user) == ("/dev/vdb", "postgres")  # type: ignore[union-attr]
    assert "$p/initdb" in disk.prepare[0][2]  # type: ignore[union-attr]
    assert disk.prepare[-1][-1] == "2"  # type: ignore[union-attr]
    assert server.argv[-1] == f"{disk.at}/pg"  # type: ignore[union-attr]
    assert declared.writes_data_disk({}), "making a file system does"


def test_frames_count_from_when_they_were_due(tmp_path: Path) -> None:
    text = recorded("frame-loop-1-native.csv")
    rows = [tuple(map(int, line.split(","))) for line in text.splitlines()[1:]]
    found = _read(tmp_path, "frame-loop", frames_csv=text)
    assert found["frame_max"] == pytest.approx(max(end - due for due, _, end, _ in rows) / 1e9)
    assert found["wake_up_max"] == pytest.approx(max(start - due for due, start, *_ in rows) / 1e9)
    assert found["late"] == pytest.approx(sum(end > limit for *_, end, limit in rows) / len(rows))
    assert found["late"] > 0


def test_a_mean_is_of_all_frames_from_when_they_were_due(tmp_path: Path) -> None:
    text = recorded("frame-loop-1-native.csv")
    rows = [tuple(map(int, line.split(","))) for line in text.splitlines()[1:]]
    found = _read(tmp_path, "frame-loop", frames_csv=text)
    mean = sum(end - due for due, _, end, _ in rows) / len(rows)
    assert found["frame_mean"] == pytest.approx(mean / 1e9)


@pytest.mark.parametrize("name", ["frame-loop", "supertuxkart"])
def test_a_game_s_isolation_is_its_command_s_and_the_load_a_server_beside_it(name: str) -> None:
    game = workload(name)
    plain = _setting(name)
    assert (game.command(plain).sched, game.command(plain).cgroup) == (OTHER, None)
    assert game.servers(plain) == ()
    whole = _setting(name, scheduler="fifo", isolation="cgroup", load="stress")
    assert game.command(whole).sched == Sched(policy=Policy.FIFO, priority=1)
    assert game.command(whole).cgroup == CommandCgroup(
        weight=50, quota_percent=100, memory_mib=2048
    )
    (load,) = game.servers(whole)
    assert isinstance(load, Server)
    assert load.argv[:2] == ("/usr/bin/stress-ng", "--cpu=2")
    alone = _setting(name, isolation="cpuset")
    assert game.command(alone).cgroup == CommandCgroup(cpus=frozenset({0}))
    assert game.left_out({**alone.parameters, "isolation": "container"}).keys() == {
        "native",
        "guest",
    }


def test_a_command_s_policy_and_cgroup_stand_where_it_is_shown() -> None:
    game = workload("frame-loop")
    plain = _setting("frame-loop")
    assert [*commands_of(game.command(plain), ())] == ["command"]
    whole = _setting("frame-loop", scheduler="fifo", isolation="cgroup")
    (said,) = commands_of(game.command(whole), ())
    assert said == "command, under SCHED_FIFO, in a cgroup (cpu, memory)"


def test_a_race_has_the_frames_that_the_game_counted(tmp_path: Path) -> None:
    text = recorded("supertuxkart-1.4-native.txt")
    found = _read(tmp_path / "whole", "supertuxkart", text)
    assert found["frames_per_s"] == pytest.approx(9334.507812)
    assert (found["operations"], found["race"]) == (23831, 2.553)
    cut = text[: text.index("Average FPS: 9334") + len("Average FPS: 9334")]
    with pytest.raises(BrokenError, match="stdout is truncated"):
        _read(tmp_path / "cut", "supertuxkart", cut)


def test_a_race_is_as_many_laps_on_both_sides() -> None:
    game = workload("supertuxkart")
    assert game.command(_setting("supertuxkart")).argv[-1] == "--profile-laps=60"
    warm = game.warmup_command(_setting("supertuxkart"), 0.1, None)
    assert warm.argv[-1] == "--profile-laps=1"


def test_more_frames_than_a_cpu_can_compute_are_refused() -> None:
    with pytest.raises(UsageError, match="60 frames of 20000 us are more than a CPU has"):
        workload("frame-loop").check_parameters({"work_us": 20_000})
