"""Settings outside of the domain's XML, of the host and inside the guest, made to last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from labctl.report.advice_steps import Command, Done, InForce, Place, Step, TextFile
from labctl.report.view import mapping, sequence

_PREFIX = "90-labctl-"
"""After what a distribution brings, which mostly is numbered lower."""

_HEAD = "# Of labctl's tuning '{tuning}'. Remove this file to undo it.\n"


def host_steps(tuning: str, host: Mapping[str, str], requires: Mapping[str, Any]) -> Iterator[Step]:
    """What a tuning needs of the host: knobs to their values, words of its command line."""
    words = [str(word) for word in sequence(requires.get("command_line"))]
    if words:
        yield _command_line(tuning, words, Place.HOST)


def guest_steps(tuning: str, guest: Mapping[str, Any], words: Sequence[str]) -> Iterator[Step]:
    """What a tuning sets inside the guest; `words` are those of its kernel's command line."""
    if words:
        yield _command_line(tuning, words, Place.GUEST)
    if guest.get("tuned"):
        yield _tuned(str(guest["tuned"]), Place.GUEST)
    if guest.get("elevator"):
        yield Step(
            title=f"Schedule its disks' requests by '{guest['elevator']}'",
            place=Place.GUEST,
            in_force=InForce.AT_ONCE,
            file=TextFile(
                f"/etc/udev/rules.d/{_PREFIX}{tuning}.rules",
                _HEAD.format(tuning=tuning)
                + 'ACTION=="add|change", SUBSYSTEM=="block", ENV{DEVTYPE}=="disk", '
                + f'ATTR{{queue/scheduler}}="{guest["elevator"]}"\n',
            ),
            commands=(
                Command(argv=("udevadm", "control", "--reload")),
                Command(argv=("udevadm", "trigger", "--subsystem-match=block")),
            ),
        )
    files = {str(path): str(value) for path, value in mapping(guest.get("sysfs")).items()}
    if files:
        yield _written_at_boot(tuning, files, Place.GUEST)


def _command_line(tuning: str, words: Sequence[str], place: Place) -> Step:
    """Through GRUB as Debian and Ubuntu set it up; elsewhere a note names grubby."""
    line = " ".join(words)
    return Step(
        title=f"Boot the {place}'s kernel with '{line}'",
        place=place,
        in_force=InForce.HOST_REBOOT if place is Place.HOST else InForce.GUEST_REBOOT,
        file=TextFile(
            f"/etc/default/grub.d/{_PREFIX}{tuning}.cfg",
            _HEAD.format(tuning=tuning)
            + f'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT {line}"\n',
        ),
        commands=(Command(argv=("update-grub",)),),
    )


def _tuned(profile: str, place: Place) -> Step:
    return Step(
        title=f"Switch tuned to the profile '{profile}'",
        place=place,
        in_force=InForce.AT_ONCE,
        commands=(
            Command(
                argv=("tuned-adm", "profile", profile),
                unless=Done(
                    ("tuned-adm", "active"), f"Current active profile: {profile}", whole_line=True
                ),
            ),
        ),
    )


def _written_at_boot(tuning: str, files: Mapping[str, str], place: Place) -> Step:
    """Files of /sys, which systemd-tmpfiles(8) writes at each boot (`w-`: what can't be written,
    because a kernel lacks it or has it so anyway, stops nothing else)."""
    path = f"/etc/tmpfiles.d/{_PREFIX}{tuning}.conf"
    lines = [f"w- {name} - - - - {value}\n" for name, value in files.items()]
    return Step(
        title="Write " + ", ".join(f"{value} to {name}" for name, value in files.items()),
        place=place,
        in_force=InForce.AT_ONCE,
        file=TextFile(path, _HEAD.format(tuning=tuning) + "".join(lines)),
        commands=(Command(argv=("systemd-tmpfiles", "--create", path)),),
    )
