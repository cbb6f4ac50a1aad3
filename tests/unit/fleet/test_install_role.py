"""What the role labctl_install remembers of a host, as far as its files show it."""

from __future__ import annotations

from typing import Any

import yaml

from labctl.base.paths import shipped_data

ROLE = shipped_data() / "ansible/ansible_collections/labctl/lab/roles/labctl_install"


def _read(name: str) -> Any:
    return yaml.safe_load((ROLE / name).read_text())


def test_an_earlier_wheelhouse_is_installed_anew() -> None:
    """Its stamp went with what it was of, when the later one emptied the virtual environment."""
    tasks = [task for one in _read("tasks/present.yml") for task in one.get("block", [one])]
    [made] = [task for task in tasks if task["name"] == "Make the virtual environment"]
    words = made["ansible.builtin.command"]["argv"]
    assert "--clear" in words
    assert _read("vars/main.yml")["__labctl_install_stamp"].startswith(f"{words[-1]}/")
