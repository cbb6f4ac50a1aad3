"""Plug-ins: the example package of the docs, and packages that are broken."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from labctl.base.plugins import Group, PluginWarning, names, rows
from labctl.cli.main import _COMMANDS
from labctl.host.doctor.check import Check

CHECKOUT = Path(__file__).parents[2]
EXAMPLE = CHECKOUT / "docs/examples/plugin"
SCRIPT = str(Path(sys.executable).with_name("labctl"))

DD = """\
description: copies zeros in the page cache
trial: {kind: once}
command: [/usr/bin/dd, if=/dev/zero, of=/dev/null, bs=1M, count=1000]
metrics:
  report: {reader: dd}
primary: copy_bandwidth
"""
PARSED = """\
import sys
from pathlib import Path
from labctl.base.cpus import CpuSet
from labctl.collect.table import SOURCES
from labctl.store.trial import TrialFolder
from tests.unit.collect.targets import raw_trial

folder = TrialFolder(Path(sys.argv[1]))
before, after = (
    {"monotonic_ns": at * 10**9, "cpu_pressure": f"some avg10=0.00 total={stalled}\\nfull total=9"}
    for at, stalled in ((10, 500_000), (12, 1_500_000))
)
folder.write_raw_json("host.json", {"kind": "guest", "clk_tck": 100, "trial_cpus": "0",
                                    "before": before, "after": after})
(collector,) = [one for one in SOURCES if getattr(one, "name", "") == "cpu-pressure"]
for reading in collector.parse(raw_trial(folder)):
    print(reading.key, reading.value, reading.unit)
"""


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the example package is installed in."""
    folder = tmp_path_factory.mktemp("example")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run(
        [*pip, "--no-build-isolation", "--target", folder, EXAMPLE], check=True, timeout=120
    )
    return folder


def plant(folder: Path, group: str, points: Mapping[str, str], code: str) -> Path:
    """Write an installed distribution `broken-one` by hand."""
    about = folder / "broken_one-2.5.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-one\nVersion: 2.5\n")
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (about / "entry_points.txt").write_text(f"[{group}]\n{lines}")
    (folder / "broken_one.py").write_text(code)
    return folder


def run(
    site: Path, *words: str | Path, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(site), str(CHECKOUT)])
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "COLUMNS": "200", "PYTHONPATH": path, **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["report", "example", "--format", "markdown"], "| pinned+fifo | baseline | sysbench-cpu"),
        (["collectors"], "cpu-pressure"),
        (["explain", "cpu_pressure"], "CPU pressure, in 1; lower is better"),
        (["host", "status"], "stat-interval"),
        (
            ["doctor", "--full"],
            "labctl-example 1.0: checks pressure-stall, collectors cpu-pressure",
        ),
        (["doctor", "--json"], '"pressure-stall"'),
        (["workload", "try", "dd.yaml", "--from", "dd.txt"], "copy_bandwidth = 5.24288e+08 B/s"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_each_table_has_the_row_of_the_example(
    example: Path, tmp_path: Path, words: list[str], says: str
) -> None:
    (tmp_path / "dd.yaml").write_text(DD)
    (tmp_path / "dd.txt").write_text("1048576000 bytes (1.0 GB, 1000 MiB) copied, 2 s, 524 MB/s\n")
    done = run(example, SCRIPT, *words, cwd=tmp_path)
    assert says in done.stdout, done.stderr
    assert "left out" not in done.stderr


def test_the_collector_of_the_example_is_parsed_with_the_others(
    example: Path, tmp_path: Path
) -> None:
    done = run(example, "-c", PARSED, tmp_path)
    assert done.stdout == "cpu_pressure 0.5 1\n", done.stderr


def test_a_broken_plug_in_is_named_and_the_rest_works(tmp_path: Path) -> None:
    site = plant(tmp_path, "labctl.metrics", {"spins": "broken_one:GONE"}, "")
    done = run(site, SCRIPT, "explain", "spins")
    assert (
        "plug-in 'spins' (labctl.metrics) of broken-one 2.5 is left out: Attribute" in done.stderr
    )
    done = run(site, SCRIPT, "explain", "p95")
    assert done.returncode == 0
    done = run(site, SCRIPT, "doctor")
    assert "Left out: spins (AttributeError: " in " ".join(done.stdout.split())


CHECKS = """\
from labctl.host.doctor.check import Check, fine
GOOD = Check("good", "software", "", lambda reader, scope: fine(""))
KERNEL = Check("kernel", "software", "", lambda reader, scope: fine(""))
"""


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("good", "broken_one:GOOD", None),
        ("good", "broken_one:MISSING", "AttributeError"),
        ("good", "broken_two:GOOD", "ModuleNotFoundError"),
        ("good", "broken_one:fine", "expected a Check, got a function"),
        ("other", "broken_one:GOOD", "must have one name, got 'good'"),
        ("kernel", "broken_one:KERNEL", "labctl has a row of that name"),
    ],
)
def test_what_is_not_a_new_row_is_left_out_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, reason: str | None
) -> None:
    monkeypatch.syspath_prepend(plant(tmp_path, Group.CHECKS, {name: value}, CHECKS))
    monkeypatch.delitem(sys.modules, "broken_one", raising=False)
    assert names(Group.CHECKS) == [name]
    if reason is None:
        assert list(rows(Group.CHECKS, Check, ["kernel"])) == [name]
        return
    with pytest.warns(
        PluginWarning, match=f"'{name}' .* of broken-one 2.5 is left out: .*{reason}"
    ):
        assert rows(Group.CHECKS, Check, ["kernel"]) == {}


LOUD = "import os\nopen(os.environ['LOADED'], 'w').close()\n"


@pytest.fixture(scope="module")
def loud(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A distribution with a plug-in for every table, whose import leaves a file."""
    folder = tmp_path_factory.mktemp("loud")
    plant(folder, "labctl.exports", {"loud": "broken_one:LOUD"}, LOUD)
    points = "".join(f"[{group}]\nloud = broken_one:LOUD\n" for group in Group)
    (folder / "broken_one-2.5.dist-info/entry_points.txt").write_text(points)
    return folder


def test_help_and_completion_import_none(loud: Path, tmp_path: Path) -> None:
    def loads(*words: str, **environment: str) -> bool:
        done = run(loud, SCRIPT, *words, LOADED=str(tmp_path / "loaded"), **environment)
        assert done.returncode == 0, done.stderr
        return (tmp_path / "loaded").exists()

    for words in (["--help"], ["--version"], *([name, "--help"] for name in _COMMANDS)):
        assert not loads(*words), words
    for line in ("report example --format ", "explain ", "sweep --workload ", "report example --m"):
        words = {"COMP_WORDS": f"labctl {line}", "COMP_CWORD": str(line.count(" ") + 1)}
        assert not loads(_LABCTL_COMPLETE="bash_complete", **words), line
    # It exits with 1 if something blocks, such as another labctl on this host.
    run(loud, SCRIPT, "doctor", "--json", LOADED=str(tmp_path / "loaded"))
    assert (tmp_path / "loaded").exists()


def test_completion_offers_names_of_plug_ins(example: Path) -> None:
    words = {"COMP_WORDS": "labctl report example --format m", "COMP_CWORD": "4"}
    done = run(example, SCRIPT, _LABCTL_COMPLETE="bash_complete", **words)
    assert done.stdout.split() == ["plain,markdown"]


def test_a_lab_folder_loads_no_code(tmp_path: Path) -> None:
    lab = plant(tmp_path / "lab", "labctl.checks", {"loud": "broken_one:LOUD"}, LOUD)
    (lab / ".labctl-lab").touch()
    loaded = tmp_path / "loaded"
    done = run(tmp_path, SCRIPT, "doctor", "--json", cwd=lab, LOADED=str(loaded))
    assert '"findings"' in done.stdout, done.stderr
    assert not loaded.exists()
    assert "left out" not in done.stderr


def test_the_page_lists_every_table() -> None:
    page = (CHECKOUT / "docs/plugins.md").read_text()
    assert [group for group in Group if f"| `{group}` |" not in page] == []
