"""Fleets made up from known effects: folders as a fleet sweep leaves them, of synthetic runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labctl.store.archive import pack
from labctl.store.run_places import find_run
from tests.unit.synthetic import EFFECTS, TUNINGS, synthetic_run, write_run

GOLDEN = Path(__file__).parents[2] / "golden" / "domain"
STUDY_DIGEST = "0" * 64
FACTS: Mapping[str, Any] = {
    "cpu_model": "AMD EPYC 7763",
    "kernel_release": "6.12.0",
    "microcode": "0xa0011d1",
    "topology": {"packages": 1, "cores": 8, "threads": 16},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeHost:
    """Describe a host. `speed`: of all its arms, against others'. `effects`: on top of those of the
    fleet. `options`: further fields of `synthetic.Shape`."""

    name: str
    speed: float = 1.0
    effects: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    status: str = "done"
    reason: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    started: str = "2024-01-01T00:00:00+00:00"


def hosts(count: int, **options: Any) -> list[MadeHost]:
    """Return hosts alike, h1 to hN; `options`: fields of each."""
    return [MadeHost(name=f"h{number}", **options) for number in range(1, count + 1)]


def make_fleet(folder: Path, members: Sequence[MadeHost], **shape: Any) -> Path:
    """Write a fleet's folder. `shape`: fields of `synthetic.Shape` that all hosts have."""
    folder.mkdir(parents=True)
    content = {
        "schema": 1,
        "study": "pinning",
        "study_digest": STUDY_DIGEST,
        "seed": 1,
        "labctl": "0.1.0",
        "started": "2024-01-01T00:00:00+00:00",
        "command": ["labctl", "fleet", "sweep", "pinning"],
        "inventory": ["/hosts.yml"],
        "serial": "1,100%",
        "batches": [[members[0].name], [member.name for member in members[1:]]],
    }
    (folder / "fleet.json").write_text(json.dumps(content))
    for number, member in enumerate(members, 1):
        add_host(folder, member, number, **shape)
    return folder


def add_host(folder: Path, member: MadeHost, number: int, **shape: Any) -> None:
    place = folder / "hosts" / member.name
    place.mkdir(parents=True)
    state = {"schema": 1, "status": member.status, "reason": member.reason, "batch": 1}
    if member.status == "done":
        run = f"2024-01-01T0000{number % 60:02d}-pinning"
        state |= {"run": run, "digest": f"{member.name}-{number}"}
        write_archive(place / "run.tar.xz", member, number, **shape)
    (place / "state.json").write_text(json.dumps(state))


def write_archive(target: Path, member: MadeHost, number: int, **shape: Any) -> None:
    options: dict[str, Any] = {
        "blocks": 10,
        "boots": 5,
        "primary_only": True,
        "tunings": ("native", "baseline", "control", "handicap", "pinned"),
        "seed": 100 + number if member.seed is None else member.seed,
        **shape,
        **member.options,
    }
    effects = {**EFFECTS, **options.pop("effects", {})}
    options["effects"] = {
        name: member.speed * float(effects.get(name, 1.0)) * member.effects.get(name, 1.0)
        for name in TUNINGS
    }
    run = synthetic_run(**options)
    facts = {**FACTS, **member.facts}
    made = write_run(
        target.parent / "unpacked",
        # A synthetic run's own facts name no topology and no microcode.
        type(run)(
            run.name, run.run.but(host=facts, started_at=member.started), run.plan, run.trials, ()
        ),
    )
    files = {
        str(path.relative_to(made.path)): path for path in made.path.rglob("*") if path.is_file()
    }
    with open(target, "wb") as file:
        pack(files, file, "2024-01-01T000000-pinning")
    made.remove()


def with_rollout(
    fleet: Path,
    host: str,
    *,
    cpu: str = "1",
    golden: str = "pinned",
    settings: Mapping[str, Any] | None = None,
    run: Mapping[str, Any] | None = None,
    plan: Mapping[str, Any] | None = None,
) -> None:
    """Pack a host's run anew with what a rollout reads: domain XML as labctl renders it, in which
    'pinned' is as `golden`, with vCPU 0 on `cpu`, and what the tuning sets. `run`, `plan`: keys to
    change."""
    archive = fleet / "hosts" / host / "run.tar.xz"
    with find_run(archive.parent, str(archive)).unpacked() as unpacked:
        for name, source in (("baseline", "baseline"), ("pinned", golden)):
            text = (GOLDEN / f"{source}.kvm.xml").read_text()
            (unpacked.path / "xml" / f"{name}.xml").write_text(
                text.replace('cpuset="1"', f'cpuset="{cpu}"')
            )
        recorded = {"risks": ["the neighbour waits"], **(settings or {})}
        changes = {"vcpus": 2, "tunings": {"baseline": {}, "pinned": recorded}, **(run or {})}
        _change(unpacked.path / "run.json", changes)
        _change(unpacked.path / "plan.json", plan or {})
        files = {
            str(path.relative_to(unpacked.path)): path
            for path in unpacked.path.rglob("*")
            if path.is_file()
        }
        with open(archive, "wb") as file:
            pack(files, file, "2024-01-01T000000-pinning")


def _change(path: Path, changes: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(changes)))
