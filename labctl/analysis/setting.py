"""Say what a run's setting does to its numbers: emulation, kernels, collectors, unproven files."""

from __future__ import annotations

from collections.abc import Iterator

from labctl.analysis.cells import Cells
from labctl.analysis.collecting import LEAST, costs_said, level_of
from labctl.analysis.design import Design
from labctl.analysis.words import sentence
from labctl.base import verified
from labctl.base.latencies import CLOSED, OPEN, SKIP_PERIODS
from labctl.base.notation import quantity
from labctl.base.units import Unit
from labctl.base.wording import counted, metric_title
from labctl.store.run_folder import LoadedRun
from labctl.trace.problems import SIZE_LIMIT

_ALWAYS_TRACED, _ALWAYS_TRACED_INSIDE = "lost_events", "lost_events{of=guest}"
"""Metrics that each trace of a host, and of a guest, yields, if only as a count of what it
lacks."""

LATENCY_LIMIT = "cpu_latency_limit"
"""Metric that has a value where a process limits it."""
LATENCY_KNOB = "cpu-dma-latency"
"""The setting of the host by which a tuning asks for that; tuned's profiles may ask as well."""

_TWO_KERNELS = (
    "host and guest run different kernels: the native-versus-guest ratio is a stack difference, "
    "not virtualization overhead"
)

_HOST_IS_EMULATED = (
    "The host itself was emulated: its CPUs are QEMU's TCG. VM exits are real to its KVM, and so "
    "are their counts and reasons, per operation too; of those that come with time (timers, "
    "interrupts) an operation sees more than on hardware, as it takes longer. Times, rates and "
    "their ratios say how fast the emulation is and nothing about any other host, verdicts "
    "included."
)


def setting(run: LoadedRun, design: Design, cells: Cells) -> Iterator[str]:
    """Yield what the accelerator, the kernels and the host itself do to the run's numbers."""
    if run.run.host_is_emulated:
        yield _HOST_IS_EMULATED
    elif run.run.is_emulated:
        yield "The guests ran under TCG: " + (
            "the native-versus-guest ratio shows emulation, not virtualization."
            if design.natives
            else "what a tuning does to an emulated guest, it need not do to one under KVM."
        )
    if design.natives and run.run.same_kernel is False:
        yield sentence(str(run.run.kernel_sentence or _TWO_KERNELS))
    if run.run.accelerator == "kvm" and (text := verified.kvm_caveat()):
        yield text
    if not run.run.host_is_emulated:
        yield from _host_is_a_guest(run)
    measured_here = not run.run.imported
    if measured_here and _has_hardware_counters(cells) and (text := verified.pmu_caveat()):
        yield text


def _has_hardware_counters(cells: Cells) -> bool:
    return any("source=pmu" in key for series in cells.series.values() for key in series)


def _host_is_a_guest(run: LoadedRun) -> Iterator[str]:
    """Yield that the host is a virtual machine itself, as its CPU's hypervisor bit or model or
    systemd-detect-virt(1) says; nothing of a host whose run recorded none of them."""
    host = run.run.host
    vendor, model = host.get("hypervisor_vendor"), host.get("cpu_model")
    named = vendor if isinstance(vendor, str) and vendor != "none" else None
    if named is None and isinstance(model, str) and model.startswith("QEMU "):
        named = "qemu"
    if host.get("hypervisor") is not True and named is None:
        return
    below = f"of {named}" if named else "of a hypervisor that doesn't say its name"
    if run.run.accelerator == "kvm":
        yield (
            f"The host is a virtual machine itself, {below}, so the guests are nested: the "
            "hypervisor below handles their exits, too, and an exit costs more than on a bare "
            "host. What a tuning gains here by fewer exits it need not gain there."
        )
    else:
        yield (
            f"The host is a virtual machine itself, {below}: its CPUs may be shared with others "
            "that nothing here can see, natively as in the guest."
        )


_BEFORE = (
    "Files and threads were proven in part: the labctl that made this run took native hashes from "
    "the image's build, hashed no libraries, and read threads back once per restore. A changed "
    "file, or a policy that was changed during a trial, would have gone unnoticed."
)


def unproven(run: LoadedRun) -> Iterator[str]:
    """Yield what is unproven of a run that measured something, labctl's own or not; nothing where
    all was proven."""
    if run.run.hashed:
        yield from run.run.hashed.unproven
    elif run.run.binaries:
        yield _BEFORE


def collecting_caveats(run: LoadedRun, cells: Cells) -> Iterator[str]:
    """Warn where collectors ran inside the measured windows, and name windows in which they did
    not."""
    if run.plan.is_lost or level_of(run) == LEAST:
        return
    yield costs_said(run)
    for missing in cells.missing:
        if missing.metric == _ALWAYS_TRACED:
            trials = counted(missing.trials, "trial")
            yield (
                f"Of {trials} there is no trace of the host, and what tracing disturbs may not be "
                f"in their numbers: {missing.reason}"
            )
    full = sum(
        missing.trials
        for missing in cells.missing
        if missing.metric == _ALWAYS_TRACED_INSIDE and SIZE_LIMIT in missing.reason
    )
    if full:
        yield (
            f"In {counted(full, 'trial')} the guest's own recording met its {SIZE_LIMIT} before "
            "the measured window ended: of what it would tell there are no figures. Shorter "
            "windows fit."
        )


def kept_awake(run: LoadedRun, cells: Cells) -> Iterator[str]:
    """Warn where another process limited the sleep of the host's CPUs (METHOD 9)."""
    tunings = run.run.tunings
    found: list[float] = []
    tried = 0
    for cell, blocks in cells.tried.items():
        tuning = tunings.get(cell.tuning)
        if not (tuning and {LATENCY_KNOB, "tuned"} & tuning.host.keys()):
            tried += len(blocks)
            limits = cells.at(cell.tuning, cell.place).get(LATENCY_LIMIT)
            found += limits.values.values() if limits else ()
    if found:
        least = quantity(min(found), Unit.SECONDS)
        yield (
            f"In {len(found)} of {tried} trials a program other than labctl had idle CPUs of the "
            f"host wake up within a limit ({least} at the least): waking up cost less there than "
            "by the host's own settings."
        )


def closed_loop(run: LoadedRun, design: Design, cells: Cells) -> Iterator[str]:
    """Yield a sentence for each workload whose program tells of every period, and is judged
    otherwise: plans made before the open-loop latencies were, or by choice."""
    for name, primary in design.primaries.items():
        program = run.plan.workloads[name].program
        if program not in SKIP_PERIODS or not primary.metric.startswith(CLOSED):
            continue
        there = any(
            key.startswith(OPEN)
            for cell, by_key in cells.series.items()
            if cell.place.workload == name
            for key in by_key
        )
        remedy = (
            "The open-loop latencies beside it put these periods back; they get no verdict, as the "
            "plan names another primary metric."
            if there
            else f"'labctl run reparse {run.name}' adds open-loop latencies, which put these "
            "periods back."
        )
        yield (
            f"What is said of '{name}' by its {metric_title(primary.metric)} can't be trusted: "
            f"{program} skips the periods that a stall hides (coordinated omission), so a stall of "
            f"any length is one late wake-up. {remedy}"
        )
