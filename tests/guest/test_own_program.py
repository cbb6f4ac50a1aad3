"""A program that labctl has never heard of, tried and swept on real machines."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.guest.conftest import TINY, Sandbox

COUNTER = """\
description: counts, says so on both outputs, and fails if it is told to
parameters:
  how: {choice: right, of: [right, wrong, forever, flood], description: how it ends}
trial: {kind: once, limit_s: 6}
data_disk: {use: filesystem}
prepare: [[sh, -c, "id -u >who"]]
command:
  - sh
  - -c
  - |
    (id -u; cat "$0/who"; stat -f -c %T "$0"; ulimit -Sn; ulimit -Hn; umask; env | sort) >&2
    yes | head -n 1
    echo "value 3"
    case $1 in wrong) exit 5;; forever) sleep 60;; flood) yes;; esac
  - "{{ data_path }}"
  - "{{ how }}"
metrics:
  value: {regex: '^value (\\d+)$', unit: count, better: higher}
primary: value
"""


@pytest.fixture
def counter(tmp_path: Path) -> str:
    path = tmp_path / "counter.yaml"
    path.write_text(COUNTER)
    return str(path)


def test_a_try_shows_what_ran_and_what_was_read_on_both_sides(
    sandbox: Sandbox, counter: str
) -> None:
    said = {}
    for side in ("native", "guest"):
        words = ("workload", "try", counter, f"--{side}", "--accel=tcg", "--json", "--quiet")
        done = sandbox.labctl(*words, seconds=600)
        assert done.returncode == 0, done.stderr
        said[side] = json.loads(done.stdout)
    native, guest = said["native"], said["guest"]
    assert native["output"] == guest["output"], "the same user, limits, environment and files"
    user, filled_by, file_system, *_ = native["output"]["stderr"].splitlines()
    assert user == filled_by != "0", "who is not root"
    assert file_system == "ext2/ext3"
    assert native["commands"] == guest["commands"]
    assert guest["metrics"]["value"]["values"]["value"] == {"value": 3.0, "unit": "count"}
    assert sandbox.leftovers() == []


@pytest.mark.parametrize(
    ("how", "why"), [("wrong", "status 5"), ("forever", "killed after 6 s"), ("flood", "MiB")]
)
def test_a_program_that_fails_is_told_with_its_command(
    sandbox: Sandbox, counter: str, how: str, why: str
) -> None:
    words = ("workload", "try", counter, "--set", f"how={how}", "--accel=tcg", "--json", "--quiet")
    done = sandbox.labctl(*words, seconds=300)
    assert done.returncode == 1, done.stderr
    said = json.loads(done.stdout)
    assert why in said["failure"]
    assert said["commands"]["command"].endswith(how)
    assert sandbox.leftovers() == []


def test_a_command_line_is_measured_under_a_study_s_arms_and_becomes_a_file(
    sandbox: Sandbox,
) -> None:
    done = sandbox.labctl(
        *("sweep", str(TINY), "--condition=quiet", "--accel=tcg", "--duration=1", "--quiet"),
        *("--command", "seq {{ most }}", "--parameter", "most=7"),
        *("--metric", "last=^(7)$", "--better", "higher"),
        seconds=600,
    )
    assert done.returncode == 0, done.stderr
    (run,) = sandbox.runs()
    assert {trial["status"] for trial in sandbox.trials(run)} == {"done"}
    own = run / "workload.yaml"
    assert sandbox.labctl("workload", "validate", str(own)).returncode == 0


SCRIPT = """\
#!/usr/bin/env python3
import json
import helper
print(json.dumps({"loops": helper.loops}))
"""


def test_a_script_of_one_s_own_with_its_module_runs_on_both_sides_by_one_line(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    (tmp_path / "w.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("loops = 7\n")
    done = sandbox.labctl(
        *("sweep", str(TINY), "--condition=quiet", "--accel=tcg", "--duration=1", "--quiet"),
        *("--command", str(tmp_path / "w.py"), "--file", str(tmp_path / "helper.py")),
        *("--metric=loops=json:loops", "--better=higher"),
        seconds=900,
    )
    assert done.returncode == 0, done.stderr
    assert "w.py is not executable; the copy that is measured is" in done.stderr
    (run,) = sandbox.runs()
    assert {trial["status"] for trial in sandbox.trials(run)} == {"done"}
    hashed = json.loads((run / "run.json").read_text())["hashed"]
    path = "/usr/local/lib/labctl/workloads/w.py/w.py"
    digest = hashlib.sha256(SCRIPT.encode()).hexdigest()
    assert [hashed[side]["files"][path] for side in ("native", "guest")] == [digest, digest]
    assert (run / "workload-files/helper.py").read_text() == "loops = 7\n"
    assert sandbox.labctl("workload", "validate", str(run / "workload.yaml")).returncode == 0
    assert sandbox.leftovers() == []


LEAVES = """\
description: its server leaves in the middle
serve:
  - argv: [sh, -c, "echo up; sleep 1; echo no more; exit 4"]
    ready: {log: up}
trial: {kind: once}
command: [sleep, "2"]
primary: elapsed
"""


def test_a_server_that_leaves_in_the_middle_fails_the_try_as_it_would_a_trial(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    path = tmp_path / "leaves.yaml"
    path.write_text(LEAVES)
    done = sandbox.labctl("workload", "try", str(path), "--accel=tcg", "--json", "--quiet")
    assert done.returncode == 1, done.stderr
    failure = json.loads(done.stdout)["failure"]
    assert "the server sh ended unexpectedly with status 4: no more" in failure


def compiled(folder: Path, *argv: str) -> None:
    """Run a compiler in a folder; skip the test without one."""
    if shutil.which(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed")
    subprocess.run(argv, cwd=folder, check=True, env={**os.environ, "CGO_ENABLED": "0"})


def static_program_of_go(folder: Path) -> tuple[str, ...]:
    source = 'package main\nimport "fmt"\nfunc main() { fmt.Println("loops", 7) }\n'
    (folder / "main.go").write_text(source)
    compiled(folder, "go", "build", "-o", "w", "main.go")
    return ("--command", str(folder / "w"))


def static_program_of_c(folder: Path) -> tuple[str, ...]:
    (folder / "w.c").write_text('#include <stdio.h>\nint main(void) { puts("loops 7"); }\n')
    compiled(folder, "gcc", "-static", "-o", "w", "w.c")
    return ("--command", str(folder / "w"))


def program_with_three_libraries(folder: Path) -> tuple[str, ...]:
    names = ("one", "two", "three")
    for name in names:
        (folder / f"{name}.cpp").write_text(f"int {name}(int x) {{ return x + 1; }}\n")
        soname = f"-Wl,-soname,lib{name}.so"
        compiled(folder, "g++", "-shared", "-fPIC", soname, "-o", f"lib{name}.so", f"{name}.cpp")
    (folder / "w.cpp").write_text(
        "#include <iostream>\nint one(int), two(int), three(int);\n"
        'int main() { std::cout << "loops " << one(two(three(4))) << std::endl; }\n'
    )
    compiled(folder, "g++", "-o", "w", "w.cpp", "-L.", *(f"-l{name}" for name in names))
    files = [word for name in names for word in ("--file", str(folder / f"lib{name}.so"))]
    return ("--command", str(folder / "w"), *files)


def script_of_a_hostile_name_with_a_here_document(folder: Path) -> tuple[str, ...]:
    text = "#!/bin/sh\nn=$(cat <<'X'\n7\nX\n)\ncat <<EOF\nloops $n\nEOF\n"
    script = folder / "-$(touch x); \udcff\n.sh"
    script.write_text(text)
    return ("--command", shlex.quote(str(script)))


@pytest.mark.parametrize(
    "made",
    [
        static_program_of_go,
        static_program_of_c,
        program_with_three_libraries,
        script_of_a_hostile_name_with_a_here_document,
    ],
)
def test_programs_that_labctl_has_not_seen_run_as_they_are(
    sandbox: Sandbox,
    tmp_path: Path,
    made: Callable[[Path], tuple[str, ...]],
) -> None:
    words = made(tmp_path)
    metric = ("--metric", r"loops=loops (\d+)", "--better", "higher", "--once")
    done = sandbox.labctl(
        *("workload", "try", *words, *metric, "--accel=tcg", "--json", "--quiet"), seconds=300
    )
    assert done.returncode == 0, done.stderr
    values = json.loads(done.stdout)["metrics"]["loops"]["values"]
    assert values["loops"] == {"value": 7.0, "unit": "count"}
    assert not [*Path.cwd().glob("x"), *tmp_path.glob("x")]
    assert sandbox.leftovers() == []


def test_a_file_that_changes_during_a_run_changes_nothing_in_it(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    script = tmp_path / "w.sh"
    script.write_text("#!/bin/sh\necho loops 7\n")
    running = sandbox.start(
        *("sweep", str(TINY), "--condition=quiet", "--accel=tcg", "--duration=1", "--quiet"),
        *("--command", str(script), "--metric", r"loops=loops (\d+)", "--better=higher"),
    )
    while not sandbox.measured_trials() and running.poll() is None:
        time.sleep(0.1)
    script.write_text("#!/bin/sh\necho loops 8\n")
    out, _ = running.communicate(timeout=900)
    assert running.returncode == 0, out
    (run,) = sandbox.runs()
    trials = sandbox.trials(run)
    assert {trial["status"] for trial in trials} == {"done"}
    texts = [path.read_text() for path in run.glob("trials/*/*stdout*")]
    assert len(texts) >= len(trials)
    assert all("loops 7" in text and "loops 8" not in text for text in texts)
