from pathlib import Path

from tests.unit.synthetic import synthetic_run, write_run


def test_a_written_run_loads_as_it_was(tmp_path: Path) -> None:
    run = synthetic_run(
        blocks=2,
        tunings=["native", "baseline", "control", "pinned"],
        repeated=[("pinned", "sysbench-cpu", 1)],
        invalid=[("native", "fio-randread", 2)],
    )
    loaded = write_run(tmp_path / "run", run).load()
    assert loaded.problems == ()
    assert loaded.run == run.run
    assert loaded.plan == run.plan
    key = [(t.record.number, t.record.attempt) for t in run.trials]
    assert [(t.record.number, t.record.attempt) for t in loaded.trials] == key
    for ours, theirs in zip(run.trials, loaded.trials, strict=True):
        assert ours.record == theirs.record
        # A samples file holds samples before what is unavailable.
        assert set(map(str, ours.readings)) == set(map(str, theirs.readings))


def test_the_same_seed_gives_the_same_run() -> None:
    assert synthetic_run(seed=7, blocks=2) == synthetic_run(seed=7, blocks=2)
    assert synthetic_run(seed=7, blocks=2) != synthetic_run(seed=8, blocks=2)


def test_an_invalid_trial_leaves_the_numbers_of_the_others_alone() -> None:
    whole = synthetic_run(blocks=2)
    broken = synthetic_run(blocks=2, invalid=[("pinned", "sysbench-cpu", 1)])
    differing = [a for a, b in zip(whole.trials, broken.trials, strict=True) if a != b]
    assert len(differing) == 1
