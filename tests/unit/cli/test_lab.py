"""Whose tunings, templates and runs a command takes: those of a lab folder that says it is one and
that nobody else can write to, and never those of whatever folder is the present one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from labctl.base.paths import DATA_FOLDERS, MARKER, shipped_data
from tests.unit.base.strangers import STRANGER, give_away
from tests.unit.synthetic import write_run

from .conftest import Labctl

CODE = "{{ cycler.__init__.__globals__.os.mkdir('%s') }}"
PLANTED = "extends: baseline\ndescription: Somebody else's.\n"


@pytest.fixture(autouse=True)
def present(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty present folder; state and home are the test's own."""
    for name in ("LABCTL_LAB", "LABCTL_RESULTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LABCTL_STATE_DIR", str(tmp_path / "state"))
    folder = tmp_path / "present"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def planted(folder: Path, path: str, text: str) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)


def templates_with_code(folder: Path, marker: Path) -> None:
    """Every template of pages and scripts, with code in it that makes a folder."""
    for kind in ("report", "advice"):
        for template in (shipped_data() / "templates" / kind).glob("*.j2"):
            text = template.read_text()
            planted(folder, f"templates/{kind}/{template.name}", CODE % marker + text)


def test_a_report_runs_no_template_of_the_present_folder(labctl: Labctl, present: Path) -> None:
    marker = present / "code-ran"
    templates_with_code(present, marker)
    (present / MARKER).touch()  # not even where the folder is the user's own lab
    write_run(present / "results/r1")
    said = labctl("report", "results/r1", "--html", "page.html")
    assert said.code == 0, said.err
    assert (present / "page.html").stat().st_size > 10_000
    assert not marker.exists()


def test_advice_for_root_runs_no_template_of_the_present_folder(
    labctl: Labctl, present: Path
) -> None:
    marker = present / "code-ran"
    templates_with_code(present, marker)
    (present / MARKER).touch()
    write_run(present / "results/r1")
    (present / "out").mkdir()
    said = labctl("advise", "results/r1", "--card", "card.md", "--out", "out")
    assert said.code == 0, said.err
    assert (present / "card.md").is_file()
    assert not marker.exists()


@pytest.mark.parametrize(
    "code",
    [
        CODE,
        # What templates are given leads to files as well.
        "{{ request.kernel.joinpath('%s').mkdir() }}",
        "{{ (request.kernel / '%s').touch() }}",
        "{%% set made = request.root_disk.__class__('%s').mkdir() %%}",
    ],
)
def test_a_template_of_the_lab_folder_runs_in_a_sandbox(
    labctl: Labctl, present: Path, code: str
) -> None:
    (present / MARKER).touch()
    marker = present / "code-ran"
    planted(present, "templates/domain.xml.j2", f"<domain>{code % marker}</domain>")
    said = labctl("tuning", "render", "baseline")
    assert said.code == 2
    assert "the domain template does not render" in said.err
    assert not marker.exists()


@pytest.mark.parametrize(
    "code", [b"{{ 1/0 }}", b"{{ range(10**9)|list }}", b"{% include 'domain.xml.j2' %}", b"\xff"]
)
def test_a_broken_template_of_the_lab_folder_is_no_fault_in_labctl(
    labctl: Labctl, present: Path, code: bytes
) -> None:
    (present / MARKER).touch()
    planted(present, "templates/domain.xml.j2", "")
    (present / "templates/domain.xml.j2").write_bytes(code)
    said = labctl("tuning", "render", "baseline")
    assert said.code == 2
    assert "the domain template does not render" in said.err


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (
            "\n{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "it needs more than 0.2 s of CPU time ({file}, line 2)",
        ),
        (
            "\n{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
            "{{ f(99) }}",
            "it needs more than 0.2 s of CPU time ({file}, line 2)",
        ),
        (
            "{% for i in range(99999) %}{{ 'x' * 100 }}{% endfor %}",
            "it becomes more than 1,048,576 characters ({file})",
        ),
        ("<a>\n{{ 1 / 0 }}", "ZeroDivisionError: division by zero ({file}, line 2)"),
        ("\n\n{{ nothing }}", "'nothing' is undefined ({file}, line 3)"),
    ],
)
def test_a_template_of_the_lab_folder_comes_to_an_end(
    labctl: Labctl, present: Path, monkeypatch: pytest.MonkeyPatch, code: str, why: str
) -> None:
    (present / MARKER).touch()
    monkeypatch.setattr("labctl.base.templates.CPU_S", 0.2)
    planted(present, "templates/domain.xml.j2", code)
    said = labctl("tuning", "render", "baseline")
    assert said.code == 2
    assert why.format(file=present / "templates/domain.xml.j2") in said.err.replace("\n", " ")


@pytest.mark.parametrize(
    "code",
    [
        "9 ** (10 ** 9)",
        "'x' * 10 ** 12",
        "10 ** 12 * [0]",
        "'%1000000000000d' % 1",
        "'%*d' % (10 ** 12, 1)",
        "'x'|center(10 ** 12)",
        "'x'|indent(width=10 ** 12)",
        "'%1000000000000d'|format(1)",
        "'x'.ljust(10 ** 12)",
        "'{:1000000000000}'.format(1)",
        "'{:{}}'.format(1, 10 ** 12)",
    ],
)
def test_no_single_operation_of_such_a_template_is_endless(
    labctl: Labctl, present: Path, code: str
) -> None:
    (present / MARKER).touch()
    planted(present, "templates/domain.xml.j2", "{{ " + code + " }}")
    said = labctl("tuning", "render", "baseline")
    assert said.code == 2
    assert "the domain template does not render" in said.err


def test_large_numbers_are_no_widths(labctl: Labctl, present: Path) -> None:
    (present / MARKER).touch()
    code = (
        "{% macro kib(n) %}{{ n * 1024 }}{% endmacro %}<domain>"
        "{{ kib(8 * 1024 * 1024) }} {{ none|default(2 ** 40, true) }} {{ '%08x' % 4096 }}"
        "</domain>"
    )
    planted(present, "templates/domain.xml.j2", code)
    said = labctl("tuning", "render", "baseline")
    assert "8589934592 1099511627776 00001000" in said.out


def test_a_tuning_of_the_present_folder_replaces_none_of_labctls(
    labctl: Labctl, present: Path
) -> None:
    planted(present, "domains/pinned.yaml", PLANTED)
    planted(present, "domains/mine.yaml", PLANTED)
    shown = json.loads(labctl("tuning", "show", "pinned", "--json").out)
    assert "Somebody else" not in shown["description"]
    assert shown["files"] == [str(shipped_data() / "domains/pinned.yaml")]
    assert labctl("tuning", "show", "mine").code == 2


def test_a_study_of_the_present_folder_replaces_none_of_labctls(
    labctl: Labctl, present: Path
) -> None:
    planted(present, "benchmarks/pinning.yaml", "title: Somebody else's\n")
    said = labctl("sweep", "pinning", "--quick", "--plan-only", "--json", "--accel", "tcg")
    assert said.code == 0, said.err
    assert json.loads(said.out)["title"] != "Somebody else's"


def test_runs_of_the_present_folder_are_no_runs_of_the_user(
    labctl: Labctl, present: Path, tmp_path: Path
) -> None:
    write_run(present / "results/20991231-planted")
    write_run(present / "r1")
    write_run(tmp_path / "state/results/r1")
    listed = json.loads(labctl("run", "list", "--json").out)
    assert listed["results"] == str(tmp_path / "state/results")
    assert [run["run"] for run in listed["runs"]] == ["r1"]
    shown = json.loads(labctl("run", "show", "r1", "--json").out)
    assert shown["path"] == str(tmp_path / "state/results/r1")


def results_of(present: Path, tmp_path: Path, which: str) -> Path:
    """The folder of runs that nobody named: the lab folder's or the state folder's."""
    if which == "lab":
        (present / MARKER).touch()
        return present / "results"
    return tmp_path / "state/results"


@pytest.mark.parametrize("which", ["lab", "state"])
@pytest.mark.parametrize("planted_as", ["a folder", "a link", "a folder that a link leads to"])
def test_a_folder_of_runs_that_is_a_strangers_is_refused(
    labctl: Labctl,
    present: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    which: str,
    planted_as: str,
) -> None:
    results = results_of(present, tmp_path, which)
    results.parent.mkdir(exist_ok=True)
    there = results if planted_as == "a folder" else tmp_path / "elsewhere"
    write_run(there / "r1")
    if planted_as != "a folder":
        results.symlink_to(there)
    give_away(results if planted_as == "a link" else there, monkeypatch)
    for words in (("run", "list"), ("report", "r1"), ("sweep", "pinning", "--plan-only")):
        said = labctl(*words)
        assert said.code == 2, words
        assert f"the folder of runs {results} is not trusted: " in said.err
        assert " is owned by " in said.err
        assert f"--results {results}" in said.err
    if os.geteuid() == 0:
        assert labctl("run", "show", "r1", "--results", f"{results}").code == 0


def test_a_folder_of_runs_that_everybody_can_write_to_is_refused(
    labctl: Labctl, present: Path, tmp_path: Path
) -> None:
    write_run(tmp_path / "state/results/r1")
    (tmp_path / "state/results").chmod(0o777)
    assert "is writable by everybody" in labctl("run", "list").err
    (tmp_path / "state/results").chmod(0o775)
    assert labctl("run", "list").code == 0, "groups of one user are common"


def test_a_run_of_the_present_folder_is_named_by_its_path(labctl: Labctl, present: Path) -> None:
    write_run(present / "results/r1")
    write_run(present / "r2")
    assert labctl("run", "show", "results/r1").code == 0
    assert labctl("run", "show", "./r2").code == 0
    said = labctl("run", "show", "r2")
    assert said.code == 2
    assert "The run in the current folder is './r2'." in said.err


def test_a_lab_folder_stands_in_for_labctls_files_and_says_so(
    labctl: Labctl, present: Path
) -> None:
    (present / MARKER).touch()
    planted(present, "domains/pinned.yaml", PLANTED)
    planted(present, "domains/mine.yaml", PLANTED)
    planted(present, "templates/report/page.html.j2", "never read")
    note = f"labctl: {present} replaces labctl's own domains/pinned.yaml\n"
    for words in (
        ("tuning", "list"),
        ("tuning", "show", "pinned"),
        ("sweep", "pinning", "--quick", "--plan-only", "--accel", "tcg"),
    ):
        said = labctl(*words)
        assert said.code == 0, said.err
        assert said.err.startswith(note)
    shown = labctl("tuning", "show", "pinned").out
    assert "Somebody else" in shown
    assert "(replaces labctl's own)" in " ".join(shown.split())
    assert "replaces labctl's" not in " ".join(labctl("tuning", "show", "mine").out.split())
    assert labctl("run", "list").err == ""


@pytest.mark.parametrize("what", [".", "domains", "domains/pinned.yaml"])
def test_a_lab_folder_of_a_stranger_is_ignored_with_one_line(
    labctl: Labctl, present: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    (present / MARKER).touch()
    planted(present, "domains/pinned.yaml", PLANTED)
    give_away(present / what, monkeypatch)
    said = labctl("tuning", "show", "pinned")
    assert said.code == 0
    assert "Somebody else" not in said.out
    [line] = said.err.splitlines()
    assert line.startswith(f"labctl: the lab folder {present} is ignored: ")
    assert " is owned by " in line


@pytest.mark.parametrize("named_by", ["option", "variable"])
def test_a_lab_folder_that_is_named_and_not_believed_is_refused(
    labctl: Labctl, present: Path, monkeypatch: pytest.MonkeyPatch, named_by: str
) -> None:
    planted(present, "domains/pinned.yaml", PLANTED)
    (present / "domains").chmod(0o775)
    option: tuple[str, ...] = ()
    if named_by == "option":
        option = ("--lab", str(present))
    else:
        monkeypatch.setenv("LABCTL_LAB", str(present))
    for words in (("tuning", "list"), ("run", "list"), ("sweep", "--plan-only")):
        said = labctl(*option, *words)
        assert said.code == 2
        assert f"{present}/domains is writable by its group (mode 0775)" in said.err
        assert f"chmod -R go-w {present}" in said.err
    # What was changed on the host is put back whatever is wrong with a lab folder.
    monkeypatch.setattr("labctl.run.commands.host_tuning.host_lock", lambda: present / "lock")
    said = labctl(*option, "host", "restore")
    assert (said.code, said.out) == (0, "nothing to restore\n")


def test_a_named_lab_folder_is_taken_from_anywhere(
    labctl: Labctl, present: Path, tmp_path: Path
) -> None:
    planted(tmp_path / "lab", "domains/mine.yaml", PLANTED)
    assert "Somebody else" in labctl("--lab", str(tmp_path / "lab"), "tuning", "show", "mine").out
    assert labctl("tuning", "show", "mine").code == 2
    listed = labctl("--lab", "../lab", "run", "list", "--json")
    assert json.loads(listed.out)["results"] == str(tmp_path / "lab/results")


def test_under_sudo_the_lab_folder_of_who_typed_it_is_taken(
    labctl: Labctl, present: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (present / MARKER).touch()
    planted(present, "domains/mine.yaml", PLANTED)
    if os.geteuid() == 0:
        for path in (present, *present.rglob("*")):
            os.chown(path, STRANGER, STRANGER)
        typed_by = STRANGER
    else:
        typed_by = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("SUDO_UID", str(typed_by))
    assert labctl("tuning", "show", "mine").code == 0
    monkeypatch.setenv("SUDO_UID", str(typed_by + 1))
    assert labctl("tuning", "show", "mine").code == 2


def test_init_makes_a_lab_folder_that_is_believed(
    labctl: Labctl, present: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(0)
    try:
        said = labctl("init", "lab")
    finally:
        os.umask(before)
    lab = present / "lab"
    assert said.code == 0, said.err
    assert f"Made the lab folder {lab}." in said.out
    assert f"cd {lab}" in said.out
    assert "labctl sweep pinning --quick --tuning mine" in said.out
    assert {path.name for path in lab.iterdir()} == {
        *DATA_FOLDERS,
        MARKER,
        "README.md",
        ".gitignore",
    }
    assert (lab / "benchmarks/workloads").is_dir()
    planted(lab, "domains/mine.yaml", PLANTED)
    assert labctl("--lab", "lab", "tuning", "show", "mine").code == 0
    monkeypatch.chdir(lab)
    said = labctl("tuning", "show", "mine")
    assert (said.code, said.err) == (0, "")


def test_init_takes_the_present_folder_where_it_is_empty(labctl: Labctl, present: Path) -> None:
    assert labctl("init").code == 0
    assert (present / MARKER).is_file()
    said = labctl("init")
    assert said.code == 2
    assert f"{present} is a lab folder already" in said.err


def test_init_touches_nothing_that_is_there(labctl: Labctl, present: Path) -> None:
    planted(present, "README.md", "mine")
    said = labctl("init")
    assert said.code == 2
    assert f"{present} is not empty: README.md" in said.err
    assert [path.name for path in present.iterdir()] == ["README.md"]
    assert (present / "README.md").read_text() == "mine"
    said = labctl("init", "no/such")
    assert said.code == 2
    assert "there is no folder no" in said.err


def test_init_makes_none_where_it_would_not_be_believed(labctl: Labctl, present: Path) -> None:
    present.chmod(0o777)
    said = labctl("init", "lab")
    assert said.code == 2
    assert f"{present} is writable by everybody" in said.err
    assert list(present.iterdir()) == []
