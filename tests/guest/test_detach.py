"""A sweep that goes on by itself, and what whoever waits for it reads."""

from __future__ import annotations

import json
from pathlib import Path

from labctl.store.archive import RunArchive, archive_digest
from tests.guest.conftest import Sandbox, runs, tiny, wait_for


def test_a_detached_sweep_ends_by_itself_with_the_digest_of_what_it_exports(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    begun = sandbox.labctl(*tiny("native"), "--tuning=baseline", "--detach", "--json", seconds=60)
    assert begun.returncode == 0, begun.stderr
    said = json.loads(begun.stdout)
    sandbox.pids.add(said["pid"])

    def told() -> dict[str, object]:
        found = json.loads(Path(said["progress"]).read_text())
        assert isinstance(found, dict)
        return found

    assert told()["status"] == "running"
    wait_for(lambda: told()["status"] != "running", 300, "the end of the run")
    end = told()
    assert (end["status"], end["done"], end["planned"]) == ("done", 2, 2)
    archive = tmp_path / "run.tar.xz"
    exported = sandbox.labctl("run", "export", said["run"], "--out", str(archive))
    assert exported.returncode == 0, exported.stderr
    assert archive_digest(RunArchive(archive)) == end["digest"]
    wait_for(lambda: not runs(said["pid"]), 30, "the process's end")
    assert sandbox.leftovers() == []
