"""Damaged, cut and foreign files at every command that reads them: exit code 2, a sentence that
names the file, no traceback. 1 if the answer of a check is that something differs."""

from __future__ import annotations

import gzip
import lzma
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from labctl.run.commands.export import run_files
from labctl.store.archive import pack
from tests.unit.cli.conftest import Labctl, Said
from tests.unit.synthetic import synthetic_run, write_run

POLICY = """\
undecided: open
rules:
  - metric: primary
    against: baseline
    worse_by_at_most: 5 %
"""


@dataclass(frozen=True)
class Inputs:
    """A whole run as folder and archive, and where the first part of the archive ends."""

    folder: Path
    archive: Path
    first_part: int


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    place = tmp_path_factory.mktemp("whole")
    tunings = ("native", "baseline", "control", "pinned")
    run = write_run(place / "good", synthetic_run(blocks=2, tunings=tunings))
    archive = place / "good.tar.xz"
    with archive.open("wb") as target:
        pack(run_files(run.path), target, run.name)
    decoder = lzma.LZMADecompressor()
    decoder.decompress(archive.read_bytes())
    return Inputs(run.path, archive, archive.stat().st_size - len(decoder.unused_data))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABCTL_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("LABCTL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "policy.yaml").write_text(POLICY)
    return tmp_path


def said(labctl: Labctl, command: str, whole: Inputs, bad: Path) -> Said:
    words = {"GOOD": str(whole.archive), "BAD": str(bad), "RUNS": str(bad.parent)}
    done = labctl(*(words.get(word, word) for word in command.split()))
    assert "Traceback" not in done.err + done.out, command
    assert "a fault in labctl" not in done.err, command
    return done


READING = (
    "report BAD",
    "report BAD --json",
    "report BAD --html page.html",
    "report BAD --csv",
    "compare BAD GOOD",
    "compare GOOD BAD",
    "advise BAD",
    "advise BAD --verify",
    "gate BAD --policy policy.yaml",
    "gate BAD --policy policy.yaml --json",
    "doctor --since BAD",
    "run show BAD",
    "history --metric events_per_s --results RUNS",
    "fleet report RUNS",
    "fleet advise RUNS",
)
"""Commands that need only the files that reports read."""
DECODING = (
    "run import BAD --name taken",
    "run export BAD --out out.tar.xz",
    "run export BAD --redact --out out.tar.xz",
    "run verify BAD --digest " + "a" * 64,
    "timeline BAD",
    "timeline BAD 1",
)
"""Commands that read all of an archive."""

Damage = Callable[[bytes, int], bytes]


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


ARCHIVES: dict[str, tuple[Damage, str]] = {
    "empty": (lambda data, first: b"", "truncated"),
    "text": (lambda data, first: b"not an archive\n", "not an xz file"),
    "gzip": (lambda data, first: gzip.compress(data), "not an xz file"),
    "xz of text": (lambda data, first: lzma.compress(b"x" * 2000), "it ends after 0 files"),
    "damaged": (lambda data, first: _flipped(data, first // 2), "is not an archive"),
    "cut": (lambda data, first: data[: first // 2], "truncated"),
    "cut after the first part": (lambda data, first: data[:first], "it is cut off, or continued"),
    "cut in the second part": (lambda data, first: data[: (first + len(data)) // 2], "it is cut"),
    "without its last byte": (lambda data, first: data[:-1], "it is cut off, or continued"),
    "continued": (lambda data, first: data + b"x", "it is cut off, or continued"),
}
"""Kind of damage to the damage, given the data and the size of the first part, and the words."""


@pytest.mark.parametrize("kind", ARCHIVES)
def test_a_wrong_archive_ends_each_command_with_2_and_its_name(
    whole: Inputs, place: Path, labctl: Labctl, kind: str
) -> None:
    damage, words = ARCHIVES[kind]
    bad = place / "runs/bad.tar.xz"
    bad.write_bytes(damage(whole.archive.read_bytes(), whole.first_part))
    for command in (*READING, *DECODING, "run verify BAD"):
        done = said(labctl, command, whole, bad)
        assert done.code == 2, (command, done)
        # An import takes what does not begin as an archive for a CSV file.
        if not command.startswith("run import") or not kind.startswith(("empty", "text", "gzip")):
            assert words in done.err, (command, done.err)
        assert str(bad) in done.err or "bad: " in done.err, (command, done.err)
        assert not (place / "out.tar.xz").exists(), command
        assert not (place / "results/taken").exists(), command
    for command in ("run reparse BAD", "sweep --resume BAD"):
        assert said(labctl, command, whole, bad).code == 2
    listed = said(labctl, "run list --results RUNS", whole, bad)
    assert listed.code == 0
    assert words in listed.err, "the list has all runs, readable or not"


def test_raw_files_that_are_damaged_in_an_archive_end_what_reads_them(
    whole: Inputs, place: Path, labctl: Labctl
) -> None:
    data = whole.archive.read_bytes()
    bad = place / "runs/bad.tar.xz"
    bad.write_bytes(_flipped(data, (whole.first_part + len(data)) // 2))
    for command in DECODING:
        done = said(labctl, command, whole, bad)
        assert (done.code, "it is damaged" in done.err) == (2, True), (command, done)
    assert said(labctl, "report BAD", whole, bad).code == 0, "it decodes none of them"


CONTENTS: dict[str, bytes | None] = {
    "empty": b"",
    "no text": b"\xff\0{",
    "a list": b"[]",
    "too deep": b"[" * 100_000,
    "half a pair": b'{"schema": 1, "trials": [], "labctl": "\\ud800"}',
    "newer": b'{"schema": 99, "trials": [], "samples": []}',
    "gone": None,
}

RUN = "run.json"
PLAN = "plan.json"
TRIAL = "trials/0001/trial.json"
SAMPLES = "trials/0001/samples.json"

FOLDERS: tuple[tuple[str, str, int], ...] = (
    # The rest of such a run is shown, with a warning; what needs the file ends with 2.
    (RUN, "run show BAD", 0),
    (RUN, "compare BAD GOOD", 2),
    (RUN, "gate BAD --policy policy.yaml", 2),
    (RUN, "doctor --since BAD", 2),
    (RUN, "sweep --resume BAD", 2),
    (RUN, "sweep --extend BAD --blocks 2", 2),
    (RUN, "run reparse BAD", 2),
    (RUN, "run verify BAD", 1),
    (PLAN, "report BAD", 2),
    (PLAN, "report BAD --html page.html", 2),
    (PLAN, "compare BAD GOOD", 2),
    (PLAN, "compare GOOD BAD", 2),
    (PLAN, "advise BAD", 2),
    (PLAN, "advise BAD --verify", 2),
    (PLAN, "gate BAD --policy policy.yaml", 2),
    (PLAN, "sweep --resume BAD", 2),
    (PLAN, "run show BAD", 0),
    (PLAN, "run verify BAD", 1),
    (TRIAL, "report BAD", 0),
    (TRIAL, "run verify BAD", 1),
    (TRIAL, "run reparse BAD", 2),
    (SAMPLES, "report BAD", 0),
    (SAMPLES, "run verify BAD", 1),
    (SAMPLES, "run verify BAD --digest " + "a" * 64, 1),
)
"""File of a run's folder, command, exit code if the file is damaged."""


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize(("file", "command", "code"), FOLDERS)
def test_a_damaged_file_of_a_run_is_a_wrong_file(
    whole: Inputs, place: Path, labctl: Labctl, file: str, command: str, code: int, content: str
) -> None:
    bad = place / "runs/bad"
    shutil.copytree(whole.folder, bad)
    data = CONTENTS[content]
    (bad / file).unlink()
    if data is not None:
        (bad / file).write_bytes(data)
    done = said(labctl, command, whole, bad)
    other = {
        (RUN, "gone"): 2,  # then the folder is not a run
        (SAMPLES, "gone"): 0,  # no digest of an older labctl says that they should be there
    }
    is_check = command.startswith("run verify") and "--digest" in command
    newer = 2 if content == "newer" and not is_check else code
    wanted = newer if is_check else other.get((file, content), newer)
    assert done.code == wanted, done
    if wanted == 2:
        assert done.err.startswith(("labctl: ", str(bad))) or "Warning" in done.out, done
    if content == "newer" and not is_check:
        assert "newer labctl" in done.err + done.out, done


def test_a_copy_that_lacks_what_could_not_be_read_is_not_made(
    whole: Inputs, place: Path, labctl: Labctl
) -> None:
    bad = place / "runs/bad"
    shutil.copytree(whole.folder, bad)
    (bad / SAMPLES).write_bytes(b"\xff\0{")
    done = said(labctl, "run export BAD --redact --out out.tar.xz", whole, bad)
    assert done.code == 2
    assert "the run 'bad' is damaged, so its copy would differ: trial 0001" in done.err
    assert not (place / "out.tar.xz").exists()


WRITTEN: dict[str, tuple[str, ...]] = {
    "study.yaml": ("study show BAD", "sweep BAD --plan-only", "lint BAD"),
    "tuning.yaml": ("lint BAD",),
    "workload.yaml": ("workload validate BAD", "workload show BAD", "workload try BAD"),
    "condition.yaml": ("condition validate BAD", "condition show BAD"),
    "policy.yaml": ("gate GOOD --policy BAD",),
    "domain.xml": ("tuning diff pinned --domain BAD", "sweep pinning --domain BAD --plan-only"),
    "trials.csv": ("run import BAD",),
}
"""File that people write, to the commands that read it."""

TEXTS = {
    "empty": b"",
    "no text": b"\xff\xfe\0",
    "a list": b"- 1\n- 2\n",
    "deep": b"[" * 2000,
    "another file": b"colour: blue\n",
    "xml": b"<a><b></a>",
}


@pytest.mark.parametrize("content", TEXTS)
@pytest.mark.parametrize("name", WRITTEN)
def test_a_wrong_file_of_a_person_is_named(
    whole: Inputs, place: Path, labctl: Labctl, name: str, content: str
) -> None:
    bad = place / "own" / name
    bad.parent.mkdir()
    bad.write_bytes(TEXTS[content])
    for command in WRITTEN[name]:
        done = said(labctl, command, whole, bad)
        assert done.code == (1 if command.startswith("lint") else 2), (command, done)
        assert name in done.err + done.out, (command, done)
    missing = place / "own/none" / name
    for command in WRITTEN[name]:
        assert said(labctl, command, whole, missing).code == 2, command


KEPT: tuple[tuple[str, str, int], ...] = (
    ("results/d/density.json", "density --show d", 2),
    ("results/f/fleet.json", "fleet report f", 2),
    ("results/f/fleet.json", "fleet advise f", 2),
    ("results/f/fleet.json", "fleet sweep --resume f", 2),
    ("results/f/fleet.json", "fleet rollout --resume f", 2),
    # Changed settings may be left: nothing says that the host is as it was.
    ("state/journal.jsonl", "host status", 4),
    ("state/journal.jsonl", "host restore", 4),
)
"""File that labctl keeps, command, exit code if the file is damaged."""


@pytest.mark.parametrize("content", [b"\xff\0{", b"[]", b"[" * 100_000])
@pytest.mark.parametrize(("file", "command", "code"), KEPT)
def test_a_damaged_file_that_labctl_keeps_is_named(
    place: Path, labctl: Labctl, whole: Inputs, file: str, command: str, code: int, content: bytes
) -> None:
    bad = place / file
    bad.parent.mkdir(parents=True)
    bad.write_bytes(content)
    done = said(labctl, command, whole, bad)
    assert done.code == code, done
    assert str(bad) in done.err


ARGUMENTS = {
    "a long name": "a" * 5000,
    "a long path": "./" + "a" * 5000,
    "a deep path": "./" + "a/" * 3000,
    "a link to itself": "./loop",
    "a file of links": "./loop.yaml",
    "a long number": "9" * 5000,
    "another alphabet": "٣",
    "controls": "./\x1b[31m\n",
    "no text": "./\udcff",
    "nothing": "",
    "a device": "/dev/zero",
    "a file that cannot be read": "/proc/self/mem",
}

TAKING = (
    *("report X", "compare example X", "advise X", "run show X"),
    *("gate example --policy X", "doctor --since X", "run verify X", "run import X"),
    *("run export X", "run reparse X", "run rm X --yes", "timeline X", "sweep --resume X"),
    *("timeline example-traced X", "pins --guests X", "pins --cpus X", "pins --sysfs X"),
    *("study show X", "tuning show X", "tuning diff pinned --domain X", "workload show X"),
    *(
        "workload try fio-random --from X",
        "condition show X",
        "lint X",
        "explain X",
        "image show X",
    ),
    *("density --show X", "fleet report X", "fleet advise X"),
    *("fleet sweep --resume X", "fleet rollout --resume X", "history --metric X"),
    *("run list --results X", "--lab X tuning list"),
)


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_no_argument_is_a_fault_in_labctl(place: Path, labctl: Labctl, argument: str) -> None:
    for loop in ("loop", "loop.yaml"):
        (place / loop).symlink_to(loop)
    for command in TAKING:
        done = labctl(*(ARGUMENTS[argument] if word == "X" else word for word in command.split()))
        assert done.code in (0, 1, 2, 3), (command, done.err[:300])
        assert "Traceback" not in done.err, command
        assert not any(char in done.out + done.err for char in "\x1b\0"), command


@pytest.mark.parametrize("size", ["9" * 5000, "-1", "x", "٣", ""])
def test_no_size_of_a_terminal_is_a_fault_in_labctl(
    labctl: Labctl, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    for name in ("COLUMNS", "LINES"):
        monkeypatch.setenv(name, size)
    assert labctl("report", "example").code == 0


def test_a_command_line_that_is_no_text_is_recorded(place: Path, labctl: Labctl) -> None:
    columns = "tuning,workload,condition,block,metric,value,unit,better"
    (place / "t.csv").write_text(f"{columns}\nbaseline,cpu,quiet,1,real,1,s,lower\n")
    assert labctl("run", "import", "t.csv", "--name", "r", "--own-boot", "\udcff").code == 0
    assert "--own-boot" in labctl("run", "show", "r").out
