"""Write the advice as files: a script, Ansible tasks, the domain's elements, the rollout card."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

import yaml

from labctl.analysis.answer.json import answer_json, comparison_json
from labctl.base.errors import BrokenError, UsageError
from labctl.base.placement import refuse
from labctl.base.templates import template_environment
from labctl.base.wording import printable
from labctl.rollout.advice import Advice, Advised
from labctl.rollout.card import Card
from labctl.rollout.rollout_steps import RolloutSteps
from labctl.rollout.steps import (
    SHELL_DISK,
    SHELL_DOMAIN,
    Command,
    Machine,
    Step,
    backup_path,
    filled,
    quoted,
)
from labctl.store.jsonfile import check_folder, refuse_foreign_link, write_bytes, write_output

# Write a tuning's steps as Ansible tasks, for a play on the step's machine.
#
# Only modules of ansible-core, because community.libvirt can define whole domains but not change
# parts of one. Each task can be run again: it changes nothing that is already correct.


_DOMAIN = "{{ labctl_domain }}"
_DISK = "{{ labctl_disk }}"

Task = dict[str, object]


def tasks(
    name: str, steps: Sequence[Step], *, domain: str, disk: str, vcpus: int | None, tuning: str
) -> str:
    """Return a YAML file of tasks, in one block whose variables name the domain and the disk.

    `vcpus`: the domain's required number; None: any number. With a domain its XML is saved before
    it is changed.
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
        width=4096,  # a folded command cannot be compared with the shell's
        explicit_start=True,
        allow_unicode=True,
        sort_keys=False,
    )
    return written


class _Block(str):
    """Text of several lines, written as such."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML brings no types
    """Write lists as in Ansible's own examples: indented below their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)

    def ignore_aliases(self, data: object) -> bool:
        return True


_Dumper.add_representer(
    _Block, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|")
)


def _kept(tuning: str) -> Iterator[Task]:
    yield {
        "name": "Read the current domain XML",
        "ansible.builtin.command": {
            "argv": ["virsh", "dumpxml", "--inactive", "--security-info", _DOMAIN]
        },
        "register": "labctl_before",
        "changed_when": False,
        "check_mode": False,
    }
    yield {
        "name": "Save it, so that 'virsh define' can undo the change",
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
        "name": f"Refuse a domain that does not have {vcpus} vCPU(s)",
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
                **_run(f"{title}: apply it", command),
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
            "name": f"{title}: check whether it is already set",
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
    """Return text that Ansible's templates leave unchanged."""
    return re.sub(r"\{[{%#]", lambda found: "{{ '" + found.group() + "' }}", text)


def _quoted(text: str) -> str:
    """Quote inside a string of a Jinja expression."""
    return text.replace("\\", "\\\\").replace("'", "\\'")


UNNAMED = "NAME"
"""Placeholder for a domain without a name."""

_END = "LABCTL-END"
"""End marker of a file in a script; the template has it as well."""

_FORBIDDEN = set("/{}\n\r\t\0\"'`$\\")


@dataclass(frozen=True, slots=True)
class Names:
    """Name the domain and the disk of the steps; None: not given, so a placeholder or the measured
    guest's own disk."""

    domain: str | None = None
    disk: str | None = None

    def check(self) -> None:
        """Raise UsageError for a name that no domain can have and no script should contain."""
        for what, name in (("domain", self.domain), ("disk", self.disk)):
            if name is None:
                continue
            if not name or name.startswith("-") or _FORBIDDEN & set(name):
                raise UsageError(
                    f"{name!r} is not a valid name for a {what}",
                    hint="'virsh list --all' shows the domains, 'virsh domblklist NAME' the disks.",
                )


def script(advice: Advice, advised: Advised, names: Names, machine: Machine) -> str:
    """Return a shell script with the steps on `machine`; "" if there are none."""
    steps = advised.rollout.at(machine)
    if not steps:
        return ""
    on_domain = any(command.edits_domain for step in steps for command in step.commands)
    return rendered(
        "apply.sh.j2",
        advice=advice,
        advised=advised,
        steps=steps,
        machine=machine,
        on_domain=on_domain,
        domain=names.domain,
        disk=names.disk or advised.rollout.disk,
        files=[step.file.path for step in steps if step.file is not None],
        in_force=list(dict.fromkeys(str(step.in_force) for step in steps)),
        backup=backup_path(SHELL_DOMAIN, advised.tuning),
        kept=backup_path(names.domain or UNNAMED, advised.tuning),
    )


def ansible(advice: Advice, advised: Advised, names: Names, machine: Machine) -> str:
    """Return the same as Ansible tasks; "" if there are none for `machine`."""
    steps = advised.rollout.at(machine)
    if not steps:
        return ""
    return tasks(
        f"Tuning '{advised.tuning}', as labctl measured it in run {advice.run}",
        steps,
        domain=names.domain or UNNAMED,
        disk=names.disk or advised.rollout.disk,
        vcpus=advised.rollout.vcpus,
        tuning=advised.tuning,
    )


def card_text(advice: Advice, names: Names) -> str:
    """Return the rollout card as markdown. Raises UsageError if nothing is advised, or none of it
    may be applied."""
    if advice.card is None and advice.advised:
        first = advice.advised[0]
        refuse(first.tuning, first.rollout.refused)
    if advice.card is None:
        raise UsageError(
            "no rollout card: nothing is advised",
            hint=f"'labctl advise {shlex.quote(advice.run)}' says why.",
        )
    domain = shlex.quote(names.domain or UNNAMED)
    return rendered(
        "card.md.j2",
        card=advice.card,
        headline=advice.headline,
        cautions=(*advice.cautions, *advice.warnings),
        apply=f"labctl advise {shlex.quote(advice.run)} --domain {domain} --out FOLDER",
    )


def write_card(target: Path, advice: Advice, names: Names) -> None:
    text = card_text(advice, names)
    check_folder(target)
    write_output(target, text.encode())


def write_files(folder: Path, advice: Advice, names: Names) -> list[Path]:
    """Write the card, and a folder for each advised tuning; return the files. Raises UsageError if
    nothing is advised, the folder cannot be made, or is another user's link."""
    card = card_text(advice, names)
    _make(folder)
    write_bytes(folder / "card.md", card.encode(), below=folder)
    return [
        folder / "card.md",
        *(
            path
            for advised in advice.advised
            if not advised.rollout.refused
            for path in _written(folder, advice, advised, names)
        ),
    ]


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write texts by file name, scripts as executable ones; return the files. Raises UsageError as
    `write_files` does for the folder."""
    _make(folder)
    return [_written_text(folder / name, text, below=folder) for name, text in texts.items()]


def _make(folder: Path) -> None:
    refuse_foreign_link(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot make the folder {folder}: {error.strerror}", hint="Give another --out."
        ) from error


def _written_text(path: Path, text: str, *, below: Path) -> Path:
    mode = 0o755 if path.name.endswith(".sh") else 0o644
    write_bytes(path, text.encode(), mode=mode, below=below)
    return path


def _written(folder: Path, advice: Advice, advised: Advised, names: Names) -> list[Path]:
    own = folder / advised.tuning
    own.mkdir(exist_ok=True)
    texts = {
        "domain.xml": advised.rollout.fragment,
        "apply.sh": script(advice, advised, names, Machine.HOST),
        "apply-in-guest.sh": script(advice, advised, names, Machine.GUEST),
        "tasks.yaml": ansible(advice, advised, names, Machine.HOST),
        "tasks-in-guest.yaml": ansible(advice, advised, names, Machine.GUEST),
    }
    return [_written_text(own / name, text, below=folder) for name, text in texts.items() if text]


def rendered(template: str, **values: object) -> str:
    """Return a filled-in template of `templates/advice/`."""
    environment = template_environment("advice", escapes=False)
    environment.filters["one_line"] = _one_line
    environment.filters["prose"] = _prose
    environment.filters["cell"] = lambda text: _prose(text).replace("|", "\\|")
    environment.filters["quoted"] = quoted
    environment.filters["command"] = _in_script
    environment.filters["here"] = _here
    return environment.get_template(template).render(**values)


def _one_line(text: object) -> str:
    return " ".join(printable(str(text)).split())


def _prose(text: object) -> str:
    """Return a line of Markdown that shows `text` literally: no HTML, no links, no pictures, no
    code."""
    escaped = _one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]])", r"\\\1", escaped)


def _here(text: str) -> str:
    """Return the lines of a here-document, none of which may end it."""
    if _END in text:
        raise BrokenError(
            f"a file of the advice contains the line {_END}, which would end it early in a script"
        )
    return text


def _in_script(command: Command) -> str:
    return command.shell(SHELL_DOMAIN, SHELL_DISK)


# Write the advice for programs. docs/advice.md documents its format.


SCHEMA = 3
"""Version of the format: raised when a key is removed or changes its meaning; not for new keys."""


def advice_json(advice: Advice, names: Names) -> dict[str, object]:
    """Return the advice as plain JSON values."""
    return {
        "schema": SCHEMA,
        "run": advice.run,
        "headline": advice.headline,
        "decision": answer_json(advice.decision),
        "cautions": list(advice.cautions),
        "warnings": list(advice.warnings),
        "domain": names.domain,
        "advised": [_advised(advice, item, names) for item in advice.advised],
        "left": [
            {
                "tuning": left.tuning,
                "code": str(left.code),
                "why": left.why,
                "unshown": [asdict(item) for item in left.unshown],
                "judged": [comparison_json(item) for item in left.judged],
            }
            for left in advice.left
        ],
        "card": None if advice.card is None else _card(advice.card),
    }


def _advised(advice: Advice, item: Advised, names: Names) -> dict[str, object]:
    return {
        "tuning": item.tuning,
        "grade": str(item.grade),
        "description": item.description,
        "judged": [comparison_json(comparison) for comparison in item.judged],
        "unjudged": list(item.unjudged),
        "cost": {
            "takes": list(item.cost.takes),
            "side_costs": [asdict(entry) for entry in item.cost.side_costs],
            "neighbour_loss": item.cost.neighbour_loss,
            "worse": [comparison_json(comparison) for comparison in item.cost.worse],
            "largest": [asdict(one) for one in item.cost.largest],
            "risks": None if item.cost.risks is None else list(item.cost.risks),
        },
        "rollout": {
            **rollout_json(item.rollout, names),
            "ansible": {str(machine): ansible(advice, item, names, machine) for machine in Machine},
        },
    }


def rollout_json(rollout: RolloutSteps, names: Names) -> dict[str, object]:
    """Return the steps of a tuning as plain JSON values."""
    domain, disk = names.domain or UNNAMED, names.disk or rollout.disk
    return {
        "steps": [_step(step, domain, disk) for step in rollout.steps],
        "live": [_command(command, domain, disk) for command in rollout.live],
        "fragment": rollout.fragment,
        "changes": [asdict(change) for change in rollout.changes],
        "vcpus": rollout.vcpus,
        "notes": list(rollout.notes),
        "refused": [{"text": one.text, "hint": one.hint} for one in rollout.refused],
    }


def _step(step: Step, domain: str, disk: str) -> dict[str, object]:
    return {
        "title": step.title,
        "machine": str(step.machine),
        "in_force": str(step.in_force),
        "file": None if step.file is None else asdict(step.file),
        "commands": [_command(command, domain, disk) for command in step.commands],
    }


def _command(command: Command, domain: str, disk: str) -> list[str]:
    return filled(command.argv, domain, disk)


def _card(card: Card) -> dict[str, object]:
    return {
        "tuning": card.tuning,
        "run": card.run,
        "measured": card.measured,
        "found": list(card.found),
        "costs": list(card.costs),
        "holds_while": {fact.name: fact.value for fact in card.holds_while},
        "check": card.check,
    }
