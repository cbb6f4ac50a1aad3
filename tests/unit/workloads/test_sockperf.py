from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError, UsageError
from labctl.workloads.registry import workload
from labctl.workloads.setting import Setting
from tests.unit.workloads.trials import reasons, recorded, trial, values

SOCKPERF = workload("sockperf")

PORT = 11111
GUEST = "sockperf-3.7-ping-pong-tcg.csv"


def _parse(folder: Path, text: str) -> "list[Any]":
    return list(SOCKPERF.parse(trial(folder, files__sockperf_csv=text)))


def _setting(**parameters: object) -> Setting:
    return Setting(
        parameters=SOCKPERF.check_parameters(parameters),
        vcpus=1,
        duration_s=2,
        peer="198.18.0.1",
    )


def test_a_recorded_run_gives_the_percentiles_that_sockperf_prints(tmp_path: Path) -> None:
    readings = _parse(tmp_path, recorded(GUEST))
    found = values(readings)
    # What its head says of itself.
    assert found["round_trips"] == 737
    assert found["round_trips_per_s"] == pytest.approx(737 / 1.557)
    assert found["latency_p50"] == pytest.approx(685.670e-6, rel=0.01)
    assert found["latency_max"] == pytest.approx(48491.548e-6, abs=1e-9)
    assert found["latency_p50"] < found["latency_p95"] < found["latency_max"]
    assert found["bin_width{of=latency_p95}"] < 1e-3
    assert "2000" in reasons(readings)["latency_p99"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("# dropped messages = 0", "# dropped messages = 3", "3 messages dropped"),
        ("# duplicated messages = 0", "# duplicated messages = 1", "1 duplicated"),
        ("# out-of-order messages = 0", "# out-of-order messages = 2", "2 out of order"),
        ("ReceivedMessages=737", "ReceivedMessages=736", "lists 737"),
        ("[Valid Duration]", "[Duration]", "expected sockperf's log"),
        ("packet, txTime(sec)", "packet, time", "expected the columns"),
        ("\n300, ", "\n299, ", "expected round trip 300"),
        ("[Total Run] RunTime=2.", "[Total Run] RunTime=1.", "by the TSC"),
        ("[Total Run] RunTime=2.", "[Total Run] RunTime=5.", "by the TSC"),
    ],
)
def test_what_cannot_be_believed_is_an_error_that_names_the_file(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    text = recorded(GUEST)
    assert old in text
    with pytest.raises(BrokenError, match=r"sockperf\.csv") as caught:
        _parse(tmp_path, text.replace(old, new))
    assert said in caught.value.message


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.999])
def test_a_log_that_is_cut_off_is_an_error(tmp_path: Path, share: float) -> None:
    text = recorded(GUEST)
    with pytest.raises(BrokenError, match=r"sockperf\.csv"):
        _parse(tmp_path, text[: int(len(text) * share)])


def test_a_run_too_short_to_count_anything_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BrokenError, match="expected sockperf's log"):
        _parse(tmp_path, recorded("sockperf-3.7-nothing-valid.csv"))


def test_lines_that_are_no_round_trips_are_refused(tmp_path: Path) -> None:
    head, columns, _ = recorded(GUEST).partition("packet, txTime(sec), rxTime(sec), rtt(usec)\n")
    for line in ("0, 1.0, 1.0, -5.000", "0, 1.0, 1.0, nan", "0, 1.0, 1.0", "x" * 10_000):
        with pytest.raises(BrokenError, match="expected round trip 0"):
            _parse(tmp_path, f"{head}{columns}{line}\n---\n")


@pytest.mark.parametrize("protocol", ["udp", "tcp"])
def test_client_and_server_speak_the_same_protocol_at_the_same_port(protocol: str) -> None:
    setting = _setting(protocol=protocol)
    client, peer = SOCKPERF.command(setting), SOCKPERF.peer(setting.parameters)
    assert peer is not None
    assert (peer.protocol, peer.port) == (protocol, PORT)
    for command in (client, peer.command):
        assert ("--tcp" in command.argv) is (protocol == "tcp")
        assert f"--port={PORT}" in command.argv


def test_without_a_peer_there_is_nothing_to_measure() -> None:
    setting = Setting(parameters=SOCKPERF.check_parameters({}), vcpus=1, duration_s=2)
    with pytest.raises(UsageError, match="needs a peer"):
        SOCKPERF.command(setting)


def test_only_whole_seconds_can_be_asked_for() -> None:
    with pytest.raises(UsageError, match="whole seconds"):
        SOCKPERF.check_duration(1.5)
