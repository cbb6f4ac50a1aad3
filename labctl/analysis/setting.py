"""Say what a run's setting does to its numbers: emulation, two kernels, a host that is a guest."""

from __future__ import annotations

from collections.abc import Iterator

from labctl.analysis.cells import Cells
from labctl.analysis.design import Design
from labctl.analysis.words import sentence
from labctl.base import verified
from labctl.store.run_folder import LoadedRun

_TWO_KERNELS = (
    "host and guest run different kernels: the native-versus-guest ratio is a stack difference, "
    "not virtualization overhead"
)


def setting(run: LoadedRun, design: Design, cells: Cells) -> Iterator[str]:
    """Yield what the accelerator, the kernels and the host itself do to the run's numbers."""
    if run.run.is_emulated:
        yield "The guests ran under TCG: " + (
            "the native-versus-guest ratio shows emulation, not virtualization."
            if design.natives
            else "what a tuning does to an emulated guest, it need not do to one under KVM."
        )
    if design.natives and run.run.same_kernel is False:
        yield sentence(str(run.run.kernel_sentence or _TWO_KERNELS))
    if run.run.accelerator == "kvm" and (text := verified.kvm_caveat()):
        yield text
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
