"""Open a lab for a plan, record what its host is, and carry the trials out there."""

from __future__ import annotations

from labctl.base.events import Listener, Note, Warned
from labctl.collect.collector import Here
from labctl.run.commands.host_record import (
    check_same_accelerator,
    check_same_host,
    facts_of_host,
    put_narrow_link,
    put_qemu_user,
    store_xml,
)
from labctl.run.commands.sweep_checks import shortcomings
from labctl.run.guests.guest_base import guest_base
from labctl.run.guests.lab_opening import open_lab
from labctl.run.planning.planned import Planned, SweepRequest
from labctl.run.trials.engine import WhyEnd
from labctl.run.trials.execution import carry_out
from labctl.store.run_folder import RunLog


def measure(
    request: SweepRequest,
    planned: Planned,
    log: RunLog,
    listener: Listener,
    why_end: WhyEnd,
) -> None:
    """Carry out what is left of a plan. `log`: of run.json, checked against this host where the
    run has begun before. Raises UsageError where the host or what guests run under is another."""
    places = request.places
    base = guest_base(planned, places, request.accel, listener)
    chosen = base.accelerator
    check_same_accelerator(log, chosen)
    listener(Note(text=chosen.reason))
    for warning in shortcomings(
        planned, log.folder, Here(accelerator=chosen.name, tree=base.image.tree)
    ):
        listener(Warned(text=warning))
    with open_lab(
        places,
        planned,
        base,
        connect=request.connect,
        listener=listener,
    ) as lab:
        facts = facts_of_host(lab, chosen, planned.own)
        check_same_host(log.folder.name, log.record, facts)
        if planned.added is not None:
            log.folder.write_extension(planned.added.to_json())
        put_qemu_user(log, lab.qemu_user.to_json() if lab.qemu_user else None)
        log.put(**facts.to_json())
        put_narrow_link(log, lab.link.narrow if lab.link else None)
        log.write()
        disks = lab.source.disks(lab, planned.tunings[planned.plan.roles.baseline])
        log.put(xml=store_xml(lab, log.folder, disks))
        carry_out(
            lab,
            log,
            planned.plan,
            disks,
            fresh_boots=request.fresh_boots,
            wait_quiet_s=request.wait_quiet_s,
            why_end=why_end,
        )
