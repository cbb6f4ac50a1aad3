"""The collection as Ansible's own tools see it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from labctl import __version__
from labctl.fleet.ansible import collections, environment

COLLECTION = collections() / "ansible_collections/labctl/lab"
ROLES = sorted(path.name for path in (COLLECTION / "roles").iterdir())


def ansible(*words: str, at: Path = COLLECTION) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=at,
        env={**os.environ, **environment(), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_ansible_lint_finds_nothing() -> None:
    done = ansible("ansible-lint", "--offline", "--strict")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("role", ROLES)
def test_ansible_doc_shows_each_option_with_what_it_means(role: str) -> None:
    done = ansible("ansible-doc", "--type", "role", "--json", f"labctl.lab.{role}")
    assert done.returncode == 0, done.stderr
    [shown] = json.loads(done.stdout).values()
    options = shown["entry_points"]["main"]["options"]
    assert all(option["description"] for option in options.values())
    defaults = yaml.safe_load((COLLECTION / f"roles/{role}/defaults/main.yml").read_text())
    assert {name: option["default"] for name, option in options.items() if "default" in option} == (
        defaults
    )
    assert all(name.startswith(f"{role}_") for name in options)


def test_its_version_is_labctls() -> None:
    said = yaml.safe_load((COLLECTION / "galaxy.yml").read_text())
    assert said["version"] == __version__


def test_it_brings_no_code() -> None:
    """Modules and plugins import Ansible's own code, which is under the GPL."""
    files = {path.suffix for path in COLLECTION.rglob("*") if path.is_file()}
    assert files <= {".yml", ".md", ""}
