"""`link:` in a workload's file: its values, who is behind it, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.errors import UsageError
from labctl.base.link import CLIENT, COMPETITOR, Bottleneck
from labctl.workloads.declarations import load_declaration
from labctl.workloads.registry import workload
from labctl.workloads.setting import Setting
from labctl.workloads.workload import Workload

FILE = """\
description: a stream
parameters:
  rate: {integer: 15, from: 0, to: 100, description: rate}
link: {rate_mbit: rate, queue_bdp: 2, delay_ms: rate * 2}
serve:
  - {argv: [/bin/server], on: peer, ready: {tcp: 5000}}
  - {argv: [/bin/rival, "{{ server }}"], on: competitor, ready: {tcp: 5001}}
command: [/bin/client, "{{ server }}", "{{ competitor_address }}"]
metrics: {rate: {regex: '(?P<value>.*)', unit: 1/s, better: higher}}
primary: rate
"""


def _declared(folder: Path, text: str) -> Workload:
    path = folder / "stream.yaml"
    path.write_text(text)
    return load_declaration(path)


def test_values_are_numbers_or_expressions_over_the_parameters(tmp_path: Path) -> None:
    made = _declared(tmp_path, FILE)
    assert made.narrows_link
    found = made.bottleneck(made.check_parameters({"rate": 10}))
    assert found == Bottleneck(rate_mbit=10, queue_bdp=2, delay_ms=20)


def test_the_server_is_behind_the_bottleneck_and_the_competitor_beside_the_machine(
    tmp_path: Path,
) -> None:
    made = _declared(tmp_path, FILE)
    parameters = made.check_parameters({})
    setting = Setting(parameters=parameters, vcpus=1, duration_s=5, peer="198.18.0.1")
    assert made.command(setting).argv == ("/bin/client", CLIENT, COMPETITOR)
    competitor = made.competitor(parameters)
    assert competitor is not None
    assert competitor.command.argv == ("/bin/rival", CLIENT)
    assert competitor.port == 5001


def test_what_is_known_before_a_machine_is_can_not_hang_on_one(tmp_path: Path) -> None:
    text = FILE.replace("rate_mbit: rate", "rate_mbit: vcpus * 10")
    with pytest.raises(UsageError, match=r"stream.yaml:4: 'link.rate_mbit': no 'vcpus'"):
        _declared(tmp_path, text)


def test_a_workload_without_the_key_talks_to_its_peer_itself() -> None:
    iperf3 = workload("iperf3")
    assert not iperf3.narrows_link
    assert iperf3.bottleneck(iperf3.check_parameters({})) is None
    assert iperf3.competitor(iperf3.check_parameters({})) is None


def test_a_stream_without_a_competitor_has_no_agent_for_one() -> None:
    stream = workload("game-stream")
    assert stream.competitor(stream.check_parameters({"competitor": "none"})) is None
    assert stream.competitor(stream.check_parameters({"competitor": "cubic"})) is not None
    assert stream.congestion_control(stream.check_parameters({"competitor": "none"})) == ""
    assert stream.congestion_control(stream.check_parameters({"competitor": "bbr"})) == "bbr"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("on: peer", "on: machine", "no server is 'on: peer'"),
        ("link: {rate_mbit: rate, queue_bdp: 2, delay_ms: rate * 2}\n", "", "needs 'link'"),
        ("rate_mbit: rate", "rate_mbit: speed", "no 'speed'"),
        ("queue_bdp: 2", "queue_bdp: -1", "queue_bdp"),
        ("on: competitor, ready: {tcp: 5001}", "on: competitor, ready: {log: x}", "'tcp' or 'udp'"),
        ("link: {", "link: {loss: 1, ", "loss"),
    ],
)
def test_what_can_not_be_is_refused_with_its_place(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        _declared(tmp_path, FILE.replace(old, new))
    assert "stream.yaml" in caught.value.message


def test_an_expression_without_a_number_is_refused_where_it_is_used(tmp_path: Path) -> None:
    made = _declared(tmp_path, FILE.replace("delay_ms: rate * 2", "delay_ms: \"'soon'\""))
    with pytest.raises(UsageError, match="delay_ms: expected a number"):
        made.bottleneck(made.check_parameters({}))
