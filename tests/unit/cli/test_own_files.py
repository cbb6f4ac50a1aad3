"""`--command` with files of one's own: they are brought along, listed and checked."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from labctl.cli.parts import plan_only
from labctl.cli.parts.own_files import OwnFiles, script_of
from labctl.cli.parts.own_program import _NAMES, one_program
from labctl.run.commands.sweep import command as recorded_command
from labctl.run.commands.sweep import line_of
from labctl.run.planning.plan import plan_sweep
from labctl.workloads.declarations import load_declaration
from labctl.workloads.workload_file import bytes_of
from tests.unit.cli.conftest import Labctl
from tests.unit.domain import hosts
from tests.unit.run.asked import plan_on

METRIC = ("--metric", "loops=json:loops", "--better", "higher")
SCRIPT = "#!/usr/bin/env python3\nprint('{\"loops\": 1}')\n"
PLACE = "/usr/local/lib/labctl/workloads/w.py"


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    plan_on(monkeypatch, hosts.TWO_CPUS)
    monkeypatch.setenv("LABCTL_STATE_DIR", str(tmp_path / "state"))
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "w.py").write_text(SCRIPT)
    (folder / "w.py").chmod(0o755)
    (folder / "helper.py").write_text("one = 1\n")
    (folder / "data").mkdir()
    (folder / "data" / "a.csv").write_text("a\n1\n")
    (folder / "data" / ".hidden").write_text("")
    return folder


def planned(labctl: Labctl, *words: str) -> dict[str, Any]:
    said = labctl("sweep", "pinning", *words, *METRIC, "--seed", "1", "--plan-only", "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert isinstance(found, dict)
    return found


def refused(labctl: Labctl, *words: str) -> str:
    said = labctl("sweep", "pinning", *words, *METRIC, "--plan-only")
    assert said.code == 2, said.out
    return " ".join(said.err.split())


@pytest.mark.parametrize("command", ["./w.py", "{here}/w.py"])
def test_a_program_of_one_s_own_is_brought_along_and_listed(
    labctl: Labctl, here: Path, command: str
) -> None:
    found = planned(labctl, "--command", command.format(here=here))
    (workload,) = found["workloads"].values()
    assert workload["definition"]["files"] == {"w.py": SCRIPT}
    assert workload["definition"]["command"] == ["{{ files }}/w.py"]
    commands = found["commands"]["w.py"]
    assert {one["commands"]["command, repeated"] for one in commands.values()} == {f"{PLACE}/w.py"}
    assert found["files"]["w.py"]["w.py"] == {
        "size_bytes": len(SCRIPT),
        "sha256": hashlib.sha256(SCRIPT.encode()).hexdigest(),
        "path": str(here / "w.py"),
    }


def test_the_plan_lists_the_files_with_sizes_and_digests(labctl: Labctl, here: Path) -> None:
    said = labctl(
        *("sweep", "pinning", "--command", "./w.py", *METRIC, "--file", "helper.py"), "--plan-only"
    )
    digest = hashlib.sha256(b"one = 1\n").hexdigest()[:12]
    assert f"files in {PLACE} on both sides:" in said.out
    assert f"helper.py: 8 bytes, SHA-256 {digest}, from {here}/helper.py" in said.out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("python3 w.py", ["python3", "{{ files }}/w.py"]),
        ("python3 -u w.py x", ["python3", "-u", "{{ files }}/w.py", "x"]),
        ("python3 -m w", ["python3", "-m", "w"]),
        ("seq w.py", ["seq", "w.py"]),
        ("seq ./w.py", ["seq", "{{ files }}/w.py"]),
        ("seq --in=./w.py if=./w.py", ["seq", "--in={{ files }}/w.py", "if={{ files }}/w.py"]),
        ("cat /etc/passwd /bin/sh", ["cat", "/etc/passwd", "/bin/sh"]),
        ("cat /usr/bin/env ./absent", ["cat", "/usr/bin/env", "./absent"]),
        ("sh -c './w.py | cat'", ["sh", "-c", "./w.py | cat"]),
        ("cat ./data", ["cat", "./data"]),
    ],
)
def test_words_that_are_files_outside_the_system_are_brought(
    labctl: Labctl, command: str, words: list[str]
) -> None:
    (workload,) = planned(labctl, "--command", command)["workloads"].values()
    assert workload["definition"]["command"] == words


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("seq w.py", "to bring it, write ./w.py"),
        ("sh -c './w.py | cat'", "add --file w.py and write {{ files }}/w.py"),
        ("cat ./data", "add --file data and write {{ files }}/data"),
    ],
)
def test_a_file_that_is_not_brought_is_noted(labctl: Labctl, command: str, said: str) -> None:
    assert said in labctl("sweep", "pinning", "--command", command, *METRIC, "--plan-only").err


def test_servers_and_set_up_bring_their_files(labctl: Labctl) -> None:
    (workload,) = planned(
        labctl,
        *("--command", "seq {{ duration }}", "--serve", "./w.py --port 1", "--port", "1"),
        *("--setup", "cat ./helper.py"),
    )["workloads"].values()
    found = workload["definition"]
    assert set(found["files"]) == {"w.py", "helper.py"}
    assert found["serve"][0]["argv"] == ["{{ files }}/w.py", "--port", "1"]
    assert found["setup"] == [["cat", "{{ files }}/helper.py"]]


def test_a_file_that_a_metric_reads_is_the_program_s_to_write(labctl: Labctl, here: Path) -> None:
    (here / "out.csv").write_text("rps\n1\n")
    said = labctl(
        *(
            "workload",
            "new",
            "mine",
            "--out",
            "there",
            "--command",
            "seq --out=./out.csv ./out.csv",
        ),
        *("--metric", "rps=out.csv:csv:rps", "--better", "higher"),
    )
    assert (said.code, said.err) == (0, "")
    assert load_declaration(here / "there/mine.yaml").definition["command"] == [
        *("seq", "--out=./out.csv", "./out.csv")
    ]


def test_a_folder_comes_with_its_files(labctl: Labctl) -> None:
    words = ("--command", "cat ./data/a.csv ./data", "--file", "data")
    (workload,) = planned(labctl, *words)["workloads"].values()
    assert workload["definition"]["files"] == {"data/a.csv": "a\n1\n"}
    assert workload["definition"]["command"][1:] == ["{{ files }}/data/a.csv", "{{ files }}/data"]


def test_a_file_may_have_another_name(labctl: Labctl, here: Path) -> None:
    (here / "my {{ prog").write_text(SCRIPT)
    (here / "a=b").write_text("x")
    words = ("--command", "{{ files }}/prog.py ./w.py", "--file", "./my {{ prog=prog.py")
    files = ("--file", "w.py=x.py", "--file", "a=b=ab")
    (workload,) = planned(labctl, *words, *files)["workloads"].values()
    assert set(workload["definition"]["files"]) == {"prog.py", "x.py", "ab"}
    assert workload["definition"]["command"] == ["{{ files }}/prog.py", "{{ files }}/x.py"]


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("a b.py", "a-b.py"),
        ("-x.py", "x.py"),
        ("a\nb.py", "a-b.py"),
        (".hidden", "hidden"),
        ("ä", "file"),
        ("$(touch x);.py", "touch-x-.py"),
        ("\udcff.py", "py"),
        (f"{'ä' * 50}.{'x' * 150}", "x" * 100),
    ],
)
def test_a_name_that_labctl_cannot_keep_is_replaced_by_a_plain_one(
    labctl: Labctl, here: Path, name: str, plain: str
) -> None:
    (here / name).write_text(SCRIPT)
    (workload,) = planned(labctl, "--command", f"cat './{name}'")["workloads"].values()
    assert workload["definition"]["command"] == ["cat", f"{{{{ files }}}}/{plain}"]
    assert [*workload["definition"]["files"]] == [plain]
    said = refused(labctl, "--command", "true", "--file", f"./{name}")
    assert "cannot be brought along as" in said
    assert "=NAME" in said


def test_two_names_that_become_one_are_refused(labctl: Labctl, here: Path) -> None:
    for name in ("a b.py", "a-b.py"):
        (here / name).write_text(SCRIPT)
    assert "have the same name" in refused(labctl, "--command", "cat './a b.py' ./a-b.py")


def test_a_name_with_braces_is_refused_with_the_remedy(labctl: Labctl, here: Path) -> None:
    (here / "a{{b").write_text(SCRIPT)
    assert "Add --file 'a{{b'=NAME" in refused(labctl, "--command", "cat ./a{{b")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--command", "./absent.py"), "--command: no file './absent.py' in"),
        (("--command", "./data x"), "'./data' is a folder, not a program"),
        (("--command", "w.py"), "is looked for in PATH Write ./w.py"),
        (("--command", "seq 1", "--serve", "./absent", "--port", "1"), "--serve: no file"),
        (("--command", "seq 1", "--file", "absent"), "--file: no file or folder 'absent'"),
        (("--command", "seq 1", "--file", "/dev/null"), "it is not a regular file"),
        (
            ("--command", "cat ./w.py", "--file", "data/a.csv=w.py"),
            "have the same name Name one of them",
        ),
    ],
)
def test_what_cannot_be_brought_is_refused(
    labctl: Labctl, words: tuple[str, ...], said: str
) -> None:
    assert said in refused(labctl, *words)


def test_a_file_without_its_x_bit_is_noted(labctl: Labctl, here: Path) -> None:
    (here / "w.py").chmod(0o644)
    said = labctl("sweep", "pinning", "--command", "./w.py", *METRIC, "--plan-only")
    assert "w.py is not executable; the copy that is measured is" in said.err


@pytest.mark.parametrize("text", ["./looks/like/a/path", "a\x00b", "tab\tand\u2028more", "😀\r\n"])
def test_the_workload_s_file_holds_every_content(
    labctl: Labctl, here: Path, tmp_path: Path, text: str
) -> None:
    (here / "data.txt").write_bytes(text.encode())
    (workload,) = planned(labctl, "--command", "cat ./data.txt")["workloads"].values()
    program = one_program(
        {
            **dict.fromkeys(_NAMES, ()),
            **dict.fromkeys(("port", "ready", "timeout", "once", "duration")),
            "own_command": "cat ./data.txt",
            "workloads": (),
            "resume": None,
            "extend": None,
        }
    )
    assert program is not None
    assert program.workload.definition["files"] == workload["definition"]["files"]
    for name, data in program.as_files("cat.yaml").items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    assert (tmp_path / "cat-files" / "data.txt").read_bytes() == text.encode()
    (brought,) = load_declaration(tmp_path / "cat.yaml").file.files.values()
    assert bytes_of(brought) == text.encode()  # type: ignore[arg-type]


def test_the_copy_of_a_vm_has_its_own_files(labctl: Labctl, here: Path) -> None:
    files = OwnFiles(is_automatic=False)
    assert files.words([f"{here}/w.py"], "--command") == [f"{here}/w.py"]


def test_the_run_uses_what_was_read_at_its_start(here: Path) -> None:
    files = OwnFiles(is_automatic=True)
    files.words(["./w.py"], "--command")
    (here / "w.py").write_text("changed")
    assert files.declared == {"w.py": SCRIPT}


@pytest.mark.parametrize(
    ("argv", "position"),
    [(["sh", "-ec", "x"], None), (["perl", "-w", "x.pl"], 2), (["seq", "1"], None), (["sh"], None)],
)
def test_the_script_of_an_interpreter_is_its_first_argument(
    argv: list[str], position: int | None
) -> None:
    assert script_of(argv) == position


def test_bytes_that_are_not_utf_8_come_into_no_file(labctl: Labctl, here: Path) -> None:
    (here / "\udcff.py").write_text(SCRIPT)
    words = ("sweep", "pinning", "--command", "./\udcff.py", *METRIC, "--plan-only")
    asked: list[Any] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plan_only, "show_plan", lambda request, as_json: asked.append(request))
        assert labctl(*words).code == 0
    plan = plan_sweep(asked[0]).plan
    line = line_of(recorded_command(asked[0], plan))
    assert r"./\udcff.py" in line
    assert json.dumps([plan.to_json(), line], ensure_ascii=False).encode()
