"""Word the results of a density run, alike for terminal, page and programs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from labctl.analysis.answer.words import listed
from labctl.analysis.density import Density, Fitting, SignTest
from labctl.base.cpus import parse_cpus
from labctl.base.errors import UsageError
from labctl.base.notation import share
from labctl.base.wording import counted, without_logs
from labctl.store.density_record import OTHER_CPUS, DensityRecord

_TCG = (
    "Guests were emulated (TCG): the numbers hold only for emulated guests on this host "
    "and say nothing about KVM."
)
_LONGEST = 400
"""Characters of a reason."""
_LEAST_COMMON = 0.9
"""Share of a window in which all guests must run."""


def number_words(fitting: Fitting) -> str:
    """Return "3", "at least 4", or that no number was found."""
    return "unavailable" if fitting.typical is None else str(fitting.typical)


def interval_words(fitting: Fitting) -> str:
    """Return "2 to 4", or why there is no interval."""
    if fitting.interval is None:
        have = len(fitting.numbers)
        return f"no interval: {counted(have, 'block')}, and {fitting.why}"
    return f"{fitting.interval} ({share(fitting.interval.coverage)})"


def blocks_words(fitting: Fitting) -> str:
    """Return the number of each block, in order: "3, 3, ≥ 4"."""
    numbers = [
        f"≥ {number.value}" if number.at_least else str(number.value)
        for number in fitting.numbers.values()
    ]
    return ", ".join(numbers)


def test_words(test: SignTest) -> str:
    """Return the result of a sign test, with its counts."""
    differ = test.more + test.fewer
    counts = (
        f"more guests in {test.more}, fewer in {test.fewer}, as many in "
        f"{counted(test.alike, 'block')}"
    )
    if test.undecided:
        counts += f", undecided by a bound in {test.undecided}"
    if test.shows_more is not None:
        word = "more" if test.shows_more else "fewer"
        verdict = f"{word} guests fit under {test.tuning} than under {test.against}"
    elif differ < test.fewest:
        verdict = (
            f"no difference shown: {counted(differ, 'block')} differed; at least "
            f"{test.fewest} are needed to show one"
        )
    else:
        verdict = "no difference shown"
    return f"{test.tuning} against {test.against}: {verdict} ({counts}; p = {test.p:.2g})."


def remarks(record: DensityRecord, found: Density) -> list[str]:
    """Return the caveats of the numbers."""
    said = []
    if record.accelerator == "tcg":
        said.append(_TCG)
    if record.status != "done":
        counts, planned = len(record.counts), record.blocks * len(record.tunings)
        why = f" ({record.failure})" if record.failure else ""
        said.append(
            f"The run is {record.status}{why}: {counts} of {counted(planned, 'count')} were made."
        )
    if record.stopped is not None:
        said.append(f"The run ended early: {record.stopped}.")
    for one in found.fitting:
        for why, blocks in _by_reason(one.bounded).items():
            said.append(
                f"{one.tuning}, {_blocks(blocks)}: {_cut(why)} ended the search before the "
                "limit did: the number is a lower bound."
            )
        for why, blocks in _by_reason(one.lacking).items():
            said.append(f"{one.tuning}, {_blocks(blocks)}: no number: {_cut(why)}")
    told = [s for s in record.steps if s.other_cpus is not None]
    others = [s for s in told if (s.other_cpus or 0.0) > OTHER_CPUS]
    if untold := len(record.steps) - len(told):
        said.append(
            f"In {untold} of {counted(len(record.steps), 'step')} the CPU time of other "
            "processes is unknown."
        )
    if others:
        spoilt = sum(step.disturbed for step in others)
        said.append(
            "Other processes kept up to "
            f"{max(step.other_cpus or 0.0 for step in others):.2f} CPUs busy in "
            f"{len(others)} of {counted(len(record.steps), 'step')}, so their guests were "
            "slower than they would be alone."
            + (
                f" {counted(spoilt, 'step')} that exceeded the limit beside them were discarded."
                if spoilt
                else ""
            )
        )
    least_s = _LEAST_COMMON * record.duration_s
    apart = [s for s in record.steps if s.common_s is not None and s.common_s < least_s]
    if apart:
        said.append(
            f"In {len(apart)} of {counted(len(record.steps), 'step')} all guests ran at once for "
            f"less than {share(_LEAST_COMMON)} of the window."
        )
    return said


def _by_reason(reasons: Mapping[int, str]) -> dict[str, list[int]]:
    """Return the blocks that have each reason."""
    found: dict[str, list[int]] = {}
    for block, why in reasons.items():
        found.setdefault(why, []).append(block)
    return found


def _blocks(numbers: Sequence[int]) -> str:
    word = "block" if len(numbers) == 1 else "blocks"
    return f"{word} {listed([str(number) for number in numbers], 10)}"


def _cut(why: str) -> str:
    """Return a reason shortened to a readable length: it may quote a tool's whole command line."""
    sentence, _ = without_logs(why)
    return sentence if len(sentence) <= _LONGEST else f"{sentence[:_LONGEST]}…"


def head_words(record: DensityRecord, name: str) -> str:
    """Return the workload, limit, run, guests and blocks of a density run, in a line."""
    size = f"{counted(record.vcpus, 'vCPU')}, {record.memory_mib} MiB"
    return (
        f"Number of guests that run {record.workload} at once while the worst one keeps "
        f"{record.limit.limit()}: {name} ({record.status}), guests of {size}, "
        f"{counted(record.blocks, 'block')}, windows of {record.duration_s:g} s, "
        f"{record.accelerator or 'unknown accelerator'}"
    )


def placed_words(record: DensityRecord) -> list[str]:
    """Return which CPUs each guest had, by tuning."""
    lines = []
    for tuning in record.tunings:
        steps = [step for step in record.steps if step.tuning == tuning]
        if not steps:
            continue
        largest = max(steps, key=lambda step: step.count)
        if len(places := {guest.cpus for guest in largest.guests}) == 1:
            lines.append(f"{tuning}: the threads of every guest ran on {places.pop()}")
        else:
            each = "; ".join(f"guest {guest.number} {guest.cpus}" for guest in largest.guests)
            lines.append(f"{tuning}: {each}")
    return lines


# Say what the number of guests means as a platform's overcommit.


PLATFORM_LIMITS = (
    "It holds for guests that all run this workload under this limit, on hosts with these CPUs; "
    "memory is not overcommitted. Pinned (dedicated) CPUs are never overcommitted by a platform."
)


def overcommit(record: DensityRecord, found: Density, platform: str) -> dict[str, dict[str, str]]:
    """Return the settings of kubevirt, openstack or proxmox that admit the number of guests of each
    tuning, and no more. Raises UsageError if the run did not record the host's CPUs."""
    try:
        cpus = len(parse_cpus(str(record.host.get("cpus_online") or "")))
    except ValueError:
        cpus = 0
    if not cpus:
        raise UsageError("the run did not record the host's CPUs, so no overcommit follows from it")
    return {
        one.tuning: _settings(platform, one.typical.value, record.vcpus, cpus)
        for one in found.fitting
        if one.typical is not None and one.typical.value > 0
    }


def _settings(platform: str, guests: int, vcpus: int, cpus: int) -> dict[str, str]:
    """Return settings rounded so that `guests` fit and no more, as far as their steps allow."""
    ratio = guests * vcpus / cpus
    match platform:
        case "kubevirt":
            return {
                "cpuAllocationRatio": str(max(1, int(ratio))),
                "resources.requests.cpu": f"{1000 * cpus // guests}m",
            }
        case "openstack":
            up = f"{math.ceil(10_000 * ratio) / 10_000:.4f}"
            return {"cpu_allocation_ratio": up.rstrip("0").rstrip(".")}
        case _:
            return {"cpuunits": "100", "cpulimit": f"{int(100 * cpus / guests) / 100:g}"}


_MEANINGS = {
    "kubevirt": (
        "cpuAllocationRatio (of KubeVirt's developerConfiguration, a whole number from 1) divides "
        "the request of each VM without one of its own; resources.requests.cpu is for this VM."
    ),
    "openstack": "cpu_allocation_ratio is of the compute node's nova.conf.",
    "proxmox": (
        "Proxmox VE starts any number of guests. Equal cpuunits share the CPUs as measured; "
        "cpulimit would also cap a guest at its share, which was not measured."
    ),
}


def overcommit_words(record: DensityRecord, found: Density, platform: str) -> list[str]:
    """Return the same as lines. Raises UsageError as `overcommit` does."""
    numbers = {one.tuning: one for one in found.fitting}
    lines = [
        f"{tuning}: {numbers[tuning].typical} guests: "
        + ", ".join(f"{key}: {value}" for key, value in settings.items())
        for tuning, settings in overcommit(record, found, platform).items()
    ]
    if not lines:
        return ["No number of guests was found, so no overcommit follows."]
    return [*lines, _MEANINGS[platform], PLATFORM_LIMITS]
