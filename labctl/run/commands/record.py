"""Keep run.json: what a run is, where it runs and how it ended."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import labctl
from labctl.base.errors import UsageError
from labctl.base.paths import lab, shipped_data
from labctl.base.signals import cleaning_up
from labctl.base.stopping import Looks, Stopping, UntilWidth
from labctl.base.tuning import Strategy
from labctl.domain.pinning.pin_picture import layout_json, picture
from labctl.domain.session import EMBEDDED, is_embedded
from labctl.run.planning.planner import Planned, SweepRequest
from labctl.run.resources.disks import DATA_SIZE_BYTES
from labctl.store.run_folder import RunFolder
from labctl.study.plan import Plan
from labctl.study.tuning_digest import tuning_json


@contextmanager
def recorded(
    folder: RunFolder, request: SweepRequest, planned: Planned
) -> Iterator[dict[str, Any]]:
    """Keep run.json true: write the dictionary now and when the run ends.

    A finished run that could not be extended is what it was before."""
    before = folder.read_run() if request.earlier else {}
    record = dict(before) if request.earlier else _first_record(request, planned)
    record.pop("failure", None)
    if request.extend:
        said = {"at": _now(), "command": shlex.join(command(request, planned.plan))}
        record["extended"] = [*record.get("extended", []), said]
    record["status"] = "running"
    record["ended_at"] = None
    folder.write_run(record)
    try:
        yield record
        record["status"] = "done"
    except KeyboardInterrupt as stopped:
        record["status"] = "interrupted"
        if _has_begun(folder, planned):
            stopped.add_note(f"Go on with: labctl sweep --resume {shlex.quote(str(folder.path))}")
        raise
    except BaseException as error:
        record["status"] = "failed"
        record["failure"] = str(error)
        raise
    finally:
        record["ended_at"] = _now()
        with cleaning_up():
            folder.write_run(record if _has_begun(folder, planned) else before)


def _has_begun(folder: RunFolder, planned: Planned) -> bool:
    """Return whether there is anything new to record."""
    return planned.added is None or planned.added.to_json() in folder.read_extensions()


def finished(folder: RunFolder) -> None:
    """Say of a run that has all its trials that it is done: it may have been killed before."""
    record = folder.read_run()
    if record["status"] != "done":
        folder.write_run({**record, "status": "done"})


def _first_record(request: SweepRequest, planned: Planned) -> dict[str, Any]:
    plan = planned.plan
    return {
        "labctl": labctl.__version__,
        "started_at": _now(),
        "command": shlex.join(command(request, plan)),
        "study": plan.study,
        "title": plan.title,
        "seed": plan.seed,
        # Now, for a run that is interrupted before libvirt is opened.
        **({"connection": request.connect} if request.connect else {}),
        "quick": plan.quick,
        "collect": str(plan.collect),
        "vcpus": plan.guest.vcpus,
        "memory_mib": plan.guest.memory_mib,
        "data_disk_bytes": DATA_SIZE_BYTES,
        "skipped": dict(plan.skipped),
        "warnings": list(planned.warnings),
        "notes": [],
        # Here, and not when it is over: it must be known of an interrupted run as well.
        "verifies": request.verifies,
        "domain": planned.own and planned.own.to_json(),
        "kernel": planned.recipe.kernel and planned.recipe.kernel.to_json(),
        "tunings": {name: tuning_json(tuning) for name, tuning in planned.tunings.items()},
        "pin_plan": _pin_plan(planned, Strategy.COMPACT),
        "pin_plans": {
            str(strategy): _pin_plan(planned, strategy)
            for strategy in planned.pin_plans
            if strategy is not Strategy.COMPACT
        },
    }


def _pin_plan(planned: Planned, strategy: Strategy) -> dict[str, Any]:
    pins = planned.pin_plans[strategy]
    return {
        "picture": picture(pins, planned.topology),
        "reasons": [*pins.reasons, *pins.shares],
        "data": pins.to_json(),
        "layout": layout_json(pins, planned.topology),
    }


def check_same_host(folder: RunFolder, record: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise UsageError when a resumed run would mix two hosts: nothing that it says of "the host"
    would be true then. A new run has nothing to differ from."""
    if "host" not in record:
        return
    differing = [
        f"{name} ({before} then, {after} now)"
        for name, before, after in (
            ("the kernel", *(facts["host"].get("kernel_release") for facts in (record, now))),
            ("QEMU", *(facts["host"].get("qemu") for facts in (record, now))),
            ("the CPU", *(facts["host"].get("cpu_model") for facts in (record, now))),
            (
                "the image",
                *(facts.get("image", {}).get("digest", "")[:12] for facts in (record, now)),
            ),
            ("the domain", *(_domain_digest(facts) for facts in (record, now))),
            ("libvirt", *(_connection(facts) for facts in (record, now))),
        )
        if before != after
    ]
    if differing:
        raise UsageError(
            f"run '{folder.name}' was begun on another host than this one is now: "
            f"{'; '.join(differing)}",
            hint="Start a new run, or go back to what the run began with.",
        )


def with_qemu_user(record: dict[str, Any], now: Mapping[str, Any] | None) -> None:
    """Put into the record whom QEMU runs as, and where earlier boots were another's, that too.
    Without `now` a daemon's configuration says it."""
    if now is None:
        return
    has_begun = "host" in record
    # What does not say it was made when that was always root.
    before = record.get("qemu_user", {}).get("name", "root")
    if has_begun and before != now["name"]:
        text = f"Boots before {_now()} had QEMU run as {before}, those after it as {now['name']}."
        record.setdefault("notes", []).append(text)
    record["qemu_user"] = now


def _domain_digest(facts: Mapping[str, Any]) -> str | None:
    domain = facts.get("domain")
    return domain and str(domain["digest"])[:12]


def _connection(facts: Mapping[str, Any]) -> str:
    """Name the connection without the state folder, which may be moved; a daemon is another
    libvirt.
    """
    uri = str(facts.get("connection") or EMBEDDED)
    return EMBEDDED if is_embedded(uri) else uri


def command(request: SweepRequest, plan: Plan) -> list[str]:
    """Return the command as it was given; for a new run with the seed, so that it repeats the
    plan.
    """
    if request.resume:
        return ["labctl", "sweep", "--resume", request.resume]
    if request.extend:
        more = str(request.overrides.blocks)
        return ["labctl", "sweep", "--extend", request.extend, "--blocks", more]
    words = ["labctl", *_lab_words(), "sweep", request.study, "--seed", str(plan.seed)]
    if plan.quick:
        words.append("--quick")
    options = {
        "--blocks": request.overrides.blocks,
        **_rule(request.overrides.stopping),
        "--blocks-per-boot": request.overrides.blocks_per_boot,
        "--spare-blocks": request.overrides.spare_blocks,
        "--vcpus": request.overrides.vcpus,
        "--memory": request.overrides.memory_mib,
        "--duration": request.overrides.duration_s,
        "--collect": request.overrides.collect,
        "--kernel": request.kernel,
        "--initrd": request.initrd,
    }
    for option, value in options.items():
        if value is not None:
            words += [option, str(value)]
    for option, names in (
        ("--tuning", request.overrides.tunings),
        ("--workload", request.overrides.workloads),
        ("--condition", request.overrides.conditions),
    ):
        for name in names or ():
            words += [option, name]
    if request.accel != "auto":
        words += ["--accel", request.accel]
    if request.connect:
        words += ["--connect", request.connect]
    if request.domain:
        words += ["--domain", request.domain]
    if request.keep_network:
        words.append("--keep-network")
    if request.fresh_boots:
        words.append("--fresh-boots")
    return words


def _lab_words() -> list[str]:
    """Return the lab folder, which the study and its tunings may come from: none where it is that
    of labctl's own code, which every labctl has."""
    folder = lab().folder
    return [] if folder in (None, shipped_data()) else ["--lab", str(folder)]


def _rule(stopping: Stopping | None) -> dict[str, str]:
    match stopping:
        case UntilWidth(width=width, most_blocks=most):
            return {"--until-width": f"{100 * width:g}%", "--max-blocks": str(most)}
        case Looks(at=at):
            return {"--looks": ",".join(map(str, at))}
        case _:
            return {}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
