"""Write out the words of a kernel's command line that tunings request by name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from labctl.base.cpus import CpuSet, format_cpus

COMMAND_LINE = Path("/proc/cmdline")


def in_full(words: Iterable[str], isolated: CpuSet) -> list[str]:
    """Return `words` as a kernel gets them: those that want CPUs get `isolated`.

    Documentation/admin-guide/kernel-parameters.txt: isolcpus= with `managed_irq` keeps the queues
    of devices off as well, `domain` is what it does by itself; nohz_full= without rcu_nocbs= would
    leave the kernel's deferred work on those CPUs.
    """
    cpus = format_cpus(isolated)
    given = {
        "isolcpus": [f"isolcpus=managed_irq,domain,{cpus}"],
        "nohz_full": [f"nohz_full={cpus}", f"rcu_nocbs={cpus}"],
    }
    return [word for asked in words for word in given.get(asked, [asked])]


def is_booted_with(word: str, line: Iterable[str]) -> bool:
    """Return whether a kernel was booted with a word: `isolcpus` is there with whatever value,
    `isolcpus=1-3` only as it stands."""
    return any(w == word or ("=" not in word and w.startswith(f"{word}=")) for w in line)


def booted_with(path: Path = COMMAND_LINE) -> list[str]:
    """Return the words that the running kernel was booted with; [] where it is unknown."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return []
