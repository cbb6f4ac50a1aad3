"""What a declaration makes of a command and of how it ended."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from labctl.base.command import CommandResult
from labctl.base.errors import UsageError
from labctl.base.yamltext import parse_yaml
from labctl.workloads import workload_file
from labctl.workloads.declarations import declare, load_declaration, of_definition
from labctl.workloads.setting import Setting
from labctl.workloads.workload import Workload
from labctl.workloads.workload_file import bytes_of

SETTING = Setting(parameters={}, vcpus=1, duration_s=10)


def _declared(more: str) -> Workload:
    text = f"description: mine\nprimary: elapsed\n{more}"
    mapping: Any = parse_yaml(text)
    return declare("mine", mapping, Path("mine.yaml"))


def _ended(status: int, stdout: bytes = b"", stderr: bytes = b"") -> CommandResult:
    return CommandResult(
        returncode=status, stdout=stdout, stderr=stderr, files={}, duration_s=1, counts={}
    )


def test_seconds_that_are_left_out_are_whole_where_they_are_whole() -> None:
    mine = _declared("trial: {skip_s: 5}\ncommand: [run, '{{ duration + skip_s }}']")
    assert mine.command(SETTING).argv == ("run", "15")
    mine = _declared("trial: {skip_s: 0.5}\ncommand: [run, '{{ skip_s }}']")
    assert mine.command(SETTING).argv == ("run", "0.5")


def test_a_program_that_is_stopped_has_succeeded_only_if_it_was_stopped() -> None:
    mine = _declared("trial: {kind: until-stopped}\ncommand: [vmstat, '1']")
    assert mine.command(SETTING).argv[:3] == ("/usr/bin/timeout", "--signal=INT", "10")
    assert mine.why_failed(_ended(124)) is None
    why = mine.why_failed(_ended(0, b"no such option\n"))
    assert why == "mine ended before it was stopped with status 0: no such option"


def test_a_failure_has_the_end_of_both_outputs_without_labctl_s_marks() -> None:
    mine = _declared("trial: {kind: repeat}\ncommand: [java]")
    why = mine.why_failed(_ended(1, b"\x1erun\nFile too large\n", b"\x1erun\nNo machine\n"))
    assert why == "mine ended with status 1: No machine; File too large"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("trial: {kind: repeat}\ncommand: [diff]\nexit_status: [0, 1]", "must end with status 0"),
        ("command: [a]\nprepare: [[mkdir, x]]", "fills a file system, but there is none"),
        ("command: [a]\nuser: ../x", "user"),
        (
            "command: [/b/a]\nsetup: [[psql]]\nenv: {PATH: /b}\ntrial: {kind: once}",
            "'psql' has no path",
        ),
    ],
)
def test_what_would_be_silently_wrong_is_refused(more: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        _declared(more)


def test_a_users_name_and_open_files_reach_command_and_servers() -> None:
    mine = _declared(
        "user: postgres\nopen_files: 9000\ncommand: [a]\nserve: [{argv: [b], ready: {tcp: 1}}]"
    )
    command, (server,) = mine.command(SETTING), mine.servers(SETTING)
    for one in (command, server):
        assert (one.user, one.open_files) == ("postgres", 9000)  # type: ignore[union-attr]


_BROUGHT = "description: mine\nprimary: elapsed\ncommand: ['{{ files }}/bench']\n"


def _in_folder(folder: Path, more: str) -> Workload:
    (folder / "mine.yaml").write_text(_BROUGHT + more)
    return load_declaration(folder / "mine.yaml")


def test_a_binary_file_is_brought_byte_by_byte(tmp_path: Path) -> None:
    binary = b"\x7fELF\xff\x00\x80"
    (tmp_path / "bench").write_bytes(binary)
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    mine = _in_folder(tmp_path, "files: {bench: ./bench, run.sh: ./run.sh, text: as it is}\n")
    files = {name: bytes_of(one) for name, one in mine.file.files.items()}
    assert files == {"bench": binary, "run.sh": b"#!/bin/sh\n", "text": b"as it is"}
    assert mine.definition["files"]["run.sh"] == "#!/bin/sh\n", "texts are as they were"
    again = of_definition("mine", json.loads(json.dumps(mine.definition)))
    assert bytes_of(again.file.files["bench"]) == binary


def test_a_large_file_is_named_by_path_and_digest(tmp_path: Path) -> None:
    data = b"\x7fELF" + bytes(2**20)
    (tmp_path / "bench").write_bytes(data)
    mine = _in_folder(tmp_path, "files: {bench: ./bench}\n")
    assert mine.definition["files"]["bench"] == {  # type: ignore[index]
        "path": str(tmp_path / "bench"),
        "sha256": hashlib.sha256(data).hexdigest(),
        "size_bytes": len(data),
    }
    redacted = json.dumps(mine.definition).replace(str(tmp_path / "bench"), "path-1")
    assert of_definition("mine", json.loads(redacted)).file.files["bench"] != ""


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("files: {bench: ./large}", "has more than 1 MiB"),
        ("files: {bench: ./../bench}", "is outside the workload's folder"),
        ("files: {bench: {base64: '!!'}}", "it is not base64"),
        ("files: {bench: {hex: '00'}}", "unknown key"),
    ],
)
def test_a_file_that_cannot_be_brought_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, why: str
) -> None:
    monkeypatch.setattr(workload_file, "MOST_FILE", 2**20)
    (tmp_path / "large").write_bytes(bytes(2**20 + 1))
    with pytest.raises(UsageError, match=why):
        _in_folder(tmp_path, more)


def test_a_limit_is_a_number_with_a_unit_or_an_expression() -> None:
    mine = _declared(
        "command: [a]\ntrial: {kind: once, limit_s: 2m}\nscratch_mib: 1G\n"
        "cgroup: {quota_percent: 50 %, memory_mib: 2 * vcpus}\n"
    )
    file = mine.file
    assert file.cgroup is not None
    assert (file.trial.limit_s, file.scratch_mib) == (120, 1024)
    assert (file.cgroup.quota_percent, file.cgroup.memory_mib) == (50, "2 * vcpus")
