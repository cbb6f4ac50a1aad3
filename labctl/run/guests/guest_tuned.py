"""Activate a tuned profile inside a guest, and let tuned verify it.

tuned runs there without D-Bus, which a trimmed image doesn't have, and is asked through its own
unix socket (JSON-RPC; tuned 2.20 has it). It goes on running, as it does wherever it is used: some
of what a profile asks for, such as a latency of the CPUs, holds only as long as tuned lives.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from labctl.base.channel import Channel
from labctl.base.command import Command
from labctl.base.errors import BrokenError
from labctl.base.jsontext import parse_json
from labctl.base.last_words import last_words

_LOG = "/var/log/tuned/tuned.log"
_STARTED = "/run/tuned/started"
_PRINTED = "/run/tuned/printed"
_ISOLATED = "/sys/devices/system/cpu/isolated"
_START_S = 240
"""A Python program that starts others, in a guest that may be emulated beside hogs."""

# Without dynamic tuning a profile is the same in each trial. Real-time profiles have to be told
# which CPUs the kernel has isolated: their own guess is all but one of each socket, and a guest's
# vCPUs are sockets of their own. What is written here is thrown away with the guest.
_START = f"""
command -v tuned > /dev/null || {{ echo "tuned is not installed" >&2; exit 1; }}
systemctl --quiet is-active tuned && systemctl stop tuned
printf '%s\\n' 'dynamic_tuning = 0' 'enable_dbus = 0' 'enable_unix_socket = 1' \
    > /etc/tuned/tuned-main.conf
isolated=$(cat {_ISOLATED})
[ -z "$isolated" ] || for file in /etc/tuned/*-variables.conf; do
    printf 'isolated_cores=%s\\n' "$isolated" >> "$file"
done
mkdir -p /run/tuned
# The runner ends what a command leaves in its session, so this one waits until tuned has its own.
rm -f {_STARTED}
setsid --fork sh -c '
    touch {_STARTED}
    exec tuned --profile "$1" --log={_LOG} > {_PRINTED} 2>&1 < /dev/null
' sh "$1"
until [ -e {_STARTED} ]; do sleep 0.1; done
"""

_ASK = f"""
import json, socket, time

def ask(method):
    asked = socket.socket(socket.AF_UNIX)
    asked.settimeout({_START_S})
    asked.connect("/run/tuned/tuned.sock")
    asked.sendall(json.dumps({{"jsonrpc": "2.0", "method": method, "id": 1}}).encode())
    asked.shutdown(socket.SHUT_WR)
    answer = b""
    while data := asked.recv(65536):
        answer += data
    return json.loads(answer).get("result")

def text(path):
    try:
        return open(path).read()
    except OSError:
        return ""

end = time.monotonic() + {_START_S}
profile, verified = None, False
while time.monotonic() < end:
    try:
        # It listens before its profile is applied, and verifies nothing until then.
        if "applied" in text("{_LOG}"):
            profile = ask("active_profile")
            verified = ask("verify_profile_ignore_missing")
            break
    except OSError:
        pass
    time.sleep(0.2)
print(json.dumps({{
    "profile": profile,
    "verified": verified,
    "isolated_cores": text("{_ISOLATED}").strip(),
    "log": text("{_LOG}"),
    "printed": text("{_PRINTED}"),
}}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedState:
    """Hold what tuned says in a guest. `problems`: why the profile isn't in force, one sentence
    each; its log is among the evidence."""

    problems: tuple[str, ...]
    evidence: dict[str, Any]


def activate(channel: Channel, profile: str) -> TunedState:
    """Activate a profile in a guest that answers, and have tuned verify it.

    Raises BrokenError when the guest has no tuned.
    """
    _run(channel, "sh", "-c", _START, "sh", profile)
    printed = _run(channel, "python3", "-c", _ASK)
    try:
        found = parse_json(printed)
        active, verified, log = found["profile"], found["verified"], str(found["log"])
        isolated, words = str(found["isolated_cores"]), str(found["printed"])
    except (ValueError, KeyError, TypeError) as error:
        raise BrokenError(f"tuned in the guest answered with {printed[:200]!r}") from error
    problems = []
    failed = _said(log, "verify: failed: ")
    kept = set(re.findall(r"affinity of (IRQ \d+) to .*Operation not permitted", log))
    left = [
        line
        for line in failed
        if not (_is_other_spelling(line, isolated) or _is_kept_by_kernel(line, kept))
    ]
    if active != profile:
        instead = "has no profile" if active is None else f"has the profile '{active}'"
        said = [*_said(log, "ERROR"), *words.strip().splitlines()]
        why = "".join(f": {line}" for line in said[-1:])
        problems.append(f"tuned in the guest {instead}, asked was '{profile}'{why}")
    elif verified is not True and (left or not failed):
        named = "; ".join(left) or "it does not say what"
        problems.append(f"tuned in the guest can't verify its profile '{profile}': {named}")
    return TunedState(problems=tuple(problems), evidence={**found, "log": log.splitlines()})


def _said(log: str, mark: str) -> list[str]:
    """Return what stands after `mark` in the log's lines."""
    return [line.partition(mark)[2].strip() for line in log.splitlines() if mark in line]


def _is_other_spelling(failed: str, isolated: str) -> bool:
    """Return whether tuned misses only that a word of the kernel's command line names the last CPU
    by its number rather than by N (kernel-parameters.rst, "cpu lists")."""
    words = re.fullmatch(r"cmdline arg '(.*)', expected '(.*)'", failed)
    return words is not None and re.sub(r"\d+-N\b", isolated, words[1]) == words[2]


def _is_kept_by_kernel(failed: str, kept: set[str]) -> bool:
    """Return whether tuned misses only the affinity of an interrupt that the kernel manages itself
    (isolcpus=managed_irq). Linux 6.12 answers EPERM to that, and tuned 2.25 expects EIO."""
    irq = re.match(r"'SMP affinity of (IRQ \d+)'", failed)
    return irq is not None and irq[1] in kept


def _run(channel: Channel, *argv: str) -> str:
    result = channel.run(Command(argv=argv), seconds=_START_S + 30)
    if result.returncode != 0:
        raise BrokenError(
            f"tuned can't be used in the guest: {last_words(result.stderr)}",
            hint="An image gets tuned by its recipe's 'packages'.",
        )
    return result.stdout.decode(errors="replace")
