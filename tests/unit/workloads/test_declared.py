"""What a workload's file says, and what becomes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from labctl.base.command import CommandCgroup, CommandResult
from labctl.base.errors import UsageError
from labctl.base.paths import DATA_DISK_BYTES
from labctl.base.templates import fill_in
from labctl.base.tuning import Policy, Sched
from labctl.workloads.declarations import load_declaration
from labctl.workloads.registry import defined, workload
from labctl.workloads.setting import Setting
from labctl.workloads.workload import Workload
from tests.unit.workloads.trials import trial, values

RATE = {"regex": r"rate (\d+)", "unit": "1/s", "better": "higher"}


def _declared(**keys: Any) -> Workload:
    plain = {"description": "d", "command": ["run"], "metrics": {"rate": RATE}, "primary": "rate"}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "own.yaml"
        path.write_text(json.dumps({**plain, **keys}))  # which YAML holds
        return load_declaration(path)


def _setting(program: Workload, *, vcpus: int = 2, seconds: float = 2, **given: object) -> Setting:
    return Setting(
        parameters=program.check_parameters(given),
        vcpus=vcpus,
        duration_s=seconds,
        data_paths=("/dev/vdb",) if program.uses_data_disk else (),
        peer="198.18.0.1",
    )


NUMBER = {"integer": 4, "from": 1, "to": 9, "description": "a number"}


def test_a_warm_up_has_the_length_of_its_window_and_a_trial_has_none() -> None:
    program = _declared(command=["run", "{{ window }}", "{{ duration }}"])
    setting = _setting(program)
    assert program.command(setting).argv == ("run", "0", "2")
    assert program.warmup_command(setting, 0.1, None).argv == ("run", "0.1", "1")


def test_whole_numbers_stand_without_a_point() -> None:
    assert fill_in("{{ 16 / 16 }} {{ 10 / 16 }} {{ 3.0 }}", {}, "x") == "1 0.625 3"


@pytest.mark.parametrize(
    ("counts", "rate", "expected"),
    [
        (True, None, "12"),  # 2.4 of 5 each
        (True, 77.0, "8"),
        (True, 1.0, "3"),
        ("each", None, "12"),
        ("each", 77.0, "9"),
        ("each", 1.0, "3"),
    ],
)
def test_a_warm_up_window_is_a_number_of_operations(
    counts: bool | str, rate: float | None, expected: str
) -> None:
    program = _declared(
        trial={"counts": counts, "first_operations": "40 * vcpus * window"},
        command=["run", "{{ operations }}", "{{ duration }}"],
    )
    setting = _setting(program, vcpus=3)
    assert program.command(setting).argv == ("run", "0", "2")
    assert program.warmup_command(setting, 0.1, rate).argv == ("run", expected, "0")


def test_a_length_without_steps_is_any_from_the_least_on() -> None:
    program = _declared(trial={"step_s": 0, "least_s": 0.1})
    assert program.durations == "0.1 s or more"
    program.check_duration(0.12345)
    with pytest.raises(UsageError, match=r"0\.1 s or more") as caught:
        program.check_duration(0.05)
    assert caught.value.hint == "Use 0.1 s."


def test_a_refusal_says_what_to_do() -> None:
    refuse = [{"when": "n > 5", "message": "'n' is {{ n }}", "hint": "Give 5 or less."}]
    program = _declared(parameters={"n": NUMBER}, refuse=refuse)
    with pytest.raises(UsageError, match="'n' is 6") as caught:
        program.check_parameters({"n": 6})
    assert caught.value.hint == "Give 5 or less."


@pytest.mark.parametrize(
    ("parameters", "said"),
    [({"m": 1}, "no parameter 'm'"), ({"n": 10}, "'n': expected a whole number")],
)
def test_a_warm_up_with_other_parameters_is_refused(
    parameters: dict[str, object], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        _declared(parameters={"n": NUMBER}, trial={"warm_up": {"parameters": parameters}})


def test_a_warm_up_s_parameter_that_is_filled_in_may_be_beyond_its_limit() -> None:
    """A seed of a trial may be the largest, and its warm-up takes another."""
    program = _declared(
        parameters={"n": NUMBER},
        trial={"warm_up": {"parameters": {"n": "{{ n + 1 }}"}}},
        command=["run", "{{ n }}"],
    )
    assert program.warmup_command(_setting(program, n=9), 0.1, None).argv == ("run", "10")


PEERS = [
    {"argv": ["serve"], "when": "n > 5", "on": "peer", "ready": {"tcp": 5}},
    {"argv": ["serve", "-u"], "when": "n <= 5", "on": "peer", "ready": {"udp": 7}},
]


def test_a_server_may_depend_on_a_parameter() -> None:
    program = _declared(parameters={"n": NUMBER}, serve=PEERS)
    udp, tcp = (program.peer(program.check_parameters({"n": n})) for n in (1, 9))
    assert udp is not None
    assert tcp is not None
    assert (udp.protocol, udp.port, udp.command.argv) == ("udp", 7, ("serve", "-u"))
    assert (tcp.protocol, tcp.port, tcp.command.argv) == ("tcp", 5, ("serve",))


def test_two_servers_at_once_do_not_run_on_the_peer() -> None:
    both = [{**one, "when": "n > 0"} for one in PEERS]
    program = _declared(parameters={"n": NUMBER}, serve=both)
    with pytest.raises(UsageError, match="server"):
        program.peer(program.check_parameters({}))
    with pytest.raises(UsageError, match="server"):
        _declared(serve=[{**one, "when": None} for one in PEERS])


def test_a_server_on_the_machine_runs_when_its_condition_holds() -> None:
    serve = [{"argv": ["serve"], "when": "n > 5", "ready": {"tcp": 5}}]
    program = _declared(parameters={"n": NUMBER}, serve=serve)
    assert not program.servers(_setting(program))
    assert [one.argv for one in program.servers(_setting(program, n=9))] == [("serve",)]


def test_a_reader_s_argument_may_be_a_parameter_and_nothing_else() -> None:
    report = {"reader": "rtla", "arguments": {"interval_us": "{{ n }}"}}
    keys = {"metrics": {"report": report}, "primary": "wakeups"}
    assert _declared(parameters={"n": NUMBER}, **keys).rate_metric is None
    with pytest.raises(UsageError, match=r"'metrics\.report\.arguments': no 'n'"):
        _declared(**keys)


def test_a_reader_makes_the_metrics_of_what_it_is_told() -> None:
    assert "noise" in workload("osnoise").deciding
    assert "noise" not in workload("timerlat").deciding
    assert "bandwidth" in workload("fio-random").deciding
    assert "bandwidth" not in workload("fio-fsync").deciding


def test_a_client_finds_its_server_where_that_runs() -> None:
    """Whatever other workloads of the study have a peer for."""
    keys = {"parameters": {"n": NUMBER}, "command": ["ask", "{{ server }}"]}
    on_peer, on_machine = PEERS[0], {"argv": ["serve"], "when": "n <= 5", "ready": {"tcp": 5}}
    program = _declared(**keys, serve=[on_peer, on_machine])
    assert program.command(_setting(program, n=9)).argv == ("ask", "198.18.0.1")
    assert program.command(_setting(program, n=1)).argv == ("ask", "127.0.0.1")
    alone = replace(_setting(program, n=1), peer=None)
    assert program.command(alone).argv == ("ask", "127.0.0.1")
    with pytest.raises(UsageError, match="needs a peer"):
        program.command(replace(_setting(program, n=9), peer=None))


def test_labctl_s_own_times_are_metrics_unless_the_file_says_no(tmp_path: Path) -> None:
    raw = trial(tmp_path, stdout_txt="rate 5\n")
    raw.write_raw_json(
        "runner.json", {"duration_s": 2.0, "rusage": {"utime_s": 1.0, "stime_s": 0.5}}
    )
    own = {"elapsed": 2.0, "user_s": 1.0, "system_s": 0.5, "cpu_use": 0.75}
    assert values(list(_declared().parse(raw))) == {"rate": 5, **own}
    without = _declared(times=False)
    assert values(list(without.parse(raw))) == {"rate": 5}
    assert without.deciding == ("rate",)
    with pytest.raises(UsageError, match="no metric 'elapsed'"):
        _declared(times=False, primary="elapsed")


def test_a_file_may_be_as_large_as_the_data_disk_which_natively_is_one() -> None:
    program = _declared(data_disk={"writes": True})
    assert program.command(_setting(program)).scratch_mib == DATA_DISK_BYTES >> 20
    assert _declared().command(_setting(_declared())).scratch_mib == 64


def test_a_failure_that_the_file_explains_is_explained() -> None:
    # As rtla 6.1 says it on a kernel without CONFIG_OSNOISE_TRACER.
    failed = CommandResult(
        returncode=1,
        stdout=b"",
        stderr=b"Failed to apply CPUs config\nCould not apply config\n",
        files={},
        duration_s=0.1,
        counts={},
    )
    for name in ("timerlat", "osnoise"):
        said = workload(name).why_failed(failed)
        assert said is not None
        assert "Could not apply config" in said
        assert "CONFIG_TIMERLAT_TRACER=y" in said
        assert "linux-image-rt-amd64" in said


def test_labctl_s_own_have_no_more_rights_than_they_need() -> None:
    rights = {}
    for name in ("sysbench-cpu", "iperf3", "cyclictest", "fio-random", "timerlat"):
        program = workload(name)
        command = program.command(_setting(program))
        rights[name] = "root" if command.user is None else command.capabilities
    assert rights == {
        "sysbench-cpu": (),
        "iperf3": (),
        "cyclictest": ("sys_nice", "ipc_lock"),
        "fio-random": ("dac_override",),
        "timerlat": "root",  # rtla refuses everybody else
    }


def test_a_run_without_a_definition_is_of_labctl_s_own_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As all were before workloads were files; one of a lab folder with that name is another."""
    own = defined("hackbench", None)
    folder = tmp_path / "benchmarks" / "workloads"
    folder.mkdir(parents=True)
    (tmp_path / ".labctl-lab").touch()
    (folder / "hackbench.yaml").write_text(
        "description: another\ncommand: [other]\ntimes: true\nprimary: elapsed\n"
    )
    monkeypatch.chdir(tmp_path)
    assert workload("hackbench").file.description == "another"
    assert defined("hackbench", None).definition == own.definition


def test_a_run_keeps_the_definition_that_it_was_made_with() -> None:
    program = workload("stress-ng-mmap")
    changed = {**program.definition, "description": "was it was"}
    assert defined("stress-ng-mmap", changed).file.description == "was it was"


def test_a_maximum_and_a_number_of_samples_of_a_reader_decide_nothing() -> None:
    deciding = set(workload("cyclictest").deciding)
    assert {"latency_p95", "open_latency_mean", "open_latency_p99", "stall_time"} <= deciding
    assert not {"latency_max", "wakeups", "periods"} & deciding


def test_a_formula_over_other_metrics_may_decide() -> None:
    each = {"formula": "1 / rate", "unit": "s", "better": "lower"}
    assert set(_declared(metrics={"rate": RATE, "each": each}).deciding) >= {"rate", "each"}


SCHEDULER = {"choice": "other", "of": ["other", "fifo", "best"], "description": "policy"}


def test_a_policy_is_filled_in_and_has_a_priority_where_it_takes_one() -> None:
    program = _declared(
        parameters={"scheduler": SCHEDULER}, sched={"policy": "{{ scheduler }}", "priority": 7}
    )
    assert program.command(_setting(program)).sched == Sched(policy=Policy.OTHER)
    fifo = _setting(program, scheduler="fifo")
    assert program.command(fifo).sched == Sched(policy=Policy.FIFO, priority=7)
    assert program.warmup_command(fifo, 0.1, None).sched == Sched(policy=Policy.FIFO, priority=7)
    with pytest.raises(UsageError, match=r"sched.policy: expected one of other, fifo"):
        program.command(_setting(program, scheduler="best"))
    assert _declared().command(_setting(program)).sched is None


def test_a_cgroup_has_its_limits_where_its_condition_holds() -> None:
    program = _declared(
        parameters={"n": NUMBER},
        cgroup={
            "when": "n > 4",
            "weight": "n * 10",
            "quota_percent": "50 if n > 8 else 0",
            "memory_mib": 64,
            "cpus": "{{ first_cpu if n > 8 else '' }}",
        },
    )
    assert program.command(_setting(program)).cgroup is None
    some = CommandCgroup(weight=50, memory_mib=64)
    assert program.command(_setting(program, n=5)).cgroup == some
    every = CommandCgroup(weight=90, quota_percent=50, memory_mib=64, cpus=frozenset({0}))
    assert program.command(_setting(program, n=9)).cgroup == every
    assert program.command(_setting(program, n=9)).cgroup.controllers == ("cpu", "memory", "cpuset")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"sched": {"policy": "best"}}, "expected one of other, fifo"),
        ({"sched": {"policy": "{{ vcpus }}"}}, "'sched.policy': no 'vcpus'"),
        ({"sched": {"policy": "fifo", "priority": 0}}, "sched.priority"),
        ({"sched": {"policy": "fifo"}, "schedules_itself": True}, "'schedules_itself'"),
        ({"cgroup": {}}, "a cgroup without a limit has no effect"),
        ({"cgroup": {"when": "vcpus > 1", "weight": 5}}, "'cgroup.when': no 'vcpus'"),
        ({"cgroup": {"weight": "n"}}, "'cgroup.weight': no 'n'"),
        ({"cgroup": {"weight": 0}}, "cgroup.weight"),
        ({"cgroup": {"cpus": "{{ n }}"}}, "'cgroup.cpus': no 'n'"),
    ],
)
def test_a_policy_or_a_cgroup_that_cannot_be_is_refused(keys: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        _declared(**keys)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"weight": "vcpus / 4"}, r"cgroup.weight: expected a whole number"),
        ({"quota_percent": "0 - vcpus"}, "expected a whole number from 0"),
        ({"memory_mib": "vcpus > 1"}, "expected a whole number"),
        ({"cpus": "first"}, "cgroup.cpus: not a CPU list"),
    ],
)
def test_a_limit_that_comes_to_nothing_is_refused(limits: Any, said: str) -> None:
    program = _declared(cgroup=limits)
    with pytest.raises(UsageError, match=said):
        program.command(_setting(program))


def test_a_workload_with_a_policy_or_a_cgroup_of_its_own_is_no_neighbour() -> None:
    for keys in ({"sched": {"policy": "batch"}}, {"cgroup": {"weight": 5}}):
        assert "a policy or a cgroup of its own" in str(_declared(**keys).why_no_neighbour({}, 1))
    assert _declared(sched={"policy": "other"}).why_no_neighbour({}, 1) is None
