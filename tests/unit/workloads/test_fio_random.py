import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError, UsageError
from labctl.workloads.readers.fio import latency_bin
from labctl.workloads.registry import workload
from labctl.workloads.setting import Setting
from tests.unit.workloads.trials import reasons, recorded, trial, values

FIO_RANDOM = workload("fio-random")

LOG = "windows_iops.log"
READ = "fio-3.33-randread.json"
WRITE = "fio-3.33-randwrite-fsync.json"
BOTH = "fio-3.33-randrw-io_uring.json"


def _parse(folder: Path, text: str) -> "list[Any]":
    return list(FIO_RANDOM.parse(trial(folder, files__fio_json=text)))


def _setting(**parameters: object) -> Setting:
    return Setting(
        parameters=FIO_RANDOM.check_parameters(parameters),
        vcpus=1,
        duration_s=1.5,
        data_paths=("/dev/vdb",),
    )


def test_a_recorded_read_gives_iops_bandwidth_and_latencies(tmp_path: Path) -> None:
    found = values(_parse(tmp_path, recorded(READ)))
    read = json.loads(recorded(READ))["jobs"][0]["read"]
    assert found["iops"] == read["iops"]
    assert found["operations"] == read["total_ios"]
    assert found["bandwidth"] == read["bw_bytes"]
    assert found["bandwidth"] == pytest.approx(found["iops"] * 4096, rel=0.01)
    assert found["latency_max"] == read["clat_ns"]["max"] / 1e9
    assert not any("op=" in key for key in found)


@pytest.mark.parametrize("name", [READ, WRITE, BOTH])
def test_percentiles_agree_with_fio_s_own(tmp_path: Path, name: str) -> None:
    found = values(_parse(tmp_path, recorded(name)))
    job = json.loads(recorded(name))["jobs"][0]
    compared = 0
    for direction in ("read", "write"):
        theirs = job[direction]["clat_ns"].get("percentile", {})
        for ours, key in (("p50", "50.000000"), ("p95", "95.000000"), ("p99", "99.000000")):
            label = f"{{op={direction}}}" if name == BOTH else ""
            metric = f"latency_{ours}{label}"
            if key in theirs and metric in found:
                # Ours is the bin of rank ceil(qN), fio's that of the first rank beyond qN.
                assert found[metric] == pytest.approx(theirs[key] / 1e9, rel=0.04)
                compared += 1
    assert compared >= 1


def test_fsync_latency_stands_apart_from_the_writes(tmp_path: Path) -> None:
    readings = _parse(tmp_path, recorded(WRITE))
    sync = json.loads(recorded(WRITE))["jobs"][0]["sync"]
    assert values(readings)["latency_max{op=fsync}"] == sync["lat_ns"]["max"] / 1e9
    assert "latency_p999{op=fsync}" in reasons(readings)
    assert values(readings)["latency_max"] != values(readings)["latency_max{op=fsync}"]


def test_a_mixed_load_has_each_direction_and_their_sum(tmp_path: Path) -> None:
    found = values(_parse(tmp_path, recorded(BOTH)))
    assert found["iops"] == pytest.approx(found["iops{op=read}"] + found["iops{op=write}"])
    assert {"latency_p95{op=read}", "latency_p95{op=write}"} <= found.keys()
    assert "latency_p95" not in found


# Written by fio 3.33 in a TCG guest with --log_avg_msec=100, the second one with --rw=randrw.
WINDOWS = b"115, 1236, 0, 0, 0\n215, 1740, 0, 0, 0\n"
BOTH_WINDOWS = b"101, 820, 0, 0, 0\n102, 790, 1, 0, 0\n203, 910, 0, 0, 0\n203, 900, 1, 0, 0\n"


def test_a_warm_up_has_a_rate_per_window_of_fio_s_log() -> None:
    assert FIO_RANDOM.window_rates("", {LOG: WINDOWS}) == [1236, 1740]


def test_a_window_s_rate_is_that_of_all_directions() -> None:
    assert FIO_RANDOM.window_rates("", {LOG: BOTH_WINDOWS}) == [1610, 1810]


def test_a_log_of_any_number_of_windows_is_read_in_one_pass() -> None:
    lines = [f"{time}, 1, 0, 4096, 0" for time in range(59, 50 * 50_000, 50)]
    log = "\n".join([*lines, "61, 3, 1, 4096, 0"])
    rates = FIO_RANDOM.window_rates("", {LOG: log.encode()})
    assert rates == [4.0, *[1.0] * (len(lines) - 1)]


def test_a_log_that_is_not_fio_s_is_an_error() -> None:
    with pytest.raises(BrokenError, match="expected 'time, value, direction'"):
        FIO_RANDOM.window_rates("", {LOG: b"115, 12"})


def test_fio_s_own_notes_before_the_json_do_no_harm(tmp_path: Path) -> None:
    noted = "note: both iodepth >= 1 and synchronous I/O engine are selected\n" + recorded(READ)
    assert values(_parse(tmp_path, noted)) == values(_parse(tmp_path, recorded(READ)))


def test_a_job_that_failed_is_an_error_with_fio_s_words(tmp_path: Path) -> None:
    with pytest.raises(BrokenError, match=r"error 22 .*you need to specify size"):
        _parse(tmp_path, recorded("fio-3.33-no-such-file.json"))


def _altered(change: Callable[[dict[str, Any]], object]) -> str:
    report = json.loads(recorded(READ))
    change(report)
    return json.dumps(report)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        recorded(READ)[:2000],
        _altered(lambda r: r.pop("jobs")),
        _altered(lambda r: r.update(jobs=[])),
        _altered(lambda r: r.update(jobs=["job"])),
        _altered(lambda r: r["jobs"].append(r["jobs"][0])),
        _altered(lambda r: r["jobs"][0]["read"].pop("iops")),
        _altered(lambda r: r["jobs"][0]["read"].update(iops="many")),
        _altered(lambda r: r["jobs"][0]["read"]["clat_ns"].pop("bins")),
        _altered(lambda r: r["jobs"][0]["read"]["clat_ns"].update(bins=[1, 2])),
        _altered(lambda r: r["jobs"][0]["read"]["clat_ns"]["bins"].update({"x": 1})),
        _altered(lambda r: r["jobs"][0]["read"]["clat_ns"]["bins"].update({"999999": 5})),
        _altered(lambda r: r["jobs"][0]["read"].update(total_ios=0)),
        _altered(lambda r: r["jobs"][0].update(sync=None)),
    ],
)
def test_output_that_is_not_whole_is_an_error_that_names_the_file(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(BrokenError, match=r"files/fio\.json"):
        _parse(tmp_path, text)


def test_a_warm_up_without_a_log_is_an_error() -> None:
    with pytest.raises(BrokenError, match="neither its log of windows nor its report"):
        FIO_RANDOM.window_rates("", {})


def test_a_warm_up_too_starved_to_log_a_window_has_the_rate_of_the_whole(tmp_path: Path) -> None:
    text = recorded(READ)
    whole = values(_parse(tmp_path, text))["iops"]
    for log in ({}, {LOG: b""}):
        assert FIO_RANDOM.window_rates("", {**log, "fio.json": text.encode()}) == [whole]


def test_bins_are_as_wide_as_fio_makes_them() -> None:
    assert latency_bin(100, 1).width_s == 1e-9
    assert latency_bin(140_288, 1).width_s == pytest.approx(2048e-9)
    assert all(
        1 / 128 <= latency_bin(ns, 1).width_s / ns * 1e9 <= 1 / 63 for ns in range(200, 9999, 7)
    )


def test_the_command_reads_the_disk_past_the_page_cache_and_creates_nothing() -> None:
    command = FIO_RANDOM.command(_setting())
    assert command.argv[0] == "/usr/bin/fio"
    assert set(command.files) == {LOG, "fio.json"}
    wanted = {
        "--filename=/dev/vdb",
        "--rw=randread",
        "--bs=4k",
        "--direct=1",
        "--runtime=1500ms",
        "--allow_file_create=0",
        "--allow_mounted_write=0",
        "--randseed=1",
    }
    assert wanted <= set(command.argv)


def test_a_colon_in_the_path_names_one_file() -> None:
    setting = Setting(
        parameters=FIO_RANDOM.check_parameters({}), vcpus=1, duration_s=1, data_paths=("/a:b",)
    )
    assert r"--filename=/a\:b" in FIO_RANDOM.command(setting).argv


def test_one_job_has_all_data_disks() -> None:
    setting = Setting(
        parameters=FIO_RANDOM.check_parameters({}), vcpus=1, duration_s=1, data_paths=("/a", "/b")
    )
    for command in (FIO_RANDOM.command(setting), FIO_RANDOM.warmup_command(setting, 0.3, None)):
        assert "--filename=/a:/b" in command.argv
        assert len([word for word in command.argv if word.startswith("--name")]) == 1


def test_a_warm_up_reads_other_offsets_than_the_trial() -> None:
    argv = FIO_RANDOM.warmup_command(_setting(), 0.3, None).argv
    assert {"--randseed=2", "--runtime=1050ms", "--log_avg_msec=300"} <= set(argv)


def test_only_modes_that_write_leave_a_dirty_disk() -> None:
    dirty = {
        mode: FIO_RANDOM.writes_data_disk(FIO_RANDOM.check_parameters({"mode": mode}))
        for mode in ("randread", "randwrite", "randrw")
    }
    assert dirty == {"randread": False, "randwrite": True, "randrw": True}


def test_options_of_a_mode_are_given_in_that_mode_only() -> None:
    mixed = FIO_RANDOM.command(_setting(mode="randrw", read_percent=70, fsync=4)).argv
    assert {"--rwmixread=70", "--fsync=4"} <= set(mixed)
    assert not any(a.startswith(("--rwmixread", "--fsync")) for a in _argv_of_reads())


def _argv_of_reads() -> tuple[str, ...]:
    return FIO_RANDOM.command(_setting()).argv


@pytest.mark.parametrize(
    "parameters",
    [{"engine": "psync", "iodepth": 8}, {"fsync": 1}, {"mode": "read"}, {"iodepth": 0}],
)
def test_parameters_that_do_not_go_together_are_refused(parameters: dict[str, object]) -> None:
    with pytest.raises(UsageError) as caught:
        FIO_RANDOM.check_parameters(parameters)
    assert caught.value.hint


def test_too_short_a_duration_is_refused() -> None:
    with pytest.raises(UsageError):
        FIO_RANDOM.check_duration(0.01)


def test_without_a_data_disk_there_is_no_command() -> None:
    setting = Setting(parameters=FIO_RANDOM.check_parameters({}), vcpus=1, duration_s=1)
    with pytest.raises(UsageError, match="data disk"):
        FIO_RANDOM.command(setting)
