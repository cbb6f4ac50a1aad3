"""What needs no rights works without them, and what does says so: labctl as nobody."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]
EXAMPLE = CHECKOUT / "results" / "example.tar.xz"
TRACED = EXAMPLE.with_name("example-traced.tar.xz")
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def _may_read(path: Path) -> bool:
    return subprocess.run([*NOBODY, "test", "-r", path], check=False).returncode == 0


pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not _may_read(EXAMPLE) or not _may_read(Path(sys.executable)),
    reason="nobody can be asked, or can't read this checkout and its Python",
)


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """Of nobody; pytest's own folder is root's alone, and may be in memory, where no guest runs."""
    made = Path(tempfile.mkdtemp(prefix="labctl-nobody-", dir="/var/tmp"))
    os.chown(made, 65534, 65534)
    yield made
    shutil.rmtree(made)


def as_nobody(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT)}
    return subprocess.run(
        [*NOBODY, sys.executable, "-B", "-P", "-m", "labctl.cli.main", *words],
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "words",
    [
        ("tuning", "list"),
        ("tuning", "show", "pinned"),
        ("tuning", "diff", "baseline", "pinned"),
        ("host", "status"),
        ("pins",),
        ("sweep", "pinning", "--plan-only"),
        ("report", str(EXAMPLE)),
        ("advise", str(EXAMPLE)),
        ("run", "list"),
        ("run", "verify", str(EXAMPLE)),
        ("timeline", str(TRACED)),
    ],
    ids=" ".join,
)
def test_what_only_reads_needs_no_root(home: Path, words: tuple[str, ...]) -> None:
    done = as_nobody(home, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_the_time_line_of_a_recorded_trial_needs_no_root(home: Path) -> None:
    listed = json.loads(as_nobody(home, "timeline", str(TRACED), "--json").stdout)["trials"]
    in_a_guest = next(one for one in listed if one["cell"]["tuning"] == "baseline")
    done = as_nobody(home, "timeline", str(TRACED), str(in_a_guest["trial"]))
    assert (done.returncode, done.stderr) == (0, "")
    page = home / f"timeline-example-traced-{in_a_guest['trial']:04d}.html"
    assert "inside the guest" in page.read_text()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("sweep", "pinning"), "'native+pinned' and 1 more run natively, in a mount namespace"),
        (
            ("sweep", "pinning"),
            "'native+fifo', 'native+rr', 'pinned+fifo' and 2 more set real-time",
        ),
        (("sweep", "everything"), "'autogroup-off', 'c-states-shallow', 'irq-affinity' and"),
        (("sweep", "everything"), "the condition 'neighbour' runs programs"),
        (("image", "build"), "needs root: its files belong to root"),
    ],
    ids=["native runs", "real-time", "settings", "neighbours", "image build"],
)
def test_what_needs_root_says_for_what(home: Path, words: tuple[str, ...], why: str) -> None:
    done = as_nobody(home, *words)
    assert done.returncode == 3
    assert why in done.stderr


def test_doctor_says_of_each_step_what_this_user_may_do(home: Path) -> None:
    done = as_nobody(home, "doctor", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    rows = {row["name"]: row for row in json.loads(done.stdout)["findings"]}
    assert rows["rights"]["status"] == "block"
    for step, found in {
        "cgroup-right": "this user cannot create cgroups in /sys/fs/cgroup",
        "native-right": "no mount namespace, no chroot: CAP_SYS_CHROOT and CAP_SYS_ADMIN missing",
        "settings-right": "this user can't write /",
        "rt-right": "CAP_SYS_NICE is missing",
        "network-namespaces": "no permission to create them: CAP_NET_ADMIN",
    }.items():
        assert rows[step]["status"] == "warn"
        assert rows[step]["found"].startswith(found)
        assert rows[step]["remedy"]
    assert not [
        row for row in rows.values() if "unexpected output on this host: [Errno" in row["found"]
    ]
