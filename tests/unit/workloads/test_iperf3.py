import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labctl.base.errors import BrokenError
from labctl.workloads.registry import workload
from labctl.workloads.setting import Setting
from tests.unit.workloads.trials import recorded, trial, values

IPERF3 = workload("iperf3")

NATIVE = "iperf3-3.12-native.json"
REVERSE = "iperf3-3.12-reverse-2-streams.json"


def _parse(folder: Path, text: str) -> "list[Any]":
    return list(IPERF3.parse(trial(folder, stdout_txt=text)))


def _altered(change: Callable[[dict[str, Any]], object]) -> str:
    report = json.loads(recorded(NATIVE))
    change(report["end"])
    return json.dumps(report)


@pytest.mark.parametrize("name", [NATIVE, REVERSE])
def test_the_bandwidth_is_that_of_the_bytes_that_arrived(tmp_path: Path, name: str) -> None:
    found = values(_parse(tmp_path, recorded(name)))
    end = json.loads(recorded(name))["end"]
    assert found["operations"] == end["sum_received"]["bytes"] < end["sum_sent"]["bytes"]
    assert found["bandwidth"] == pytest.approx(end["sum_received"]["bits_per_second"] / 8)
    assert found["retransmits"] == end["sum_sent"]["retransmits"]


def test_the_windows_of_a_warm_up_are_those_that_iperf3_tells_apart() -> None:
    text = recorded("iperf3-3.12-windows.json")
    rates = IPERF3.window_rates(text, {})
    seconds = [interval["sum"]["seconds"] for interval in json.loads(text)["intervals"]]
    sent = sum(rate * length for rate, length in zip(rates, seconds, strict=True))
    assert len(rates) > 3
    assert sent == pytest.approx(json.loads(text)["end"]["sum_sent"]["bytes"], rel=0.01)


def test_a_client_that_was_refused_says_why(tmp_path: Path) -> None:
    # iperf3 ends with status 0 when it was told to print JSON.
    for read in (lambda text: _parse(tmp_path, text), lambda text: IPERF3.window_rates(text, {})):
        with pytest.raises(BrokenError, match="Connection refused"):
            read(recorded("iperf3-3.12-refused.json"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda end: end.pop("sum_received"), "'end.sum_received' is not there"),
        (lambda end: end["sum_received"].update(bytes="many"), "'many' is not a number"),
        (lambda end: end["sum_received"].update(seconds=True), "expected a number"),
        (lambda end: end["sum_received"].update(bytes=0), "did no operation"),
        (lambda end: end["sum_received"].update(seconds=0), "division by zero"),
        (lambda end: end["sum_sent"].pop("retransmits"), "retransmits"),
        (lambda end: end.clear(), "'end.sum_received' is not there"),
    ],
)
def test_a_report_without_its_sums_is_an_error(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    with pytest.raises(BrokenError, match=r"stdout\.txt") as caught:
        _parse(tmp_path, _altered(change))
    assert said in caught.value.message


@pytest.mark.parametrize("text", ["", "iperf3: error", "[]", "null", recorded(NATIVE)[:900]])
def test_what_is_no_report_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(BrokenError, match=r"stdout\.txt: metric 'bandwidth'"):
        _parse(tmp_path, text)


def test_parameters_become_what_iperf3_is_told() -> None:
    parameters = IPERF3.check_parameters({"direction": "receive", "streams": 4, "length": 1024})
    setting = Setting(parameters=parameters, vcpus=1, duration_s=3, peer="198.18.0.1")
    argv = IPERF3.command(setting).argv
    assert {"--client=198.18.0.1", "--reverse", "--parallel=4", "--length=1024", "--time=3"} <= {
        *argv
    }
    peer = IPERF3.peer(parameters)
    assert peer is not None
    assert peer.port == 5201


@pytest.mark.parametrize(("seconds", "interval"), [(1, "0.1"), (8, "0.5"), (3600, "60")])
def test_a_trial_is_told_apart_into_windows_that_iperf3_can_have(
    seconds: int, interval: str
) -> None:
    setting = Setting(
        parameters=IPERF3.check_parameters({}), vcpus=1, duration_s=seconds, peer="198.18.0.1"
    )
    assert f"--interval={interval}" in IPERF3.command(setting).argv


def test_windows_of_a_trial_tell_how_sure_it_is_of_its_bandwidth(tmp_path: Path) -> None:
    found = values(_parse(tmp_path, recorded("iperf3-3.12-windows-tcg-guest.json")))
    told = {key for key in found if key.startswith("batch_error")}
    assert told == {f"batch_error{{batches={n},of=bandwidth}}" for n in (8, 4)}
    assert not any(
        key.startswith("batch_error") for key in values(_parse(tmp_path, recorded(NATIVE)))
    )


@pytest.mark.parametrize("intervals", [None, 1.5, "many"])
def test_intervals_that_are_no_list_are_an_error(tmp_path: Path, intervals: object) -> None:
    text = json.dumps({**json.loads(recorded("iperf3-3.12-windows.json")), "intervals": intervals})
    for read in (lambda text: _parse(tmp_path, text), lambda text: IPERF3.window_rates(text, {})):
        with pytest.raises(BrokenError, match=r"'intervals\[\*\]': expected a list"):
            read(text)
