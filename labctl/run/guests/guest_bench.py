"""Provide a guest with a tuning in force as a machine for trials."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from labctl.base.deadline import Deadline
from labctl.base.tuning import Kind, Tuning
from labctl.domain import readback
from labctl.domain.asked import ExpectedThread, mismatches, sliced
from labctl.domain.memory import memory_problems
from labctl.domain.render import guest_data_paths
from labctl.host.cgroups import placement, placement_problems
from labctl.run.guests import guest_nic, guest_side
from labctl.run.guests.bench import Bench
from labctl.run.guests.boots import Boots, PausedGuest
from labctl.run.guests.host_side import host_changed, with_cpus_of_now
from labctl.run.guests.lab import Lab
from labctl.run.guests.threads import guest_threads, set_slices
from labctl.run.resources.huge_pages import pages_of

_HANDICAP_PERIOD_S = 1.0


@contextmanager
def guest_bench(lab: Lab, boots: Boots, boot: int, tuning: Tuning, fresh: bool) -> Iterator[Bench]:
    """Provide a guest with the tuning in force: restored from boot `boot`, or booted for itself."""
    restored = tuning.restore and not fresh
    with ExitStack() as stack:
        if restored:
            # On the host as it is: every other tuning is restored from this boot as well.
            boots.saved(boot)
        on_host = stack.enter_context(host_changed(lab, tuning))
        lab = with_cpus_of_now(lab, tuning)
        paused: PausedGuest = stack.enter_context(
            boots.restored(boot, tuning) if restored else boots.booted(tuning)
        )
        running = paused.running
        pid = running.pid
        vcpus = running.vcpu_threads()
        iothreads = running.iothread_threads()
        live = running.live_xml()
        slice_ns = tuning.vcpu_slice_ns
        expected = sliced(lab.source.expected_threads(lab, tuning, paused.asked_xml), slice_ns)
        set_slices(vcpus.values(), slice_ns)

        misplaced = partial(_misplaced_threads, expected, pid, vcpus, iothreads)
        problems = [*misplaced(), *_guest_problems(lab, pid, paused.asked_xml, live)]
        channel = stack.enter_context(paused.answering())
        if not restored:
            boots.set_up(channel, tuning)
        data_paths = guest_data_paths(tuning.disk, lab.data.count)
        inside = guest_side.set_up(channel, tuning.guest, data_paths)
        card = guest_nic.look(lab, channel, tuning.network)
        first_clock = channel.wait_ready(Deadline.after(10, "the guest's clock"))
        stack.enter_context(handicapped(pid, tuning.handicap_percent))

        def counters() -> dict[str, Any]:
            if lab.accelerator.name != "kvm":
                return {}
            return {
                "query_stats": [
                    running.qmp("query-stats", target=target) for target in ("vcpu", "vm")
                ]
            }

        trial_cpus = frozenset(cpu for thread in expected for cpu in thread.cpus)
        yield Bench(
            tuning=tuning,
            kind=Kind.GUEST,
            channel=channel,
            data_paths=data_paths,
            trial_cpus=trial_cpus,
            siblings=lab.topology.siblings(trial_cpus),
            threads=partial(guest_threads, pid, vcpus, iothreads),
            counters=counters,
            first_clock=first_clock,
            vcpu_tids=tuple(vcpus.values()),
            waits_for_faults=lab.accelerator.name == "kvm",
            peer=lab.link.guest.peer if lab.link else None,
            asked=tuple(expected),
            misplaced=misplaced,
            host_problems=on_host.problems,
            problems=(*problems, *inside.problems, *card.problems),
            evidence={
                "live.xml": live,
                "placement.json": placement(pid),
                **on_host.evidence,
                **inside.evidence,
                **card.evidence,
            },
            boot=paused.boot,
            restored=restored,
        )


@contextmanager
def handicapped(pid: int, percent: float) -> Iterator[None]:
    """Stop the process for `percent` of each second while inside; nothing for 0 (METHOD rule 5).

    In one piece, because the host scheduler makes short gaps good again: after a pause the vCPU
    thread is owed time and preempts its neighbours, for up to about one scheduling slice (3 ms).
    Of a whole second, so that a trial of whole seconds loses exactly its share wherever the
    seconds fall.
    """
    if percent <= 0:
        yield
        return
    over = threading.Event()
    stopped_s = _HANDICAP_PERIOD_S * percent / 100

    def stop_and_go() -> None:
        while not over.wait(_HANDICAP_PERIOD_S - stopped_s):
            if not _signal(pid, signal.SIGSTOP):
                return
            over.wait(stopped_s)
            _signal(pid, signal.SIGCONT)

    thread = threading.Thread(target=stop_and_go, name="handicap", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _signal(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _misplaced_threads(
    expected: Sequence[ExpectedThread],
    pid: int,
    vcpus: Mapping[int, int],
    iothreads: Mapping[int, int],
) -> list[str]:
    """Return a sentence for each of QEMU's threads that is not what is expected of it now."""
    return mismatches(expected, readback.read_threads(pid, vcpus, iothreads))


def _guest_problems(lab: Lab, pid: int, asked_xml: str, live_xml: str) -> list[str]:
    """Return what of a guest's XML, memory and cgroup is not what was asked."""
    return [
        *readback.live_mismatches(asked_xml, live_xml, is_whole=lab.source.says_everything),
        *memory_problems(pages_of(asked_xml), pid),
        *placement_problems(lab.layout, placement(pid)),
    ]
