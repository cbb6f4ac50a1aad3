from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from labctl.base.errors import UsageError
from labctl.base.stopping import Looks, UntilWidth
from labctl.base.tuning import Level
from labctl.study.load_study import Overrides, load_study
from labctl.study.study import Study, study_names
from labctl.workloads.registry import checkers

from .small import PROGRAMS, STUDY

MakeStudy = Callable[..., Study]


def refusal(make: MakeStudy, old: str, new: str) -> tuple[int, UsageError]:
    """The error of a study with `old` replaced, and the line of the first difference."""
    with pytest.raises(UsageError) as caught:
        make(old, new)
    return STUDY[: STUDY.index(old)].count("\n") + 1, caught.value


def test_a_study_is_what_its_file_says(make_study: MakeStudy) -> None:
    study = make_study()
    assert study.name == "small"
    assert study.tunings == ("native", "baseline", "control", "handicap", "pinned")
    assert study.roles.baseline == "baseline"
    assert study.workloads["read"].parameters == {"mode": "randread"}
    assert study.workloads["read"].duration_s == 10.5
    assert study.workloads["read"].margin == 0.025
    assert study.guest.vcpus is None
    assert study.exercises["pinned"] == ("cpu", "read")
    assert not study.quick


def test_a_workload_says_what_loss_a_recommendation_must_exclude(make_study: MakeStudy) -> None:
    study = make_study("margin_percent: 5\n", "margin_percent: 5\n    no_worse_than: 50\n")
    assert study.workloads["cpu"].no_worse_than == 0.5
    assert study.workloads["read"].no_worse_than is None


def test_a_study_may_have_a_rule_in_place_of_a_number_of_blocks(make_study: MakeStudy) -> None:
    until = make_study("blocks: 10", "stop: {width_percent: 2, most_blocks: 30}")
    assert (until.stopping, until.blocks) == (UntilWidth(width=0.02, most_blocks=30), 30)
    looking = make_study("blocks: 10", "looks: [10, 15, 20]")
    assert (looking.stopping, looking.blocks) == (Looks(at=(10, 15, 20)), 20)


def test_a_command_line_changes_a_rule_to_another_or_to_a_number(make_study: MakeStudy) -> None:
    rule = Looks(at=(10, 12))
    looking = make_study(overrides=Overrides(stopping=rule))
    assert (looking.stopping, looking.blocks) == (rule, 12)
    fixed = make_study("blocks: 10", "looks: [10, 15]", overrides=Overrides(blocks=11))
    assert (fixed.stopping, fixed.blocks) == (None, 11)


def test_quick_takes_the_files_own_selection(make_study: MakeStudy) -> None:
    study = make_study(quick=True)
    assert study.quick
    assert list(study.workloads) == ["cpu"]
    assert study.conditions == ("neighbour",)
    assert study.workloads["cpu"].duration_s == 2.0
    assert (study.blocks, study.blocks_per_boot) == (10, 5)
    assert study.exercises == {"pinned": ("cpu",), "handicap": ("cpu",)}


def test_an_override_wins_over_the_quick_selection(make_study: MakeStudy) -> None:
    study = make_study(quick=True, overrides=Overrides(blocks=3, duration_s=1, vcpus=2))
    assert (study.blocks, study.workloads["cpu"].duration_s, study.guest.vcpus) == (3, 1.0, 2)


def test_a_tuning_of_ones_own_joins_the_arms_that_have_a_role(make_study: MakeStudy) -> None:
    study = make_study(overrides=Overrides(tunings=("mine",)))
    assert study.tunings == ("native", "baseline", "control", "handicap", "mine")


def test_a_role_that_is_left_out_of_a_selection_stays(make_study: MakeStudy) -> None:
    study = make_study(
        "tunings: [baseline, control, handicap, native, pinned]", "tunings: [pinned]", quick=True
    )
    assert study.tunings == ("native", "baseline", "control", "handicap", "pinned")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("max_prime: 2000", "max_prime: 2001"),
        ("title: Does", "title: Did"),
        ("blocks: 10", "blocks: 11"),
        ("other_cpu: 0.1", "other_cpu: 0.2"),
        ("primary: iops", "primary: iops\n    other_cpu: 0.5"),
        ("vcpus: auto", "vcpus: 1"),
        ("handicap: [cpu]", "handicap: [read]"),
        ("[quiet, neighbour]", "[neighbour, quiet]"),
    ],
)
def test_the_digest_changes_with_any_change(make_study: MakeStudy, old: str, new: str) -> None:
    assert make_study().digest != make_study(old, new).digest


def test_the_digest_does_not_change_with_the_layout_of_the_file(make_study: MakeStudy) -> None:
    assert make_study().digest == make_study("roles:", "# who is who\nroles:  # these").digest


def test_the_quick_study_has_another_digest(make_study: MakeStudy) -> None:
    assert make_study().digest != make_study(quick=True).digest


def test_an_unknown_study_is_refused_with_the_nearest_name(make_study: MakeStudy) -> None:
    make_study()
    with pytest.raises(UsageError) as caught:
        load_study("smal", programs=PROGRAMS)
    assert "'smal'" in caught.value.message
    assert "Did you mean 'small'?" in str(caught.value.hint)


def test_a_study_can_be_given_as_a_path(write_study: Callable[..., Path]) -> None:
    assert load_study(str(write_study()), programs=PROGRAMS).name == "small"


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.yaml: cannot be read"):
        load_study(str(tmp_path / "none.yaml"), programs=PROGRAMS)


@pytest.mark.parametrize(
    ("old", "new", "said", "hint"),
    [
        (
            "handicap, pinned]\nw",
            "handicap, pined]\nw",
            "no tuning 'pined'",
            "mean 'pinned'?",
        ),
        ("[quiet, neighbour]", "[quiet, neighbor]", "'neighbor'", "mean 'neighbour'?"),
        ("program: sysbench-cpu", "program: sysbench", "'sysbench'", "mean 'sysbench-cpu'?"),
        ("baseline: baseline", "baseline: base", "'roles.baseline'", "Allowed: baseline, "),
        ("image: debian-12", "image: debian-21", "'debian-21'", "mean 'debian-13'?"),
        ("  pinned: [cpu, read]", "  pinned: [cpu, raed]", "'raed'", "mean 'read'?"),
        ("  pinned: [cpu, read]", "  pined: [cpu]", "'pined'", "mean 'pinned'?"),
        ("  workloads: [cpu]", "  workloads: [cpus]", "'quick.workloads'", "mean 'cpu'?"),
        ("[quiet, neighbour]", "[quiet, quiet]", "'quiet' appears twice", None),
        ("primary: events_per_s", "primary: events", "'events'", "mean 'events_per_s'?"),
        ("{mode: randread}", "{mode: read}", "'mode' is 'read'", "Look it up."),
        ("{mode: randread}", "{mod: randread}", "'mod' is 'randread'", "Look it up."),
        ("duration_s: 10.5", "duration_s: 10.6", "only half seconds", None),
        ("duration_s: 2\n", "duration_s: 2.2\n", "only half seconds", None),
    ],
)
def test_an_unknown_name_is_refused_with_line_and_nearest_name(
    make_study: MakeStudy, old: str, new: str, said: str, hint: str | None
) -> None:
    line, error = refusal(make_study, old, new)
    assert f"small.yaml:{line}: " in error.message
    assert said in error.message
    if hint is not None:
        assert hint in str(error.hint)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "margin_percent: 5\n",
            "no_worse_than: 0\n    margin_percent: 5\n",
            "'workloads.cpu.no_worse_than' is 0",
        ),
        (
            "margin_percent: 5\n",
            "no_worse_than: half\n    margin_percent: 5\n",
            "'workloads.cpu.no_worse_than' is 'half'",
        ),
        ("blocks: 10", "block: 10", "unknown key 'block'. Did you mean 'blocks'?"),
        ("memory_mib: 1024", "memry_mib: 1024", "'guest.memry_mib'. Did you mean 'memory_mib'?"),
        (
            "margin_percent: 5\n",
            "margin_percnt: 5\n",
            "'workloads.cpu.margin_percnt'. Did you mean",
        ),
        ("blocks: 10", "blocks: ten", "'blocks' is 'ten'"),
        ("blocks: 10", "blocks: 0", "'blocks' is 0"),
        ("blocks: 10", "looks: [10, 12, 11]", "each must come after the one before it"),
        ("blocks: 10", "looks: [9, 12]", "they must be from 10 to 1000"),
        ("blocks: 10", "looks: [10]", "at least two"),
        ("blocks: 10", "stop: {width_percent: 0}", "'stop.width_percent' is 0"),
        (
            "blocks: 10",
            "stop: {width_percent: 2, most_blocks: 10}",
            "must be from 11 to 1000",
        ),
        ("duration_s: 10\n", "duration_s: -1\n", "'workloads.cpu.duration_s' is -1"),
        ("duration_s: 10\n", "duration_s: .inf\n", "'workloads.cpu.duration_s' is inf"),
        ("vcpus: auto", "vcpus: all", "'all'"),
        ("attempts: 3", "attempts: true", "'limits.attempts' is true: a whole number"),
        ("blocks: 10", "collect: trac", "'collect' is 'trac': 'counters', 'exits' or 'trace'"),
        ("  duration_s: 2\n", "  duraton_s: 2\n", "'quick.duraton_s'. Did you mean 'duration_s'?"),
    ],
)
def test_an_unknown_key_or_value_is_refused_with_its_line(
    make_study: MakeStudy, old: str, new: str, said: str
) -> None:
    line, error = refusal(make_study, old, new)
    assert f"small.yaml:{line}: " in error.message
    assert said in error.message


def test_a_study_says_what_its_trials_collect(make_study: MakeStudy) -> None:
    assert make_study().collect == Level.COUNTERS
    assert make_study("blocks: 10", "collect: trace\nblocks: 10").collect == Level.TRACE


def test_a_study_without_a_quick_selection_says_so(make_study: MakeStudy) -> None:
    quick = STUDY[STUDY.index("quick:") :]
    with pytest.raises(UsageError, match="has no 'quick:' selection"):
        make_study(quick, "", quick=True)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (Overrides(tunings=("pined",)), "no tuning 'pined'"),
        (Overrides(workloads=("cpus",)), "no workload 'cpus'"),
        (Overrides(conditions=("noisy",)), "no condition 'noisy'"),
        (Overrides(blocks=0), "--blocks: expected a number from 1"),
        (Overrides(duration_s=float("nan")), "got nan"),
        (Overrides(memory_mib=16), "got 16"),
        (Overrides(duration_s=1.2), "only half seconds"),
    ],
)
def test_an_override_that_cannot_be_is_refused(
    make_study: MakeStudy, overrides: Overrides, said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        make_study(overrides=overrides)
    assert said in caught.value.message


def test_a_parameter_that_is_left_out_has_its_default(make_study: MakeStudy) -> None:
    study = make_study("parameters: {max_prime: 2000}", "parameters: {}")
    assert study.workloads["cpu"].parameters == {"max_prime": 2000}
    assert study.digest == make_study().digest


def test_the_pinning_study_that_labctl_brings_is_sound() -> None:
    from labctl.workloads.registry import checkers

    programs = checkers()
    assert "pinning" in study_names()
    full = load_study("pinning", programs=programs)
    quick = load_study("pinning", programs=programs, quick=True)
    cpu, disk = ("sysbench-cpu", "cyclictest", "hackbench"), ("fio-randread", "fio-randwrite")
    assert set(full.workloads) == {*cpu, *disk}
    assert set(full.conditions) == {"quiet", "neighbour"}
    # METHOD: fewer than ten blocks give no verdict, so the quick selection keeps them.
    assert isinstance(full.stopping, Looks)
    assert full.stopping.at == (10, 20)
    assert isinstance(quick.stopping, Looks)
    assert quick.stopping.at == (10, 20, 30)
    assert len(quick.tunings) == 8
    assert {workload.duration_s for workload in quick.workloads.values()} == {2.0}


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ("blocks: 10\nlooks: [10, 15]", "'blocks' and 'looks'"),
        ("stop: {width_percent: 2}\nlooks: [10, 15]", "'stop' and 'looks'"),
        ("blocks: 10\nstop: {width_percent: 2}", "'blocks' and 'stop'"),
    ],
)
def test_how_many_blocks_there_are_is_not_said_twice(
    make_study: MakeStudy, new: str, said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        make_study("blocks: 10\n", f"{new}\n")
    assert f"expected only one of 'blocks', 'stop' and 'looks', got {said}" in caught.value.message


def test_more_blocks_than_one_boot_was_for_get_a_boot_each(make_study: MakeStudy) -> None:
    """Two boots leave t one degree of freedom, so ten blocks in one and two in another say nothing
    where ten said something."""

    def per_boot(overrides: Overrides) -> int:
        one_boot = ("blocks_per_boot: 4\n", "blocks_per_boot: 10\n")
        return make_study(*one_boot, overrides=overrides).blocks_per_boot

    assert per_boot(Overrides()) == 10
    assert per_boot(Overrides(blocks=4)) == 10
    assert per_boot(Overrides(blocks=12)) == 1
    assert per_boot(Overrides(stopping=UntilWidth(width=0.02, most_blocks=40))) == 1
    assert per_boot(Overrides(blocks=12, blocks_per_boot=3)) == 3


def test_the_known_loss_may_be_called_so(make_study: MakeStudy) -> None:
    renamed = make_study("handicap: handicap", "known_loss: handicap")
    assert renamed.roles == make_study().roles
    assert renamed.digest == make_study().digest


def test_the_known_loss_has_one_name_at_a_time(make_study: MakeStudy) -> None:
    with pytest.raises(UsageError, match="known_loss"):
        make_study("handicap: handicap", "handicap: handicap, known_loss: handicap")


def test_a_study_of_three_lines_has_the_roles_limits_and_guest_of_every_other(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("title: Mine?\ntunings: [pinned]\nworkloads: [sysbench-cpu]\n")
    study = load_study(str(path), programs=checkers())
    assert study.tunings == ("native", "baseline", "control", "handicap", "pinned")
    assert study.workloads["sysbench-cpu"].primary == "events_per_s"
    assert (study.blocks, study.blocks_per_boot, study.conditions) == (10, 1, ("neighbour",))
    assert (study.guest.image, study.guest.memory_mib, study.limits.attempts) == (
        "debian-13",
        1024,
        3,
    )


def test_a_study_defines_a_workload_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "title: Mine?\ntunings: [pinned]\nworkloads:\n  spin:\n    define:\n"
        "      description: spins\n      command: [/usr/bin/true, '{{ vcpus }}']\n"
        "      trial: {kind: repeat, work: 1}\n      primary: work_per_s\n"
    )
    spin = load_study(str(path), programs=checkers()).workloads["spin"]
    assert spin.primary == "work_per_s"
    assert spin.definition is not None
    assert spin.definition["command"] == ["/usr/bin/true", "{{ vcpus }}"]


def test_a_role_that_a_study_does_not_list_is_an_arm_of_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "title: Mine?\nroles: {baseline: baseline, control: control}\ntunings: [pinned, control]\n"
        "workloads: {mine: {program: sysbench-cpu}, cyclictest: }\n"
    )
    study = load_study(str(path), programs=checkers())
    assert study.tunings == ("baseline", "pinned", "control")
    assert study.roles.handicap is None, "a study that names roles has those alone"
    assert {name: w.program for name, w in study.workloads.items()} == {
        "mine": "sysbench-cpu",
        "cyclictest": "cyclictest",
    }


def test_a_role_that_is_no_tuning_is_refused_with_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "title: Mine?\nroles: {baseline: basline}\ntunings: [pinned]\nworkloads: [sysbench-cpu]\n"
    )
    with pytest.raises(UsageError) as caught:
        load_study(str(path), programs=checkers())
    assert "mine.yaml:2: 'roles.baseline': no tuning 'basline'" in caught.value.message
    assert "Did you mean 'baseline'?" in str(caught.value.hint)


def test_a_workload_may_come_from_outside_the_study_with_its_defaults(
    make_study: MakeStudy,
) -> None:
    named = next(name for name in PROGRAMS if name not in make_study().workloads)
    study = make_study(overrides=Overrides(workloads=(named,)))
    (workload,) = study.workloads.values()
    assert (workload.program, workload.duration_s, workload.margin) == (named, 10, 0.05)
    assert workload.primary == PROGRAMS[named].primary
    assert study.exercises["pinned"] == (named,)


def test_a_workload_that_the_quick_part_lacks_is_the_study_s_own(make_study: MakeStudy) -> None:
    study = make_study(quick=True, overrides=Overrides(workloads=("read",)))
    whole = make_study().workloads["read"]
    assert study.workloads == {"read": replace(whole, duration_s=2)}
    assert study.exercises["pinned"] == ("read",)


def test_quantities_with_units_make_the_same_study(make_study: MakeStudy, tmp_path: Path) -> None:
    text = STUDY
    for old, new in (
        ("duration_s: 10.5", "duration: 10500 ms"),
        ("margin_percent: 2.5", "margin: 2.5 %"),
        ("duration_s: 10\n", "duration_s: 10 s\n"),
        ("memory_mib: 1024", "memory: 1G"),
        ("warmup_cap_s: 30", "warmup_cap_s: 0.5m"),
        ("duration_s: 2\n", "duration: 2s\n"),
    ):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "small.yaml").write_text(text)
    for quick in (False, True):
        with_units = load_study(str(tmp_path / "small.yaml"), programs=PROGRAMS, quick=quick)
        assert with_units == make_study(quick=quick)
