"""Published results beside a study: checked with file and line, and carried by the plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from labctl.base.errors import UsageError
from labctl.base.tuning import Tuning
from labctl.study.load_study import Overrides
from labctl.study.make_plan import make_plan
from labctl.study.study import Study
from tests.unit.records import plan_from_file

FILE = """\
source: A study, 2025.
results:
  - {tuning: baseline, against: native, workload: cpu, metric: ipc, ratio: 0.52}
  - {tuning: pinned, against: baseline, metric: 'ctx_switches{of=vcpu}', direction: lower}
"""
NAMED = ("quick:", "published: [published/one.yaml]\nquick:")

MakeStudy = Callable[..., Study]
Tunings = dict[str, Tuning]


@pytest.fixture
def published(tmp_path: Path) -> Path:
    path = tmp_path / "benchmarks" / "published" / "one.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(FILE)
    return path


def test_a_ratio_gives_its_direction(published: Path, make_study: MakeStudy) -> None:
    (source,) = make_study(*NAMED).published
    assert source.source == "A study, 2025."
    assert [(r.ratio, r.direction) for r in source.results] == [(0.52, "lower"), (None, "lower")]


def test_the_plan_carries_them_and_comes_back_the_same(
    published: Path, make_study: MakeStudy, tunings: Tunings
) -> None:
    plan = make_plan(make_study(*NAMED), tunings, seed=1, host_digest="")
    assert plan_from_file(plan.to_json()) == plan
    assert [r["metric"] for r in plan.to_json()["published"][0]["results"]] == [
        "ipc",
        "ctx_switches{of=vcpu}",
    ]


def test_what_others_published_is_no_part_of_what_is_measured(
    published: Path, make_study: MakeStudy, tunings: Tunings
) -> None:
    with_them, without = make_study(*NAMED), make_study()
    assert with_them.digest == without.digest
    assert "published" not in make_plan(without, tunings, seed=1, host_digest="").to_json()


def test_what_is_left_out_of_a_sweep_is_left_out_of_them(
    published: Path, make_study: MakeStudy, tunings: Tunings
) -> None:
    study = make_study(*NAMED, overrides=Overrides(workloads=["read"], tunings=["native"]))
    plan = make_plan(study, tunings, seed=1, host_digest="")
    assert plan.published[0].results == ()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("tuning: pinned", "tuning: pined", "one.yaml:4: 'tuning': the study has no 'pined'"),
        ("against: native", "against: nativ", "one.yaml:3: 'against': the study has no 'nativ'"),
        ("workload: cpu", "workload: gpu", "one.yaml:3: 'workload': the study has no 'gpu'"),
        ("direction: lower", "condition: loud, ratio: 2.0", "4: 'condition': the study has no"),
        (", ratio: 0.52", "", "one.yaml:3: 'results.0': exactly"),
        ("ratio: 0.52", "ratio: 0.52, direction: lower", "exactly one of 'ratio' and 'direction'"),
        ("ratio: 0.52", "ratio: -0.5", "a number above 0"),
        ("ratio: 0.52", "ratio: 1.0", "a ratio of 1 has no direction"),
        ("ratio: 0.52", "ratio: .nan", "results.0.ratio"),
        ("direction: lower", "direction: down", "one.yaml:4: 'results.1.direction' is 'down'"),
        ("metric: ipc", "metric: 'ipc{'", "results.0.metric"),
        ("metric: ipc", "metrik: ipc", "unknown key 'results.0.metrik'"),
        ("source: A study, 2025.\n", "", "key 'source' is missing"),
        (
            "  - {tuning: pinned",
            "  - {tuning: baseline, against: native, workload: cpu, metric: ipc, ratio: 2.0}\n"
            "  - {tuning: pinned",
            "one.yaml:4: the same result appears twice",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(
    published: Path, make_study: MakeStudy, old: str, new: str, says: str
) -> None:
    assert old in FILE
    published.write_text(FILE.replace(old, new, 1))
    with pytest.raises(UsageError) as caught:
        make_study(*NAMED)
    assert says in caught.value.message


def test_a_file_that_is_not_there_is_named(make_study: MakeStudy) -> None:
    with pytest.raises(UsageError, match=r"published/one\.yaml: cannot be read"):
        make_study(*NAMED)


@pytest.mark.parametrize("way", ["../../secret.yaml", "{}/secret.yaml", "published/link.yaml"])
def test_a_study_names_no_file_outside_its_own_folder(
    published: Path, make_study: MakeStudy, tmp_path: Path, way: str
) -> None:
    (tmp_path / "secret.yaml").write_text(FILE)
    (published.parent / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    name = way.format(tmp_path)
    with pytest.raises(UsageError, match="'published': .* is outside the study's folder"):
        make_study("quick:", f"published: [{name}]\nquick:")


EXPECTS = ("quick:", "expects: {kvm: Directions alone., tcg: Emulation.}\nquick:")


def test_what_is_expected_is_in_the_plan_and_changes_no_studys_digest(
    make_study: MakeStudy, tunings: Tunings
) -> None:
    before, study = make_study(), make_study(*EXPECTS)
    assert "expects" not in make_plan(before, tunings, seed=1, host_digest="").to_json()
    assert study.digest == before.digest
    plan = make_plan(study, tunings, seed=1, host_digest="")
    assert plan.record().expects == {"kvm": "Directions alone.", "tcg": "Emulation."}
    assert plan_from_file(plan.to_json()) == plan


def test_what_is_expected_is_of_native_kvm_or_tcg(make_study: MakeStudy) -> None:
    with pytest.raises(UsageError, match="xen"):
        make_study("quick:", "expects: {xen: Much.}\nquick:")
