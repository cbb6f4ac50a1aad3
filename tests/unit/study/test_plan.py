from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labctl.base.cpus import parse_cpus
from labctl.base.errors import BrokenError, HostError, UsageError
from labctl.base.tuning import Level, Pin, Requires, Tuning
from labctl.study.make_plan import extend, make_plan
from labctl.study.plan import MOST_TRIALS, Plan, changed_tunings
from labctl.study.study import Study
from tests.unit.example import EXAMPLE
from tests.unit.records import plan_from_file

MakeStudy = Callable[..., Study]
Tunings = dict[str, Tuning]


@pytest.fixture
def study(make_study: MakeStudy) -> Study:
    return make_study()


@pytest.fixture
def plan(study: Study, tunings: Tunings) -> Plan:
    return make_plan(study, tunings, seed=7, host_digest="host")


def text(plan: Plan) -> str:
    return json.dumps(plan.to_json())


def test_the_same_study_host_and_seed_give_the_same_plan_byte_for_byte(
    make_study: MakeStudy, tunings: Tunings
) -> None:
    reordered = dict(reversed(tunings.items()))
    one = make_plan(make_study(), tunings, seed=7, host_digest="host")
    two = make_plan(make_study(), reordered, seed=7, host_digest="host")
    assert text(one) == text(two)


def test_every_block_holds_every_cell_once(plan: Plan) -> None:
    cells = Counter((trial.block, *trial.cell.values()) for trial in plan.trials)
    assert len(cells) == 10 * 5 * 2 * 2
    assert set(cells.values()) == {1}


def test_trials_are_numbered_in_the_order_in_which_they_run(plan: Plan) -> None:
    assert [trial.number for trial in plan.trials] == list(range(1, len(plan.trials) + 1))
    places = [(trial.block, trial.position) for trial in plan.trials]
    assert places == sorted(places)


def test_all_trials_of_a_tuning_in_a_block_stand_together(plan: Plan) -> None:
    at: dict[tuple[int, int], set[str]] = defaultdict(set)
    for trial in plan.trials:
        at[trial.block, trial.position].add(trial.cell["tuning"])
    assert len(at) == 10 * 5
    assert all(len(names) == 1 for names in at.values())


def test_every_tuning_of_a_block_has_its_trials_in_the_same_order(plan: Plan) -> None:
    inside: dict[int, set[tuple[tuple[str, str], ...]]] = defaultdict(set)
    for block in range(1, 11):
        for position in range(1, 6):
            inside[block].add(
                tuple(
                    (trial.cell["workload"], trial.cell["condition"])
                    for trial in plan.trials
                    if (trial.block, trial.position) == (block, position)
                )
            )
    assert all(len(orders) == 1 for orders in inside.values())
    assert len({next(iter(orders)) for orders in inside.values()}) > 1


def test_blocks_share_a_boot_as_the_study_says(plan: Plan) -> None:
    boots = {trial.block: trial.boot for trial in plan.trials}
    assert [boots[block] for block in range(1, 11)] == [1, 1, 1, 1, 2, 2, 2, 2, 3, 3]
    assert plan.boots == 3


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(min_value=0, max_value=2**32), more=st.integers(min_value=0, max_value=12))
def test_extending_appends_and_changes_nothing_before(
    study: Study, tunings: Tunings, seed: int, more: int
) -> None:
    short = make_plan(study, tunings, seed=seed, host_digest="host")
    longer = extend(short, 10 + more)
    longer_study = replace(study, blocks=10 + more)
    at_once = make_plan(longer_study, tunings, seed=seed, host_digest="host")
    assert longer.trials[: len(short.trials)] == short.trials
    assert longer.trials == at_once.trials
    assert longer.blocks == 10 + more


def test_a_plan_says_what_is_collected_only_where_it_is_more_than_counters(
    study: Study, tunings: Tunings, plan: Plan
) -> None:
    traced = replace(study, collect=Level.TRACE)
    other = make_plan(traced, tunings, seed=7, host_digest="host")
    assert "collect" not in plan.to_json()
    assert other.to_json()["collect"] == "trace"
    assert plan_from_file(json.loads(text(other))) == other
    assert traced.digest != study.digest


def test_a_plan_says_what_loss_must_be_excluded_only_where_its_study_does(
    make_study: MakeStudy, tunings: Tunings, plan: Plan
) -> None:
    """Plans of older labctls hold no such key, and their digests must not change."""
    declaring = make_study("margin_percent: 5\n", "margin_percent: 5\n    no_worse_than: 50\n")
    other = make_plan(declaring, tunings, seed=7, host_digest="host")
    assert "no_worse_than" not in text(plan)
    assert other.to_json()["workloads"]["cpu"]["no_worse_than"] == 0.5
    assert "no_worse_than" not in other.to_json()["workloads"]["read"]
    assert plan_from_file(json.loads(text(other))) == other
    assert declaring.digest != make_study().digest


def test_a_recorded_plan_of_an_older_labctl_keeps_its_digest() -> None:
    recorded = json.loads((EXAMPLE / "plan.json").read_text())
    assert plan_from_file(recorded).digest == recorded["digest"]


def test_a_plan_cannot_be_cut(plan: Plan) -> None:
    with pytest.raises(UsageError, match="has 10 blocks and cannot be reduced to 9"):
        extend(plan, 9)


def test_a_plan_of_more_trials_than_the_limit_is_refused_by_its_number(plan: Plan) -> None:
    with pytest.raises(UsageError, match=rf"trials \(limit: {MOST_TRIALS}\)"):
        extend(plan, MOST_TRIALS)


def test_a_plan_survives_its_file(plan: Plan) -> None:
    again = plan_from_file(json.loads(text(plan)))
    assert again == plan
    assert text(again) == text(plan)
    assert extend(again, 12) == extend(plan, 12)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 8},
        {"host_digest": "other"},
        {"skipped": {"pinned": "one CPU"}},
        {"old": "max_prime: 2000", "new": "max_prime: 2001"},
        {"old": "blocks: 10", "new": "blocks: 11"},
        {"old": "margin_percent: 5", "new": "margin_percent: 6"},
        {"old": "attempts: 3", "new": "attempts: 4"},
        {"quick": True},
    ],
)
def test_the_digest_changes_with_any_change(
    make_study: MakeStudy, tunings: Tunings, plan: Plan, changes: dict[str, Any]
) -> None:
    keys = ("seed", "host_digest", "skipped")
    arguments: dict[str, Any] = {"seed": 7, "host_digest": "host"} | {
        k: v for k, v in changes.items() if k in keys
    }
    study = make_study(**{key: value for key, value in changes.items() if key not in keys})
    assert make_plan(study, tunings, **arguments).digest != plan.digest


def test_the_digest_changes_with_what_a_tuning_does(
    make_study: MakeStudy, tunings: Tunings, plan: Plan
) -> None:
    pinned = replace(tunings["pinned"], pin=Pin(vcpus={0: parse_cpus("1")}))
    other = make_plan(make_study(), tunings | {"pinned": pinned}, seed=7, host_digest="host")
    assert other.digest != plan.digest
    assert other.study_digest == plan.study_digest


def test_the_digest_does_not_change_with_where_the_files_lie(
    make_study: MakeStudy, tunings: Tunings, plan: Plan
) -> None:
    moved = {name: replace(item, sources=("elsewhere.yaml",)) for name, item in tunings.items()}
    assert make_plan(make_study(), moved, seed=7, host_digest="host").digest == plan.digest


def test_what_exercises_a_tuning_its_file_says_where_the_study_does_not(
    make_study: MakeStudy, tunings: Tunings, plan: Plan
) -> None:
    study = replace(make_study(), exercises={"handicap": ("cpu",)})
    says = {"exercised_by": ("fio-random", "oslat")}
    both = {name: replace(item, **says) for name, item in tunings.items()}
    made = make_plan(study, both, seed=7, host_digest="host")
    assert made.tunings["pinned"].exercised_by == ("read",)
    assert made.tunings["handicap"].exercised_by == ("cpu",)
    assert made.tunings["pinned"].digest == plan.tunings["pinned"].digest


def test_the_plan_holds_what_analysis_reads(plan: Plan) -> None:
    data = json.loads(text(plan))
    assert data["schema"] == 1
    assert data["factors"] == ["tuning", "workload", "condition"]
    assert (data["baseline"], data["control"], data["handicap"]) == (
        "baseline",
        "control",
        "handicap",
    )
    assert data["tunings"]["pinned"]["exercised_by"] == ["cpu", "read"]
    assert data["tunings"]["native"]["kind"] == "native"
    assert data["workloads"]["cpu"] == {
        "program": "sysbench-cpu",
        "parameters": {"max_prime": 2000},
        "duration_s": 10.0,
        "primary": "events_per_s",
        "margin": 0.05,
        "uses_data_disk": False,
    }
    assert data["tunings"]["pinned"]["durability"] == "writeback"
    assert data["tunings"]["native"]["durability"] is None
    assert data["conditions"] == ["quiet", "neighbour"]
    assert set(data["trials"][0]) == {"number", "block", "boot", "position", "cell"}
    assert set(data["trials"][0]["cell"]) == {"tuning", "workload", "condition"}


def test_a_plan_of_several_data_disks_says_so_and_others_say_nothing(
    make_study: MakeStudy, tunings: Tunings
) -> None:
    one = make_study()
    two = replace(one, guest=replace(one.guest, data_disks=2))
    assert two.digest != one.digest
    plans = [make_plan(study, tunings, seed=7, host_digest="host") for study in (one, two)]
    assert [plan.to_json()["guest"].get("data_disks") for plan in plans] == [None, 2]


def test_a_study_with_needs_of_its_own_has_another_digest(make_study: MakeStudy) -> None:
    study = make_study()
    assert replace(study, requires={"pinned": Requires(smt=True)}).digest != study.digest


def test_a_twin_that_is_not_in_the_plan_is_not_named(plan: Plan) -> None:
    assert plan.tunings["baseline"].twin == "native"
    assert plan.tunings["pinned"].twin is None


def test_a_tuning_that_the_host_cannot_have_is_left_out_with_its_reason(
    make_study: MakeStudy, tunings: Tunings
) -> None:
    skipped = {"pinned": "one CPU"}
    plan = make_plan(make_study(), tunings, seed=7, host_digest="host", skipped=skipped)
    assert plan.skipped == skipped
    assert "pinned" not in plan.tunings
    assert all(trial.cell["tuning"] != "pinned" for trial in plan.trials)


def test_a_role_that_the_host_cannot_have_stops_the_study(
    make_study: MakeStudy, tunings: Tunings
) -> None:
    with pytest.raises(HostError, match="its control 'control', but this host can't run it: why"):
        make_plan(make_study(), tunings, seed=7, host_digest="host", skipped={"control": "why"})


def test_a_control_that_differs_from_the_baseline_is_refused(
    make_study: MakeStudy, tunings: Tunings
) -> None:
    tunings["control"] = replace(tunings["control"], iothreads=1)
    with pytest.raises(UsageError, match="'control' differs from the baseline"):
        make_plan(make_study(), tunings, seed=7, host_digest="host")


def test_a_handicap_that_takes_nothing_away_is_refused(
    make_study: MakeStudy, tunings: Tunings
) -> None:
    tunings["handicap"] = replace(tunings["handicap"], handicap_percent=0.0)
    with pytest.raises(UsageError, match="to detect"):
        make_plan(make_study(), tunings, seed=7, host_digest="host")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("native: native", "native: pinned", "is a guest"),
        ("baseline: baseline", "baseline: native", "is not a guest"),
    ],
)
def test_a_role_of_the_wrong_kind_is_refused(
    make_study: MakeStudy, tunings: Tunings, old: str, new: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        make_plan(make_study(old, new), tunings, seed=7, host_digest="host")


def changed(plan: Plan, **changes: Any) -> dict[str, Any]:
    return {**json.loads(text(plan)), **changes}


def test_tunings_that_changed_since_the_plan_was_made_are_named(
    plan: Plan, tunings: Tunings
) -> None:
    assert changed_tunings(plan, tunings) == []
    tunings["pinned"] = replace(tunings["pinned"], iothreads=1)
    assert changed_tunings(plan, tunings) == ["pinned"]


def test_a_plan_that_was_edited_is_refused(plan: Plan) -> None:
    with pytest.raises(BrokenError, match="the plan was changed"):
        plan_from_file(changed(plan, seed=8))


def test_a_plan_with_one_trial_less_is_refused(plan: Plan) -> None:
    data = changed(plan)
    del data["trials"][-1]
    with pytest.raises(BrokenError, match="the plan was changed"):
        plan_from_file(data)


def test_a_plan_with_a_key_that_no_trial_has_is_refused(plan: Plan) -> None:
    """A record has no room for it there, so the digest alone would not show it."""
    data = changed(plan)
    data["trials"][0]["more"] = 1
    with pytest.raises(BrokenError, match="was changed after"):
        plan_from_file(data)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"trials": None}, "is no plan"),
        ({"tunings": []}, "is incomplete: 'tunings'"),
        ({"tunings": {"a": {"kind": "other"}}}, "can't be read: 'other' is not a valid Kind"),
        ({"guest": {}}, "can't be read: it has no 'guest.image'"),
        ({"limits": {}}, "can't be read: "),
        ({"blocks_per_boot": 0}, "can't be read: "),
    ],
)
def test_a_file_that_is_no_plan_is_refused(plan: Plan, broken: dict[str, Any], said: str) -> None:
    with pytest.raises(BrokenError, match=said):
        plan_from_file(changed(plan, **broken))


def test_a_plan_of_a_newer_labctl_is_refused_with_a_remedy(plan: Plan) -> None:
    with pytest.raises(UsageError) as caught:
        plan_from_file(changed(plan, schema=2))
    assert caught.value.hint == "Update labctl."


def test_the_record_of_a_plan_is_written_in_the_order_of_the_plan(plan: Plan) -> None:
    assert list(plan.record().to_json()) == [*plan.to_json()][1:] + ["schema"]
    assert json.dumps({"schema": 1, **plan.record().to_json()}) == text(plan)
