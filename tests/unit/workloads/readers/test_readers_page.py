"""What docs/own-program.md says about readers is what they do."""

import re
from pathlib import Path

import pytest

from labctl.base.quantities import SCALES
from labctl.base.yamltext import parse_yaml
from labctl.workloads.metric_file import read_run
from labctl.workloads.readers.named import READERS
from tests.unit.workloads.readers.outputs import METRICS, Left, numbers

PAGE = (Path(__file__).parents[4] / "docs" / "own-program.md").read_text()
SECTION = PAGE.partition("## How a metric is read\n")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| (`\w.*?) \| `(\{.*?\})` \| `(.*?)` \| `(.*?)` \|$", SECTION, re.M)


def test_each_reader_has_an_example() -> None:
    table = SECTION.partition("|---|---|---|---|\n")[2].partition("\n<!--")[0]
    assert len(ROWS) == len(table.splitlines())
    readers = {re.match(r"`(\w+)`", row[0])[1] for row in ROWS}  # type: ignore[index]
    assert readers == {"regex", "json", "yaml", "csv", "hdr", "formula"}
    assert all(f"`{name}`" in SECTION for name in READERS if name != "sysbench")


@pytest.mark.parametrize(("name", "declared", "output", "gives"), ROWS, ids=[r[0] for r in ROWS])
def test_an_example_gives_what_the_page_says(
    name: str, declared: str, output: str, gives: str
) -> None:
    metrics = METRICS.validate_python(parse_yaml(declared))
    found = numbers(read_run(metrics, Left(stdout=output.replace("⏎", "\n"))))
    expected = {name: float(value) for name, value in parse_yaml(f"{{{gives}}}").items()}
    assert found == pytest.approx(expected, rel=1e-3)


def test_the_page_lists_the_units() -> None:
    listed = SECTION.partition("<!-- units -->")[2].partition("<!-- end of units -->")[0]
    assert re.findall(r"`([^`]+)`", listed) == list(SCALES)
