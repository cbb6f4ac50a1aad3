"""Show a fleet's advice on a terminal: the answer, its cost, other hosts, the steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from rich.console import Console, RenderableType
from rich.text import Text

from labctl.analysis.answer.view import View
from labctl.analysis.answer.words import few
from labctl.analysis.hosts.fleet import ALL_HOSTS, FleetJudgement, Take
from labctl.analysis.hosts.judge import TakenBy, WorsePlace, hosts_that_may, look_first, price
from labctl.analysis.judge import judge
from labctl.base.errors import LabctlError, UsageError
from labctl.base.notation import share
from labctl.base.wording import counted
from labctl.fleet.fleet_folder import FleetFolder
from labctl.fleet.table import check_study, exploratory
from labctl.report.export.json_report import group_answer_json, pooled_json
from labctl.report.fleet_words import mean_shown, place_title, prediction_text
from labctl.report.parts import bare_table, marked, small, text
from labctl.report.terminal.fleet_table import answer_lines
from labctl.rollout.advice import check_name
from labctl.rollout.cost import cost
from labctl.rollout.files import UNNAMED, Names, rollout_json
from labctl.rollout.rollout_steps import RolloutSteps, rollout_steps
from labctl.rollout.text import print_rollout
from labctl.store.run_folder import LoadedRun, RunFolder

# Advise a fleet: which hosts take which tuning, its cost, and the steps.
#
# The fleet's answer (`analysis/hosts/judge.py`) says which hosts may take it. The steps are in each
# host's own run, whose trials are not read again. Hosts with equal steps share one list.


@dataclass(frozen=True, slots=True)
class HostSteps:
    """Hold the requirements of a roll-out on a host. `takes`: CPUs and memory, in sentences;
    `risks`: None if the run has none recorded."""

    rollout: RolloutSteps
    takes: tuple[str, ...]
    risks: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAdvice:
    """Advise to roll a tuning out. `worse`: regressions over the hosts that take it; `look_first`:
    hosts to check before, with the reason; `rollouts`: steps with their hosts; `unread`: hosts
    whose run cannot be read, with the reason."""

    taken: TakenBy
    worse: tuple[WorsePlace, ...]
    look_first: tuple[tuple[str, str], ...]
    rollouts: tuple[tuple[HostSteps, tuple[str, ...]], ...]
    unread: tuple[tuple[str, str], ...]

    @property
    def risks(self) -> tuple[str, ...]:
        """Return the risks that the hosts' runs have recorded, each once."""
        return tuple(dict.fromkeys(risk for of, _ in self.rollouts for risk in of.risks or ()))


def advise_fleet(
    fleet: FleetFolder,
    judged: FleetJudgement,
    tuning: str,
    tell: Callable[[str], None] = lambda host: None,
) -> FleetAdvice:
    """Return the roll-out of a tuning on the hosts that may take it; `tell` gets each of them
    before its run is read.

    Raises UsageError if the fleet's name of the tuning is impossible, BrokenError if its tables
    cannot be read. A host whose run cannot be read is named.
    """
    check_name(fleet.name, tuning)
    taken = hosts_that_may(judged, tuning)
    alike: dict[HostSteps, list[str]] = {}
    unread = []
    for host in taken.hosts:
        tell(host)
        try:
            alike.setdefault(_steps(fleet, host, tuning), []).append(host)
        except LabctlError as error:
            unread.append((host, error.message))
    by_size = sorted(alike.items(), key=lambda pair: -len(pair[1]))
    return FleetAdvice(
        taken=taken,
        worse=price(judged, tuning, exploratory(fleet, tuning, taken.hosts)),
        look_first=look_first(judged, taken),
        rollouts=tuple((steps, tuple(hosts)) for steps, hosts in by_size),
        unread=tuple(unread),
    )


def _steps(fleet: FleetFolder, host: str, tuning: str) -> HostSteps:
    folder = fleet.run(host)
    with folder.unpacked("xml") as unpacked:
        # An archive's name is its file's; the state has the run's own.
        run = replace(_without_trials(folder), name=fleet.state(host).run or folder.name)
        check_study(fleet, run.plan)
        view = View(run, judge(run))
        steps = rollout_steps(view, tuning, unpacked.path)
        if steps.refused:
            raise UsageError(f"must not be applied there: {steps.why_refused}")
        found = cost(view, tuning, steps.xml, view.run.run.memory_mib)
        return HostSteps(steps, found.takes, found.risks)


def _without_trials(folder: RunFolder) -> LoadedRun:
    """Return a run's record of its host and its tunings: the fleet has its effects."""
    return LoadedRun(folder.name, folder.read_run(), folder.read_plan(), (), ())


# Write a fleet's advice for programs. docs/fleet.md documents its keys.


SCHEMA = 1
"""Version of the format: raised when a key is removed or changes its meaning; not for new keys."""


def fleet_advice_json(
    judged: FleetJudgement,
    tuning: str | None,
    advised: tuple[str, ...],
    headline: str,
    advice: FleetAdvice | None,
    next_command: str | None,
) -> dict[str, object]:
    """Return plain JSON values. `tuning`: the requested one or the first advised; `advice`: None if
    no host may take it."""
    answers = [of for of in judged.answers if tuning in (None, of.tuning)]
    return {
        "schema": SCHEMA,
        "headline": headline,
        "tuning": tuning,
        "advised": list(advised),
        "answers": [group_answer_json(answer) for answer in answers],
        "warnings": list(judged.warnings),
        "planned": judged.hosts,
        **_advice(advice),
        "next": next_command,
    }


def _advice(advice: FleetAdvice | None) -> dict[str, object]:
    if advice is None:
        empty = ("hosts", "others", "worse", "risks", "look_first", "rollouts", "unread")
        return {"accelerator": "", **{key: [] for key in empty}}
    taken = advice.taken
    return {
        "accelerator": taken.accelerator,
        "hosts": list(taken.hosts),
        "others": _named(taken.others),
        "worse": [_worse(one) for one in advice.worse],
        "risks": list(advice.risks),
        "look_first": _named(advice.look_first),
        "rollouts": [
            {
                "hosts": list(hosts),
                "takes": list(steps.takes),
                "risks": None if steps.risks is None else list(steps.risks),
                **rollout_json(steps.rollout, Names()),
            }
            for steps, hosts in advice.rollouts
        ],
        "unread": _named(advice.unread),
    }


def _worse(one: WorsePlace) -> dict[str, object]:
    return {
        **asdict(one.place),
        "group": one.group,
        "judged": one.judged,
        **pooled_json(one.place, one.pooled),
    }


def _named(rows: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
    return [{"host": host, "why": why} for host, why in rows]


_MOST_REASONS = 40
"""Maximum rows of a table: hosts with the same reason share one. JSON has all."""
_MOST_NAMES = 5
"""Maximum names of hosts with the same reason, or with the same steps."""
_MOST_STEPS = 3
"""Maximum lists of steps that are shown; JSON has all."""


def print_fleet_advice(
    console: Console, judged: FleetJudgement, advice: FleetAdvice, next_command: str | None
) -> None:
    """Print the tuning to roll out and its hosts; `next_command`: the command that does it, if
    there is one."""
    taken = advice.taken
    console.print(text(headline(judged, advice), style="bold"))
    for part in (
        *_answers(judged, [taken.tuning]),
        *marked("Note", judged.warnings),
        *_price(judged, advice),
        *_table("Check first", advice.look_first),
        *_table("Hosts left out", taken.others),
        *_table("Hosts with unknown steps", advice.unread),
    ):
        console.print(part)
    if any(steps.rollout.fragment for steps, _ in advice.rollouts):
        console.print(text(f"\nReplace {UNNAMED} with a virtual machine of the host."))
    for steps, hosts in advice.rollouts[:_MOST_STEPS]:
        _print_steps(console, taken.tuning, steps, hosts)
    if more := advice.rollouts[_MOST_STEPS:]:
        number = sum(len(hosts) for _, hosts in more)
        console.print(
            text(f"\n{len(more)} more lists of steps, for {counted(number, 'host')}: --json.")
        )
    if next_command is None:
        playbook = "with the playbook labctl.lab.rollout"
        console.print(text(f"\nRoll it out in batches, each measured again, {playbook}."))
        return
    console.print(text("\nRoll it out in batches, each measured again:"))
    console.print(Text("  ").append_text(text(next_command)), soft_wrap=True)


def print_nothing(console: Console, judged: FleetJudgement, tuning: str | None) -> None:
    """Print why a tuning is not advised; without one, why none is."""
    console.print(text(why_nothing(tuning), style="bold"))
    tunings = dict.fromkeys(answer.tuning for answer in judged.answers)
    for part in _answers(judged, tunings if tuning is None else [tuning]):
        console.print(part)
    for part in marked("Note", judged.warnings):
        console.print(part)


def why_nothing(tuning: str | None) -> str:
    """Return the first sentence if no host may take a tuning, or any."""
    if tuning is None:
        return "Roll out nothing: no host may take any of the tunings."
    return f"Do not roll out '{tuning}': no host may take it."


def headline(judged: FleetJudgement, advice: FleetAdvice) -> str:
    """Return the tuning to roll out and on how many hosts, and advice for a host that was not
    measured."""
    taken = advice.taken
    hosts = f"{len(taken.hosts)} of {counted(judged.hosts, 'host')}"
    lead = f"Roll out '{taken.tuning}' on {hosts}"
    for answer in judged.answers:
        if (answer.tuning, answer.code) != (taken.tuning, Take.TAKE):
            continue
        if answer.place is not None and answer.pooled is not None:
            others = "" if answer.group == ALL_HOSTS else f" with {answer.by} {answer.group}"
            where = place_title(answer.place, many_accelerators=len(judged.accelerators) > 1)
            return (
                f"{lead}: the prediction for a host{others} that was not measured is "
                f"{prediction_text(answer.place, answer.pooled)} in {where}."
            )
    return f"{lead}."


def _answers(judged: FleetJudgement, tunings: Iterable[str]) -> Iterator[RenderableType]:
    many = len(judged.accelerators) > 1
    for tuning in tunings:
        for answer in judged.answers:
            if answer.tuning == tuning:
                yield from answer_lines(answer, many)


def _price(judged: FleetJudgement, advice: FleetAdvice) -> Iterator[RenderableType]:
    many = len(judged.accelerators) > 1
    yield Text()
    yield text("Cost", style="bold")
    if advice.worse:
        table = bare_table()
        for column, width in (("where", 34), ("mean", 16), ("a host not measured", 14)):
            table.add_column(column, min_width=min(width, 12), max_width=width, overflow="fold")
        table.add_column("hosts")
        for one in advice.worse:
            title = place_title(one.place, many_accelerators=many)
            group = f", {one.group}" if one.group not in ("", ALL_HOSTS) else ""
            table.add_row(
                text(f"{title}{group}" + ("" if one.judged else " (no verdict)")),
                text(str(mean_shown(one.place, one.pooled))),
                text(prediction_text(one.place, one.pooled)),
                text(str(one.pooled.hosts)),
            )
        yield table
        yield small(
            "Worse means. 'no verdict': the study does not judge the metric, but its "
            f"{share(1 - judged.alpha)} CI excludes no change."
        )
    else:
        yield small("No metric is worse over these hosts.")
    yield from (small(f"Risk: {risk}.") for risk in advice.risks)


def _table(title: str, rows: Sequence[tuple[str, str]]) -> Iterator[RenderableType]:
    if not rows:
        return
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for host, why in rows:
        by_reason[why].append(host)
    table = bare_table(title)
    table.add_column("hosts", max_width=24, overflow="fold")
    table.add_column("why", overflow="fold")
    for why, hosts in list(by_reason.items())[:_MOST_REASONS]:
        table.add_row(text(", ".join(few(hosts, _MOST_NAMES))), text(why))
    yield Text()
    yield table
    if (more := len(by_reason) - _MOST_REASONS) > 0:
        yield small(f"{counted(more, 'more reason')}: --json has all.")


def _print_steps(console: Console, tuning: str, steps: HostSteps, hosts: Sequence[str]) -> None:
    console.print()
    names = ", ".join(few(hosts, _MOST_NAMES))
    console.print(text(f"Steps on {counted(len(hosts), 'host')}: {names}", style="bold"))
    for line in steps.takes:
        console.print(small(line))
    if steps.risks is None:
        console.print(small("Risks: not recorded."))
    print_rollout(console, tuning, steps.rollout, Names())
