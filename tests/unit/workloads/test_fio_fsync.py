import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError, UsageError
from labctl.workloads.registry import workload
from labctl.workloads.setting import Setting
from tests.unit.workloads.trials import reasons, recorded, trial, values

FIO_FSYNC = workload("fio-fsync")

NATIVE = "fio-3.33-fdatasync.json"
GUEST = "fio-3.33-fdatasync-tcg-guest.json"


def _parse(folder: Path, text: str) -> "list[Any]":
    return list(FIO_FSYNC.parse(trial(folder, files__fio_json=text)))


def _altered(change: Callable[[dict[str, Any]], object]) -> str:
    report = json.loads(recorded(NATIVE))
    change(report["jobs"][0])
    return json.dumps(report)


@pytest.mark.parametrize("name", [NATIVE, GUEST])
def test_the_latency_is_the_flush_s_and_the_write_s_stands_beside_it(
    tmp_path: Path, name: str
) -> None:
    job = json.loads(recorded(name))["jobs"][0]
    found = values(_parse(tmp_path, recorded(name)))
    theirs = job["sync"]["lat_ns"]["percentile"]["50.000000"] / 1e9
    assert found["latency_p50"] == pytest.approx(theirs, rel=0.02)
    assert found["latency_max"] == job["sync"]["lat_ns"]["max"] / 1e9
    assert found["latency_max{op=write}"] == job["write"]["clat_ns"]["max"] / 1e9
    assert found["operations"] == job["write"]["total_ios"]
    assert found["iops"] == job["write"]["iops"]


def test_few_flushes_have_no_p95(tmp_path: Path) -> None:
    assert "p95 needs 400" in reasons(_parse(tmp_path, recorded(GUEST)))["latency_p95"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        recorded(NATIVE)[:4000],
        _altered(lambda job: job.pop("sync")),
        _altered(lambda job: job["sync"]["lat_ns"].update(N=0)),
        _altered(lambda job: job["sync"]["lat_ns"].pop("bins")),
        _altered(lambda job: job["write"].update(total_ios=0)),
        _altered(lambda job: job.update(error=5)),
    ],
)
def test_output_that_is_not_whole_is_an_error_that_names_the_file(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(BrokenError, match=r"files/fio\.json"):
        _parse(tmp_path, text)


def test_a_flush_follows_each_write_of_the_data_disk() -> None:
    parameters = FIO_FSYNC.check_parameters({"call": "fsync", "size_kib": 16})
    setting = Setting(parameters=parameters, vcpus=1, duration_s=2, data_paths=("/dev/vdb",))
    argv = FIO_FSYNC.command(setting).argv
    assert {"--fsync=1", "--bs=16k", "--rw=write", "--filename=/dev/vdb"} <= set(argv)
    assert FIO_FSYNC.writes_data_disk(parameters)


def test_without_a_data_disk_it_is_refused() -> None:
    setting = Setting(parameters=FIO_FSYNC.check_parameters({}), vcpus=1, duration_s=2)
    with pytest.raises(UsageError, match="'fio-fsync' needs a data disk"):
        FIO_FSYNC.command(setting)
