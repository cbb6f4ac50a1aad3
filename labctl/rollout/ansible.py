"""Write a tuning's steps as Ansible tasks, for a play that runs where the steps belong.

Only modules that come with ansible-core, because community.libvirt can define whole domains but
not change parts of one. Each task can be run again: it changes nothing that is as it should be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

import yaml

from labctl.rollout.steps import Command, Step, backup_path, filled

_DOMAIN = "{{ labctl_domain }}"
_DISK = "{{ labctl_disk }}"

Task = dict[str, Any]


def tasks(
    name: str, steps: Sequence[Step], *, domain: str, disk: str, vcpus: int | None, tuning: str
) -> str:
    """Return a YAML file of tasks, in one block whose variables say which domain and disk are
    meant.

    `vcpus`: what the domain must have for the steps to make sense; None: any number. With a domain
    its XML is kept before it is changed.
    """
    on_domain = any(command.edits_domain for step in steps for command in step.commands)
    variables = {"labctl_domain": domain, "labctl_disk": disk} if on_domain else {}
    block: list[Task] = []
    if on_domain:
        block += _kept(tuning)
        if vcpus is not None:
            block += _as_many_vcpus(vcpus)
    for number, step in enumerate(steps, start=1):
        block += _tasks_of(step, f"labctl_step_{number}")
    outer: Task = {"name": _literal(name)}
    if variables:
        outer["vars"] = variables
    outer["block"] = block
    written: str = yaml.dump(
        [outer],
        Dumper=_Dumper,
        width=4096,  # a folded command can't be compared with the shell's
        explicit_start=True,
        allow_unicode=True,
        sort_keys=False,
    )
    return written


class _Block(str):
    """Text of several lines, written as such."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML brings no types
    """Writes lists as Ansible's own examples have them: indented below their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)

    def ignore_aliases(self, data: object) -> bool:
        return True


_Dumper.add_representer(
    _Block, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|")
)


def _kept(tuning: str) -> Iterator[Task]:
    yield {
        "name": "Read the domain as it is",
        "ansible.builtin.command": {
            "argv": ["virsh", "dumpxml", "--inactive", "--security-info", _DOMAIN]
        },
        "register": "labctl_before",
        "changed_when": False,
        "check_mode": False,
    }
    yield {
        "name": "Keep it, so that 'virsh define' can undo this",
        "ansible.builtin.copy": {
            "content": "{{ labctl_before.stdout }}\n",
            "dest": backup_path(_DOMAIN, _literal(tuning)),
            "force": False,
            "mode": "0600",
        },
    }


def _as_many_vcpus(vcpus: int) -> Iterator[Task]:
    yield {
        "name": "Count its vCPUs",
        "ansible.builtin.command": {
            "argv": ["virsh", "vcpucount", _DOMAIN, "--maximum", "--config"]
        },
        "register": "labctl_vcpus",
        "changed_when": False,
        "check_mode": False,
    }
    yield {
        "name": f"Refuse a domain without the {vcpus} vCPU(s) that this was made for",
        "ansible.builtin.assert": {
            "that": [f"labctl_vcpus.stdout | trim == '{vcpus}'"],
            "fail_msg": f"CPU numbers are planned for {vcpus} vCPU(s).",
        },
    }


def _tasks_of(step: Step, register: str) -> Iterator[Task]:
    title = _literal(step.title)
    if step.file is not None:
        yield {
            "name": f"{title}: its folder",
            "ansible.builtin.file": {
                "path": _literal(str(PurePosixPath(step.file.path).parent)),
                "state": "directory",
                "mode": "0755",
            },
        }
        yield {
            "name": title,
            "ansible.builtin.copy": {
                "dest": _literal(step.file.path),
                "content": _Block(_literal(step.file.text)),
                "mode": "0644",
            },
            "register": register,
        }
        for command in step.commands:
            yield {
                **_run(f"{title}: put it in force", command),
                "when": f"{register} is changed",
            }
        return
    for number, command in enumerate(step.commands, start=1):
        yield from _checked(title, command, f"{register}_{number}")


def _checked(title: str, command: Command, register: str) -> Iterator[Task]:
    task = _run(title, command)
    if command.changed:
        task["register"] = register
        task["changed_when"] = f"'{command.changed}' in {register}.stdout"
    if command.unless is not None:
        lines = "stdout_lines" if command.unless.whole_line else "stdout"
        yield {
            "name": f"{title}: is it so already?",
            "ansible.builtin.command": {"argv": _words(command.unless.argv)},
            "register": f"{register}_found",
            "changed_when": False,
            "check_mode": False,
        }
        task["when"] = f"'{_quoted(command.unless.text)}' not in {register}_found.{lines}"
    yield task


def _run(title: str, command: Command) -> Task:
    return {"name": title, "ansible.builtin.command": {"argv": _words(command.argv)}}


def _words(argv: Sequence[str]) -> list[str]:
    return filled([_literal(word) for word in argv], _DOMAIN, _DISK)


def _literal(text: str) -> str:
    """Return text that Ansible's templates leave as it is."""
    return re.sub(r"\{[{%#]", lambda found: "{{ '" + found.group() + "' }}", text)


def _quoted(text: str) -> str:
    """Quote inside a string of a Jinja expression."""
    return text.replace("\\", "\\\\").replace("'", "\\'")
