import pytest

from labctl.base.errors import UsageError
from labctl.workloads.registry import checkers, workload
from labctl.workloads.setting import NumberParameter, Setting


def test_an_unknown_workload_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError) as caught:
        workload("sysbench-cpo")
    assert caught.value.hint is not None
    assert "Did you mean 'sysbench-cpu'?" in caught.value.hint


def test_each_workload_is_found_by_its_own_name() -> None:
    assert {name: workload(name).name for name in checkers()} == {n: n for n in checkers()}


@pytest.mark.parametrize("name", checkers())
def test_an_unknown_parameter_is_refused_with_what_is_allowed(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        workload(name).check_parameters({"maxprime": 1})
    assert "'maxprime'" in caught.value.message
    assert caught.value.hint is not None
    assert all(p.name in caught.value.hint for p in workload(name).parameters)


@pytest.mark.parametrize("name", checkers())
@pytest.mark.parametrize("value", [True, 1.5, None, "x", -1, 10**12, [1]])
def test_values_of_another_kind_or_out_of_range_are_refused(name: str, value: object) -> None:
    for parameter in workload(name).parameters:
        if value == 1.5 and isinstance(parameter, NumberParameter) and parameter.minimum <= 1.5:
            continue
        with pytest.raises(UsageError, match=f"'{parameter.name}'"):
            workload(name).check_parameters({parameter.name: value})


@pytest.mark.parametrize("name", checkers())
def test_defaults_fill_what_is_left_out(name: str) -> None:
    found = workload(name).check_parameters({})
    assert found == {p.name: p.default for p in workload(name).parameters}


@pytest.mark.parametrize("name", checkers())
def test_the_program_that_runs_is_the_one_whose_hash_is_compared(name: str) -> None:
    program = workload(name)
    setting = Setting(
        parameters=program.check_parameters({}),
        vcpus=1,
        duration_s=10,
        data_paths=("/dev/vdb",),
        peer="198.18.0.1",
    )
    for command in (program.command(setting), program.warmup_command(setting, 0.3, None)):
        assert command.argv[0] in program.binaries


@pytest.mark.parametrize("name", checkers())
def test_exactly_the_calibratable_ones_can_be_counted(name: str) -> None:
    program = workload(name)
    setting = Setting(parameters=program.check_parameters({}), vcpus=1, duration_s=10)
    assert (program.exact_command(setting, 10) is not None) is program.calibratable
