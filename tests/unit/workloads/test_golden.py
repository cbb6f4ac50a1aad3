"""Labctl's own workloads run the commands and read the numbers that they did as Python modules.

`golden/NAME.json` was written by those modules: what they said of themselves, their commands for
settings drawn at random, and what they read of recorded output.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from labctl.base.command import Command
from labctl.base.cpus import parse_cpus
from labctl.base.errors import BrokenError, UsageError
from labctl.run.trials.parse import believable
from labctl.store.samples import Sample
from labctl.store.trial import TrialFolder
from labctl.workloads.metric_file import metric_names
from labctl.workloads.registry import workload
from labctl.workloads.setting import ChoiceParameter, Setting
from labctl.workloads.workload import Workload
from tests.unit.workloads.trials import recorded

GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.json"))
ROUNDED = pytest.approx
"""A rate of several runs is of their rates now, and was of their sums: equal but for rounding."""


def _told(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return found


def _joined(argv: Sequence[str]) -> str:
    """As the golden files have an argv: of a script its digest."""
    return shlex.join(
        word if len(word) <= 400 else f"sha256:{hashlib.sha256(word.encode()).hexdigest()}"
        for word in argv
    )


def _shown(command: Command) -> dict[str, Any]:
    files = {"files": sorted(command.files)} if command.files else {}
    return {"argv": _joined(command.argv), **files}


def _expected(told: dict[str, Any]) -> dict[str, Any]:
    files = {"files": sorted(told["files"])} if "files" in told else {}
    return {"argv": told["argv"], **files}


def test_there_are_fifteen() -> None:
    assert len(NAMES) == 15


@pytest.mark.parametrize("name", NAMES)
def test_it_says_the_same_of_itself(name: str) -> None:
    program, facts = workload(name), _told(name)["facts"]
    parameters = facts.pop("parameters")
    assert {key: _plain(getattr(program, key)) for key in facts} == facts
    assert [
        {
            "name": one.name,
            "default": one.default,
            "description": one.description,
            **(
                {"choices": list(one.choices)}
                if isinstance(one, ChoiceParameter)
                else {"minimum": one.minimum, "maximum": one.maximum}  # type: ignore[union-attr]
            ),
        }
        for one in program.parameters
    ] == parameters


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("name", NAMES)
def test_it_takes_and_refuses_the_same(name: str) -> None:
    program, told = workload(name), _told(name)
    for given in told["refused"]:
        with pytest.raises(UsageError):
            program.check_parameters(given)
    taken = {}
    for seconds in told["durations"]:
        try:
            program.check_duration(float(seconds))
            taken[seconds] = True
        except UsageError:
            taken[seconds] = False
    assert taken == told["durations"]


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_the_same_commands(name: str) -> None:
    program = workload(name)
    for one in _told(name)["commands"]:
        if "refused" in one:
            with pytest.raises(UsageError):
                program.check_parameters(one["given"])
            continue
        setting = _setting(program, one)
        assert _shown(program.command(setting)) == _expected(one["trial"])
        for warm in one["warm_up"]:
            command = program.warmup_command(setting, warm["window_s"], warm["rate"])
            assert _shown(command) == _expected(warm)
        if exact := one.get("exact"):
            counted = program.exact_command(setting, exact["operations"])
            assert counted is not None
            assert _shown(counted) == _expected(exact)
        if "writes_data_disk" in one:
            written = program.writes_data_disk(setting.parameters)
            assert written is one["writes_data_disk"]
        peer = program.peer(setting.parameters)
        assert (peer is None) is ("peer" not in one)
        if peer is not None:
            found = {"argv": _joined(peer.command.argv), "protocol": peer.protocol}
            assert {**found, "port": peer.port} == one["peer"]


def _setting(program: Workload, one: dict[str, Any]) -> Setting:
    return Setting(
        parameters=program.check_parameters(one["given"]),
        vcpus=one["vcpus"],
        duration_s=one["duration_s"],
        cpus=parse_cpus(one["cpus"]) if "cpus" in one else None,
        data_paths=tuple(one.get("data_paths", ())),
        peer="198.18.0.1" if "peer" in one else None,
    )


OUTPUTS = [(name, output) for name in NAMES for output in _told(name)["outputs"]]


@pytest.mark.parametrize(("name", "output"), OUTPUTS)
def test_it_reads_the_same(tmp_path: Path, name: str, output: str) -> None:
    told = _told(name)["outputs"][output]
    texts = _texts(output, told)
    program = workload(name)
    program = program.with_parameters({})
    folder = TrialFolder(tmp_path)
    for file, text in {"stdout.txt": "", "stderr.txt": "", **texts}.items():
        folder.write_raw(file, text)
    try:
        with believable("the output"):
            found = list(program.parse(folder))
    except BrokenError:
        assert told.get("refused")
        return
    samples = {
        one.key: [one.value, str(one.unit), str(one.better), one.source]
        for one in found
        if isinstance(one, Sample)
    }
    made = {key.partition("{")[0] for key in samples}
    of_all = {"operations", "bin_width", "batch_error"}
    assert made - of_all <= set(metric_names(program.file.metrics))
    rate = program.rate_metric if program.file.trial.kind == "repeat" else None
    expected = told["samples"]
    for key in expected:
        # Sums of floats are rounded once now, and were at each term.
        if key == rate or key.startswith("batch_error"):
            expected[key][0] = ROUNDED(expected[key][0], rel=1e-12, abs=1e-12)
    assert samples == expected
    missing = {one.metric: one.reason for one in found if not isinstance(one, Sample)}
    assert missing == told["unavailable"]


@pytest.mark.parametrize(("name", "output"), OUTPUTS)
def test_it_rates_the_same_warm_up(name: str, output: str) -> None:
    told = _told(name)["outputs"][output]
    texts = _texts(output, told)
    files = {Path(file).name: text.encode() for file, text in texts.items()}
    try:
        with believable("the output"):
            rates = workload(name).window_rates(texts.get("stdout.txt", ""), files)
    except BrokenError:
        assert told["rates"] == "refused"
    else:
        # iperf3 prints a window's rate beside its bytes and its length.
        assert rates == ROUNDED(told["rates"], rel=1e-6)


def _texts(output: str, told: dict[str, Any]) -> dict[str, str]:
    """A trial's raw files, by name."""
    text = recorded(output.split(" ")[0]) * told.get("times", 1)
    beside = {file: recorded(name) for file, name in told.get("beside", [])}
    return {told["file"]: text, **beside}
