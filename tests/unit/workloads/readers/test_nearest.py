"""The line of an output that is nearest to a pattern without a match."""

from __future__ import annotations

import pytest

from labctl.workloads.loops import Output
from labctl.workloads.metric_file import MetricFile, explain_run
from labctl.workloads.readers.matching import nearest_line

OUTPUT = Output(
    "warming up\nThroughput: 12 ops per second\nlatency 4 ms\n",
    "total score = 7\n",
    {"out.txt": b"deadline missed 3 times\n"},
)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (
            r"^throughput = ([\d.]+)",
            "The nearest line of stdout is 'Throughput: 12 ops per second'.",
        ),
        (
            r"(?P<value>\d+) OPS/sec",
            "The nearest line of stdout is 'Throughput: 12 ops per second'.",
        ),
        (r"score: (\d+)", "The nearest line of stderr is 'total score = 7' ('stderr:' before"),
        (r"missed: (\d+)", "The nearest line of out.txt is 'deadline missed 3 times' ('out.txt:'"),
    ],
)
def test_the_line_with_most_of_the_pattern_s_words_is_named(pattern: str, said: str) -> None:
    found = nearest_line(pattern, OUTPUT, "stdout")
    assert found is not None
    assert found.startswith(said)


def test_the_searched_text_comes_first() -> None:
    both = Output("value = 1\n", "value = 2\n")
    assert "of stderr is 'value = 2'." in str(nearest_line(r"value: (\d)", both, "stderr"))
    assert "of stdout is 'value = 1'." in str(nearest_line(r"value: (\d)", both, "stdout"))


@pytest.mark.parametrize("pattern", [r"^(\d+)$", r"[a-z]{2}(?P<unit>\w+)", "absent: (.*)"])
def test_a_pattern_without_words_of_the_output_has_no_nearest_line(pattern: str) -> None:
    assert nearest_line(pattern, OUTPUT, "stdout") is None


def test_a_long_line_is_cut() -> None:
    found = nearest_line("value: (.)", Output("value " + "x" * 5000), "stdout")
    assert len(str(found)) < 250


def test_a_try_tells_it() -> None:
    metric = MetricFile.model_validate(
        {"regex": r"^throughput = (?P<value>\d+)", "unit": "count", "better": "higher"}
    )
    explained = explain_run({"rate": metric}, OUTPUT)["rate"]
    assert "matches nothing" in str(explained.error)
    assert "Throughput: 12 ops" in str(explained.hint)
