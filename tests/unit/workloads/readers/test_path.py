import json

import pytest
from pydantic import ValidationError

from labctl.base.errors import BrokenError
from labctl.workloads.metric_file import read_run
from labctl.workloads.readers.path import parse_path, values_at
from labctl.workloads.readers.value import Value
from tests.unit.workloads.readers.outputs import Left, metric, metrics, read
from tests.unit.workloads.trials import recorded

TREE = {
    "a": {"95.0": 1, "b": [10, 20, 30]},
    "runs": [{"name": "fork", "n": 1}, {"name": "mmap", "n": 2}],
    "by": {"x": {"n": 5}, "y": {"n": 6}},
}


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ('a."95.0"', [1]),
        ("a.b[0]", [10]),
        ("a.b[-1]", [30]),
        ("a.b[*]", [10, 20, 30]),
        ("runs[name=mmap].n", [2]),
        ('runs[name="fork"].n', [1]),
        ("runs[*].n", [1, 2]),
        ("by[*].n", [5, 6]),
    ],
)
def test_a_path_leads_to_values(path: str, values: list[int]) -> None:
    assert values_at(TREE, path) == values


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("a.c", "'a.c' is not there"),
        ("b", "'b' is not there"),
        ("a.b[3]", "the list has 3 elements"),
        ("runs[name=exec].n", "expected one element, got 0"),
        ("runs[*].seconds", "is not there"),
        ("a.b.c", "expected a mapping, got a list"),
        ("a[0]", "expected a list, got a mapping with the keys 95.0, b"),
    ],
)
def test_a_missing_step_is_an_error_that_says_what_is_there(path: str, said: str) -> None:
    with pytest.raises(BrokenError) as error:
        values_at(TREE, path)
    assert said in error.value.message


def test_a_missing_key_names_the_nearest() -> None:
    with pytest.raises(BrokenError) as error:
        values_at({"requests": 1}, "request")
    assert "Did you mean 'requests'?" in str(error.value.hint)


@pytest.mark.parametrize("path", ["", ".a", "a..b", "a[", "a[b]", "a b", "a]", 'a"b"', "[*", "$.a"])
def test_what_is_no_path_is_refused(path: str) -> None:
    if path == "$.a":  # a key like any other
        assert parse_path(path)
        return
    with pytest.raises(ValueError, match="path|missing"):
        parse_path(path)


def test_a_value_that_is_null_or_left_out_is_never_dropped() -> None:
    text = json.dumps({"intervals": [{"n": 1}, {"n": None}]})
    with pytest.raises(BrokenError, match="nothing \\(null\\)"):
        read(metric(json="intervals[*].n", which="sum"), text)


def test_iperf3_s_bandwidth_is_read_of_its_own_json() -> None:
    text = recorded("iperf3-3.12-native.json")
    found = read(metric(json="end.sum_received.bits_per_second", unit="bit/s"), text)
    assert found["it"] == pytest.approx(
        json.loads(text)["end"]["sum_received"]["bits_per_second"] / 8
    )


def test_stress_ng_s_operations_are_read_of_its_own_yaml() -> None:
    text = recorded("stress-ng-0.15.06-mmap.yaml")
    declared = metric(
        from_="out.yaml",
        yaml="metrics[stressor=mmap].bogo-ops",
        whole=r"\n\.\.\.\s*\Z",
        unit="count",
        better="neither",
    )
    assert read(declared, out_yaml=text)["it"] > 0
    with pytest.raises(BrokenError, match="is truncated"):
        read(declared, out_yaml=text[:-10])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &x [1]\nb: *x\n", "alias"),
        ("a: [1", "not valid YAML"),
        ("x: 1\n" * 300_000, "1 MiB"),
        ("", "expected a mapping"),
        ("[" * 100, "nested deeper"),
    ],
)
def test_yaml_beyond_its_limits_is_an_error(text: str, said: str) -> None:
    with pytest.raises(BrokenError, match=said):
        read(metric(yaml="a"), text)


@pytest.mark.parametrize("text", ["", "{", '{"a": 1} trailing', "[" * 100_000, '{"a": {"b": 1}}'])
def test_json_that_is_none_is_an_error(text: str) -> None:
    with pytest.raises(BrokenError, match="metric 'it'"):
        read(metric(json="a"), text)


def test_numbers_that_json_holds_as_text_count() -> None:
    assert read(metric(json="a"), '{"a": "12.5"}') == {"it": 12.5}
    with pytest.raises(BrokenError, match="expected a number there, got True"):
        read(metric(json="a"), '{"a": true}')


def test_a_formula_is_over_several_paths() -> None:
    rate = {
        "json": {"count": "done.ops", "seconds": "done.s"},
        "formula": "count / seconds",
        "unit": "1/s",
        "better": "higher",
    }
    text = '{"done": {"ops": 9, "s": 2}}'
    found = read_run(metrics(rate=rate), Left(stdout=text))["rate"]
    assert isinstance(found, Value)
    assert found.value == 4.5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"formula": None}, "has several numbers: combine them with a 'formula'"),
        ({"formula": "count / time"}, "the formula uses 'time'; the paths are count"),
        ({"json": "done.ops"}, "'formula' is over a regex's groups, over several paths by name"),
    ],
)
def test_paths_and_their_formula_belong_together(change: dict[str, object], said: str) -> None:
    keys = {"json": {"count": "done.ops"}, "formula": "2 * count", "unit": "1/s"}
    with pytest.raises(ValidationError, match=said):
        metrics(rate={**keys, "better": "higher", **change})


def test_each_of_several_paths_names_one_number() -> None:
    keys = {"json": {"n": "all[*]"}, "formula": "2 * n", "unit": "count", "better": "higher"}
    with pytest.raises(BrokenError, match="expected one value, got 2"):
        read_run(metrics(twice=keys), Left(stdout='{"all": [1, 2]}'))
