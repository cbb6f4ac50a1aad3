"""Carry out the trials of a plan in an open lab, and keep the run's record of how it went."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict

from labctl.base.events import Listener, Note
from labctl.run.collectors.calibrate import Calibrations
from labctl.run.guests.boots import Boots
from labctl.run.guests.lab import Lab
from labctl.run.planning.reached import done, reached
from labctl.run.resources.disks import Disks
from labctl.run.trials.attempt import Attempts
from labctl.run.trials.engine import Engine, WhyEnd
from labctl.run.trials.neighbour_rooms import NeighbourRooms
from labctl.run.trials.post_boot import PostBootSetup
from labctl.run.trials.proof import Proof, of_older_trials
from labctl.run.trials.quiet import Quiet
from labctl.store.earlier_runs import recall
from labctl.store.run_folder import RunLog
from labctl.study.plan import Plan


def carry_out(
    lab: Lab,
    log: RunLog,
    plan: Plan,
    disks: Disks,
    *,
    fresh_boots: bool,
    wait_quiet_s: float,
    why_end: WhyEnd,
) -> None:
    """Prove the programs, boot, and run every trial that is left. `disks`: what boots start from;
    `log`: of run.json, which is written when the boots are ready and by the caller at the end.
    """
    baseline = lab.tunings[plan.roles.baseline]
    folder, earlier = log.folder, log.record.hashed
    proof = Proof(lab, plan, earlier)
    proof.check_tree()
    if earlier is None and (before := done(folder, plan)):
        log.put(warnings=[*log.record.warnings, of_older_trials(len(before))])
    log.put(hashed=proof.to_json())
    calibrations = Calibrations(lab, plan.workloads)
    calibrations.count_natively()
    post_boot = PostBootSetup(lab, plan, calibrations, proof)
    so_far = reached(plan, folder)
    if log.record.fresh_boots is not None:
        fresh_boots = log.record.fresh_boots
    boots = Boots(
        lab,
        disks,
        baseline,
        post_boot.set_up,
        boots_before=so_far.last_boot,
        # Else one boot alone is saved, for what it tells of the guest.
        to_come=() if fresh_boots else so_far.boots,
    )
    with ExitStack() as stack:
        stack.callback(boots.drop)
        boots.saved(so_far.boots[0])
        log.put(
            **post_boot.facts(log.record.host),
            hashed=proof.to_json(),
            calibration=calibrations.summary(),
            fresh_boots=fresh_boots,
            restored_state=not fresh_boots,
        )
        recall(lab.places, plan.record(), str(plan.collect), log)
        log.write()
        only_boot = so_far.boots[0] if fresh_boots else None
        rooms = NeighbourRooms(lab, boots, plan, only_boot=only_boot)
        engine = Engine(
            lab,
            folder,
            plan,
            boots,
            Attempts(lab, folder, plan, calibrations, rooms),
            proof,
            fresh_boots=fresh_boots,
            why_end=why_end,
            quiet=Quiet(plan.limits.other_cpu, wait_quiet_s, lab.listener),
        )
        began = time.monotonic()
        try:
            engine.run()
        finally:
            _say_who_took_it(engine.quiet, time.monotonic() - began, lab.listener, log)
            if engine.ended:
                log.put(stopped=asdict(engine.ended))
            seconds = {str(number): taken for number, taken in boots.seconds.items()}
            log.put(
                trials=engine.counts(),
                hashed=proof.to_json(),
                boot_seconds=log.record.boot_seconds | seconds,
            )


def _say_who_took_it(quiet: Quiet, run_s: float, listener: Listener, log: RunLog) -> None:
    """Say what others cost the run, and put it into its record."""
    if text := quiet.summary(run_s):
        listener(Note(text=text))
        log.put(waited_for_quiet_s=(log.record.waited_for_quiet_s or 0.0) + quiet.waited_s)
