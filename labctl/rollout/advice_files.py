"""Write the advice as files: a script, Ansible tasks, the domain's elements, the rollout card."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from labctl.base.errors import BrokenError, UsageError
from labctl.base.placement import refuse
from labctl.base.templates import template_environment
from labctl.base.wording import printable
from labctl.rollout.advice import Advice, Advised
from labctl.rollout.ansible import tasks
from labctl.rollout.steps import (
    SHELL_DISK,
    SHELL_DOMAIN,
    Command,
    Machine,
    backup_path,
    quoted,
)
from labctl.store.jsonfile import check_folder, refuse_foreign_link, write_bytes, write_output

UNNAMED = "NAME"
"""Placeholder for a domain without a name."""

_END = "LABCTL-END"
"""Ends a file in a script; the template has it as well."""

_FORBIDDEN = set("/{}\n\r\t\0\"'`$\\")


@dataclass(frozen=True, slots=True)
class Names:
    """Name the domain and the disk that the steps are for; None: not given, so a placeholder or the
    measured guest's own disk."""

    domain: str | None = None
    disk: str | None = None

    def check(self) -> None:
        """Raise UsageError for a name that no domain has and no script should hold."""
        for what, name in (("domain", self.domain), ("disk", self.disk)):
            if name is None:
                continue
            if not name or name.startswith("-") or _FORBIDDEN & set(name):
                raise UsageError(
                    f"{name!r} cannot be the name of a {what}",
                    hint="'virsh list --all' shows the domains, 'virsh domblklist NAME' the disks.",
                )


def script(advice: Advice, advised: Advised, names: Names, machine: Machine) -> str:
    """Return a shell script that applies what belongs to `machine`; "" when nothing does."""
    steps = advised.rollout.at(machine)
    if not steps:
        return ""
    on_domain = any(command.edits_domain for step in steps for command in step.commands)
    return _rendered(
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
    """Return the same as Ansible tasks; "" when nothing belongs to `machine`."""
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
    """Return the rollout card as markdown. Raises UsageError when nothing is advised, or nothing
    of it may be applied."""
    if advice.card is None and advice.advised:
        first = advice.advised[0]
        refuse(first.tuning, first.rollout.refused)
    if advice.card is None:
        raise UsageError(
            "there is no rollout card, because nothing is advised",
            hint=f"'labctl advise {shlex.quote(advice.run)}' says why.",
        )
    domain = shlex.quote(names.domain or UNNAMED)
    return _rendered(
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
    """Write the card, and a folder for each advised tuning; returns the files. Raises UsageError
    when nothing is advised, the folder can't be made, or is another user's link."""
    card = card_text(advice, names)
    refuse_foreign_link(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot make the folder {folder}: {error.strerror}", hint="Give another --out."
        ) from error
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
    written = []
    for name, text in texts.items():
        if text:
            mode = 0o755 if name.endswith(".sh") else 0o644
            write_bytes(own / name, text.encode(), mode=mode, below=folder)
            written.append(own / name)
    return written


def _rendered(template: str, **values: object) -> str:
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
    """Return a line of Markdown that shows `text` as it is: no HTML, no links, no pictures, no
    code."""
    escaped = _one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]])", r"\\\1", escaped)


def _here(text: str) -> str:
    """Return the lines of a here-document, none of which may end it."""
    if _END in text:
        raise BrokenError(f"a file of the advice has a line with {_END}, which ends it in a script")
    return text


def _in_script(command: Command) -> str:
    return command.shell(SHELL_DOMAIN, SHELL_DISK)
