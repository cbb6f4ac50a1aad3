"""Programs of a fixed amount of work, run one after the other until their time is up."""

from __future__ import annotations

from collections.abc import Sequence

SHELL = "/usr/bin/dash"

# The shell's own words alone: nothing is forked between two runs. /proc/uptime counts hundredths
# of a second, and nobody can set it.
_NOW = 'now() { read -r up _ < /proc/uptime; now="${up%.*}${up#*.}"; }'
_FOR_TIME = (
    f'{_NOW}; now; end=$((now + $0)); while "$@" || exit; now; [ "$now" -lt "$end" ]; do :; done'
)
_TIMES = 'left=$0; while [ "$left" -gt 0 ]; do "$@" || exit; left=$((left - 1)); done'


def for_seconds(argv: Sequence[str], seconds: float) -> tuple[str, ...]:
    """Runs `argv` again and again, at least once, until that much time has gone; ends with the
    status of a run that fails."""
    return (SHELL, "-c", _FOR_TIME, str(round(seconds * 100)), *argv)


def times(argv: Sequence[str], count: int) -> tuple[str, ...]:
    """Runs `argv` that often."""
    return (SHELL, "-c", _TIMES, str(count), *argv)
