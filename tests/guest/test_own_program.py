"""A program that labctl has never heard of, tried and swept on real machines."""

from __future__ import annotations

import hashlib
import json
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
