"""A report that was printed before is printed again while it holds, and only then."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import filterfalse
from pathlib import Path

import pytest

from labctl.analysis.confirmation import evidence
from labctl.store.run_folder import RunFolder
from tests.unit.analysis.alter import with_run
from tests.unit.synthetic import one_tuning_run, write_run

RESULTS = Path(__file__).resolve().parents[3] / "results"

LABCTL = """\
from labctl.store import kept_text
kept_text.SETTLED_NS = -3600 * 10**9  # the tests' files are new
from labctl.cli.main import main
main()
"""


@pytest.fixture
def environment(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    state = tmp_path_factory.mktemp("state")
    return {**os.environ, "LABCTL_STATE_DIR": str(state), "COLUMNS": "100"}


@pytest.fixture
def results(tmp_path: Path, written: RunFolder) -> Path:
    """A run as a folder, one as an archive, and a folder that is no run."""
    results = tmp_path / "results"
    shutil.copytree(written.path, results / "example")
    shutil.copy(RESULTS / "example-traced.tar.xz", results)
    (results / "notes").mkdir()
    return results


def labctl(
    environment: Mapping[str, str],
    results: Path,
    *arguments: str,
    before: Iterable[str] = (),
    at: Path | None = None,
) -> str:
    command = [*before, sys.executable, "-c", LABCTL, *arguments, "--results", str(results)]
    done = subprocess.run(
        command, env=environment, cwd=at or results, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout


def kept_files(environment: Mapping[str, str]) -> list[Path]:
    return list(Path(environment["LABCTL_STATE_DIR"]).glob("cache/reports/*.json"))


def touched(trace: Path, at: Path) -> set[str]:
    """Every path that a traced process gave to the kernel."""
    found = set()
    for line in trace.read_text(errors="replace").splitlines():
        call = re.match(r'[\d ]*(\w+)\((?:(AT_FDCWD|\d+)(?:<([^>]*)>)?, )?"([^"]*)"', line)
        if call and call[4]:
            found.add(os.path.normpath(os.path.join(call[3] or at, call[4])))
    return found


def _may_trace() -> bool:
    traced = ["strace", "-o", "/dev/null", "true"]
    try:
        return subprocess.run(traced, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def there(path: str) -> Path:
    """The nearest folder on the way to a path, which changes when what is looked for comes."""
    return next(parent for parent in Path(path).parents if parent.exists())


def is_pythons(path: str) -> bool:
    """Whether a path is Python's own affair or the distribution's: libraries in C, which come with
    modules that are looked at, bytecode of such modules, and what these look for as they start."""
    name, parts = Path(path).name, Path(path).parts
    is_librarys = "__pycache__" in parts or any(part.endswith(".libs") for part in parts)
    is_packages = "site-packages" in parts and name.startswith("__init__.")
    starts = ("/etc/ld.so", "/etc/localtime", "/lib/", "/usr/", "/sys/devices/system/cpu/possible")
    at_start = path.startswith(starts) or path == os.path.dirname(sys.executable)
    return is_librarys or is_packages or at_start


@pytest.mark.skipif(not _may_trace(), reason="strace is missing, or may trace nothing here")
@pytest.mark.parametrize(
    "asked",
    [
        "example",
        "./example",
        "example-traced",
        "./example-traced.tar.xz",
        "latest",
        "1",
        "example --full",
        "example-traced --full",
        "example --metric events_per_s",
    ],
)
def test_what_is_kept_looks_at_all_that_it_was_made_of(
    environment: Mapping[str, str],
    results: Path,
    tmp_path_factory: pytest.TempPathFactory,
    asked: str,
) -> None:
    """Held against the kernel's own account of either process."""
    seen = []
    traces = tmp_path_factory.mktemp("traces")
    for trace in (traces / "made", traces / "kept"):
        tracer = ("strace", "-f", "-y", "-e", "trace=%file,getdents64", "-o", str(trace))
        labctl(environment, results, "report", *asked.split(), before=tracer)
        seen.append(touched(trace, results))
    made, kept = seen
    assert len(kept_files(environment)) == 1
    unseen = {path for path in made - kept if str(there(path)) not in kept}
    assert set(filterfalse(is_pythons, unseen)) == set()
    assert len(kept) < len(made)


def edited_sample(results: Path) -> None:
    """A sample of the same size, and the times put back."""
    path = results / "example/trials/0001/samples.json"
    before, text = path.stat(), path.read_text()
    path.write_text(re.sub(r'"value": [1-9]', '"value": 0', text))
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [
        edited_sample,
        lambda results: shutil.rmtree(results / "example/trials/0002"),
        lambda results: (results / "example/trials/0001/samples.json").unlink(),
        lambda results: (results.parent / "page").touch(),
    ],
)
def test_what_changes_the_report_makes_it_anew(
    environment: Mapping[str, str],
    results: Path,
    tmp_path_factory: pytest.TempPathFactory,
    change: Callable[[Path], None],
) -> None:
    """Held against labctl with another state folder, which has kept nothing."""
    (results / "example/report.html").symlink_to(results.parent / "page")
    before = labctl(environment, results, "report", "example")
    change(results)
    after = labctl(environment, results, "report", "example")
    fresh = {**environment, "LABCTL_STATE_DIR": str(tmp_path_factory.mktemp("fresh"))}
    assert after == labctl(fresh, results, "report", "example")
    assert after != before


def test_a_run_that_verifies_it_is_seen_in_a_folder_that_was_there(
    environment: Mapping[str, str], tmp_path: Path
) -> None:
    results, elsewhere = tmp_path / "results", tmp_path / "elsewhere"
    (results / "again").mkdir(parents=True)
    first = write_run(results / "example", one_tuning_run(1)).load()
    verifies = {"run": first.name, "tuning": "pinned", "evidence": evidence(first)}
    write_run(
        elsewhere / "again", replace(with_run(one_tuning_run(2), verifies=verifies), name="again")
    )
    before = labctl(environment, results, "report", "example")
    for name in ("trials", "plan.json", "run.json"):
        (elsewhere / "again" / name).rename(results / "again" / name)
    after = labctl(environment, results, "report", "example")
    assert "Confirmed." in after
    assert "Confirmed." not in before


def test_latest_is_the_newest_run_each_time(environment: Mapping[str, str], results: Path) -> None:
    before = labctl(environment, results, "report", "latest")
    (results / "example-traced.tar.xz").unlink()
    assert labctl(environment, results, "report", "latest") != before


def test_a_run_that_a_link_leads_to_is_seen_when_it_comes(
    environment: Mapping[str, str], results: Path, tmp_path: Path
) -> None:
    (results / "a-link").symlink_to(tmp_path / "elsewhere")
    before = labctl(environment, results, "report", "1")
    shutil.copytree(results / "example", tmp_path / "elsewhere")
    assert "run a-link" not in before
    run = json.loads((tmp_path / "elsewhere/run.json").read_text())
    (tmp_path / "elsewhere/run.json").write_text(json.dumps({**run, "started_at": None}))
    after = labctl(environment, results, "report", "1")
    fresh = {**environment, "LABCTL_STATE_DIR": f"{tmp_path}/fresh"}
    assert after == labctl(fresh, results, "report", "1") != before


def test_an_archive_that_comes_first_is_seen_when_it_comes(
    environment: Mapping[str, str], results: Path
) -> None:
    """A path is looked for from the present folder first, then from that of the results."""
    (results / "a").mkdir()
    (results / "example-traced.tar.xz").rename(results / "a" / "b.tar.xz")
    at = results.parent / "elsewhere"
    (at / "a").mkdir(parents=True)
    before = labctl(environment, results, "report", "a/b.tar.xz", at=at)
    shutil.copy(RESULTS / "example-kvm.tar.xz", at / "a" / "b.tar.xz")
    after = labctl(environment, results, "report", "a/b.tar.xz", at=at)
    fresh = {**environment, "LABCTL_STATE_DIR": str(at / "fresh")}
    assert after == labctl(fresh, results, "report", "a/b.tar.xz", at=at) != before


def test_what_is_written_beside_the_results_changes_nothing(
    environment: Mapping[str, str], results: Path
) -> None:
    """As `labctl report example > new.txt` does."""
    labctl(environment, results, "report", "example")
    (kept,) = kept_files(environment)
    before = kept.stat().st_mtime_ns
    (results.parent / "new.txt").touch()
    labctl(environment, results, "report", "example")
    assert kept.stat().st_mtime_ns == before


def test_another_width_is_another_report(environment: Mapping[str, str], results: Path) -> None:
    wide = labctl(environment, results, "report", "example")
    narrow = labctl({**environment, "COLUMNS": "60"}, results, "report", "example")
    assert max(map(len, narrow.splitlines()[:10])) <= 60
    assert wide != narrow
    assert wide == labctl(environment, results, "report", "example")


@pytest.mark.parametrize("form", ["--json", "--csv", "--prometheus"])
def test_what_other_programs_read_is_always_made(
    environment: Mapping[str, str], results: Path, form: str
) -> None:
    assert labctl(environment, results, "report", "example", form)
    assert kept_files(environment) == []
