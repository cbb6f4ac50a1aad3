from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

import pytest
from lxml import etree
from lxml import html as lxml_html

from labctl.analysis.answer.record import UNDECIDED, Next
from labctl.analysis.answer.view import View
from labctl.analysis.answer.words import shown
from labctl.analysis.judge import judge
from labctl.analysis.model import Added, MissingMetric, Role
from labctl.analysis.verdicts.table import VERDICTS, Verdict
from labctl.report.page.dots import invalid_attempts
from labctl.report.page.pictures import PICTURES, Sight
from labctl.report.page.report_page import page, write_page
from labctl.store.records.plan_record import PlanRecord
from labctl.store.records.run_record import RunRecord
from labctl.store.run_folder import LoadedRun, RunFolder
from labctl.store.trial import TrialStatus
from tests.unit.records import plan_of, run_of
from tests.unit.report.conftest import Judged, unmarked, with_all_that_analysis_can_say
from tests.unit.synthetic import TUNINGS, WORKLOADS, synthetic_run

HOSTILE = "</pre></title><script>alert(1)</script>\"'><img src=http://x.example/ onerror=x>\x1b[2J"


def rendered(judged: Judged, folder: RunFolder) -> lxml_html.HtmlElement:
    return lxml_html.fromstring(unmarked(page(*judged, folder.path)))


def words(element: lxml_html.HtmlElement) -> str:
    return " ".join(element.text_content().split())


def spaced(element: lxml_html.HtmlElement) -> str:
    """The words, with a space between the cells of a table too."""
    return " ".join(" ".join(element.itertext()).split())


def loads(text: str) -> list[str]:
    """Everything in a page that would make a browser ask for something."""
    document = lxml_html.fromstring(text)
    found = [
        f"{element.tag!s} {name!s}={value!s}"
        for element in document.iter(etree.Element)
        for name, value in element.attrib.items()
        if name in ("src", "srcset", "href", "data", "action", "poster", "xlink:href")
        and not value.startswith("#")
    ]
    tags = ("script", "link", "img", "iframe", "object", "embed", "video", "audio", "base")
    found += [tag for tag in tags for _ in document.iter(tag)]
    return found + re.findall(r"url\(|@import", text)


def test_the_page_loads_nothing(judged: Judged, folder: RunFolder) -> None:
    assert loads(page(*judged, folder.path)) == []


def test_the_check_for_loads_can_fail() -> None:
    assert loads('<p><img src="http://x.example/a.png">') != []


def test_the_page_is_well_formed_and_small(judged: Judged, folder: RunFolder) -> None:
    text = page(*judged, folder.path)
    assert len(text.encode()) < 2_200_000
    parser = etree.HTMLParser(recover=True)
    etree.fromstring(text, parser)
    # libxml2 knows HTML 4: it takes the tags of HTML 5 and SVG for unknown ones.
    errors = [entry for entry in parser.error_log if entry.type_name != "HTML_UNKNOWN_TAG"]
    assert [str(error) for error in errors] == []


def test_ten_thousand_trials_of_forty_arms_stay_about_two_megabytes(tmp_path: Path) -> None:
    arms = [*TUNINGS, *(f"tuning-{number}" for number in range(32))]
    workloads = {f"{name}-{n}": dict(WORKLOADS[name]) for n in range(4) for name in WORKLOADS}
    run = synthetic_run(
        blocks=16,
        tunings=arms,
        workloads=workloads,
        conditions=("quiet", "neighbour"),
        accelerator="kvm",
        exit_reasons=dict.fromkeys(("HLT", "MSR_WRITE", "EPT_VIOLATION", "IO", "CPUID"), 30.0),
    )
    assert len(run.trials) == 10_240
    text = page(run, judge(run), tmp_path)
    assert len(text.encode()) < 2_200_000
    assert text.count('<section aria-labelledby="place-') == 16


def test_ids_are_unique_and_links_and_labels_lead_to_them(
    judged: Judged, folder: RunFolder
) -> None:
    document = rendered(judged, folder)
    ids = document.xpath("//@id")
    assert len(ids) == len(set(ids))
    targets = [link[1:] for link in document.xpath("//@href")]
    targets += [name for value in document.xpath("//@aria-labelledby") for name in value.split()]
    assert targets
    assert set(targets) <= set(ids)


def test_answer_and_warnings_open_the_page(judged: Judged, folder: RunFolder) -> None:
    text = words(rendered(judged, folder).xpath("//body")[0])
    decision = judged[1].decision
    lines = [line for _, line in (*decision.conditions, *decision.reasons)]
    said = [decision.lead, *lines]
    assert [text.index(line) for line in said] == sorted(text.index(line) for line in said)
    assert text.index(said[-1]) < text.index("Contents")
    answer = text.index(decision.lead)
    places = [text.index(" ".join(warning.split())) for warning in judged[1].warnings]
    assert [answer, *places] == sorted([answer, *places])
    assert max(places) < text.index("Verdicts", max(places))


def test_the_page_says_whom_qemu_ran_as_where_the_run_does(
    judged: Judged, folder: RunFolder
) -> None:
    run, judgement = judged
    assert "QEMU ran as" not in words(rendered(judged, folder))
    user = {"name": "root", "why_root": ["no account"]}
    told = replace(run, run=run_of({**run.run.to_json(), "qemu_user": user}))
    page_now = words(rendered((told, judgement), folder))
    assert "QEMU ran as root, because no account." in page_now


def test_the_matrix_has_each_tunings_verdict_and_who_pays(
    judged: Judged, folder: RunFolder
) -> None:
    matrix = rendered(judged, folder).xpath("//table[@class='matrix']")[0]
    rows = {row[0].text_content(): words(row) for row in matrix.xpath(".//tbody/tr")}
    assert set(rows) == {"pinned", "pinned+fifo", "control", "handicap"}
    assert rows["pinned"].count("▼ regresses−2") == 2
    assert rows["pinned+fifo"].count("▲ improves×2.") == 2
    assert rows["pinned+fifo"].count("neighbour −") == 2
    assert rows["pinned+fifo"].count("work per host CPU-second ×2.") == 2
    assert rows["control"].count("passed") == 2


def test_a_control_that_could_not_be_checked_does_not_count_as_open(folder: RunFolder) -> None:
    run = synthetic_run(blocks=3)
    text = spaced(lxml_html.fromstring(page(run, judge(run), folder.path)))
    assert "? not checked: no verdict" in text
    assert "only large effects get a verdict" not in text


def test_verdicts_are_told_apart_without_colour() -> None:
    assert len({row.symbol for row in VERDICTS.values()}) == len(VERDICTS) == len(Verdict)


def _plots(judged: Judged) -> int:
    view = View(*judged)
    invalid = invalid_attempts(view)
    sights = (
        Sight(view=view, place=place, shown=view.tunings, invalid=invalid) for place in view.places
    )
    return sum(len(picture.draw(sight)) for sight in sights for picture in PICTURES)


def test_each_picture_has_a_title_and_a_table_behind_it(judged: Judged, folder: RunFolder) -> None:
    document = rendered(judged, folder)
    pictures = document.xpath("//svg[not(ancestor::svg)]")
    assert pictures
    for picture in pictures:
        assert picture.get("role") == "img"
        assert picture.xpath("./title/text()")[0].strip()
    figures = document.xpath("//figure[not(@class='overview')]")
    assert document.xpath("//figure[@class='overview']//a/@href") == ["#verdicts"]
    assert len(figures) == _plots(judged) + 1  # the pin plan
    for figure in figures:
        assert figure.getnext().tag == "details"
        assert figure.getnext().xpath(".//tbody/tr/th/text()")


def test_the_forest_and_the_table_behind_it_have_the_same_arms(
    judged: Judged, folder: RunFolder
) -> None:
    for figure in rendered(judged, folder).xpath(
        "//figure[starts-with(./svg/title/@id, 'forest')]"
    ):
        pictured = figure.xpath("./svg/text[@x='0']/text()")
        table = figure.getnext().xpath(".//tbody/tr/th/text()")
        assert pictured == table == ["control", "handicap", "pinned", "pinned+fifo", "native"]


def test_headings_come_in_order_and_no_level_is_left_out(judged: Judged, folder: RunFolder) -> None:
    levels = [
        int(heading.tag[1])
        for heading in rendered(judged, folder).iter("h1", "h2", "h3", "h4", "h5", "h6")
    ]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_landmarks_captions_and_header_cells_are_there_for_a_screen_reader(
    judged: Judged, folder: RunFolder
) -> None:
    document = rendered(judged, folder)
    for landmark in ("header", "main"):
        assert len(document.xpath(f"//body/{landmark}")) == 1
    assert document.xpath("//body/a[1]/@href") == ["#main"]
    for table in document.xpath("//table"):
        assert table.xpath("./caption") or table.xpath("ancestor::*[@role='region']/@aria-label")
        assert table.xpath(".//th")
        assert table.xpath(".//th[not(@scope)]") == []
    labels = document.xpath("//*[@role='region']/@aria-label")
    assert len(labels) == len(set(labels))


def test_diagnostics_precision_and_holm_are_shown(judged: Judged, folder: RunFolder) -> None:
    text = spaced(rendered(with_all_that_analysis_can_say(judged), folder))
    assert "Drift: its effect grows from block to block" in text
    assert "Outlier: Block 3 stands out." in text
    assert "Boots differ more than blocks do." in text
    assert "8.3 % 3 % 4 boots, 3 blocks per boot, 30 s per trial" in text
    assert "regresses (by Holm)" in text
    assert "pinned: blocks 4 and 5 are missing" in text
    low = next(c for c in judged[1].comparisons if c.tuning == "pinned" and c.verdict)
    assert text.count(shown(low).interval) >= 2  # matrix, and the numbers behind the picture


def test_blocks_that_came_later_stand_apart_and_the_ending_is_said(
    judged: Judged, folder: RunFolder
) -> None:
    run, judgement = judged
    primaries = tuple(c for c in judgement.comparisons if c.role is Role.PRIMARY)
    more = Added(first=11, last=11, label="exploratory: added later", comparisons=primaries)
    told = replace(judgement, added=more, ending="It ended at its width.")
    text = spaced(rendered((run, told), folder))
    assert "It ended at its width." in text
    assert "Blocks 11 to 11: exploratory: added later. No verdict rests on them." in text
    assert "Blocks from 11 on came later" in text


def test_reasons_that_differ_in_numbers_alone_are_said_once(
    judged: Judged, folder: RunFolder
) -> None:
    run, judgement = judged
    missing = tuple(
        MissingMetric(
            metric="latency_p99",
            reason=f"the trial has {samples} samples and p99 takes 2000.",
            trials=2,
            tunings=("pinned",),
            workloads=("cyclictest",),
        )
        for samples in (1545, 980, 1999)
    )
    text = spaced(rendered((run, replace(judgement, unavailable=missing)), folder))
    assert "the trial has 980 to 1999 samples and p99 takes 2000. 6 pinned cyclictest" in text


def test_thousands_of_invalid_trials_are_counted_by_arm_and_reason(folder: RunFolder) -> None:
    bad = [("pinned", "sysbench-cpu", block) for block in range(1, 301)]
    run = synthetic_run(blocks=300, tunings=["baseline", "control", "pinned"], invalid=bad)
    text = spaced(lxml_html.fromstring(page(run, judge(run), folder.path)))
    assert "pinned, sysbench-cpu, neighbour vCPU 0 ran on CPUs 0-1, asked for CPU 1 300" in text
    assert "100 more" in text


def test_invalid_attempts_are_counted_by_arm(folder: RunFolder) -> None:
    bad = [("pinned", "sysbench-cpu", block) for block in range(1, 11)]
    run = synthetic_run(tunings=["baseline", "control", "pinned"], repeated=bad)
    document = lxml_html.fromstring(page(run, judge(run), folder.path))
    (table,) = document.xpath("//table[caption[contains(., 'Invalid attempts by arm')]]")
    rows = ["".join(row.itertext()).split() for row in table.xpath("tbody/tr")]
    text = spaced(table)
    assert len(rows) == 3
    assert "Chance alone makes arms differ as much in 0.05 % of runs" in text
    assert "baseline 20 0 control 20 0 pinned 30 10" in text
    assert "The arms differ in invalid attempts" in spaced(document)


def test_guests_that_died_alike_are_counted_together_with_the_logs_of_one(
    folder: RunFolder,
) -> None:
    bad = [("pinned", "sysbench-cpu", block) for block in range(1, 4)]
    run = synthetic_run(blocks=4, tunings=["baseline", "control", "pinned"], invalid=bad)
    trials = tuple(
        replace(
            trial,
            record=replace(
                trial.record,
                reasons=(f"the guest: ended\nIts console ends:\n  {'panic ' * 100}at {at}",),
            ),
        )
        if trial.record.status is TrialStatus.INVALID
        else trial
        for at, trial in enumerate(run.trials)
    )
    run = replace(run, trials=trials)
    document = lxml_html.fromstring(page(run, judge(run), folder.path))
    (row,) = document.xpath("//table[caption[contains(., 'Reasons for invalid trials')]]/tbody/tr")
    cells = ["".join(cell.itertext()) for cell in row]
    assert cells[1].startswith("the guest: endedIts console ends:\n  panic panic")
    assert cells[1].count("at ") == 1
    assert cells[2] == "3"
    (every,) = document.xpath("//details[summary[contains(., 'Every invalid trial')]]")
    assert spaced(every).count("the guest: ended") == 3
    assert "panic" not in spaced(every)


def test_reasons_invalid_trials_pin_plan_and_identity_are_there(
    judged: Judged, folder: RunFolder
) -> None:
    text = words(rendered(judged, folder))
    assert "emulated: no VM exits" in text
    assert "vCPU 0 ran on CPUs 0-1, asked for CPU 1" in text
    assert "CPU 1 vCPU 0" in text
    assert "labctl sweep pinning --quick" in text
    assert str(judged[0].plan.to_json()["digest"]) in text
    assert "6.12.0-host" in text
    assert "a" * 64 in text


def test_the_xml_difference_shows_both_sides(judged: Judged, folder: RunFolder) -> None:
    document = rendered(judged, folder)
    changed = {
        kind: "".join(document.xpath(f"//pre/span[@class='{kind}']/text()"))
        for kind in ("added", "removed")
    }
    assert "<!-- pinned+fifo -->" in changed["added"]
    assert "<!-- baseline -->" in changed["removed"]


def test_hostile_strings_stay_text_wherever_they_stand(folder: RunFolder) -> None:
    calm = synthetic_run(
        blocks=2, workloads={HOSTILE: synthetic_run().plan.to_json()["workloads"]["sysbench-cpu"]}
    )
    run = replace(
        calm,
        name=HOSTILE,
        problems=(HOSTILE,),
        plan=plan_of({**calm.plan.to_json(), "title": HOSTILE}),
        run=run_of(
            {
                **{
                    key: HOSTILE
                    for key, value in calm.run.to_json().items()
                    if isinstance(value, str)
                },
                "host": {HOSTILE: HOSTILE},
                "guest": {"kernel": [HOSTILE, {"a": HOSTILE}]},
                "pin_plan": {"picture": HOSTILE, "reasons": [HOSTILE]},
                "notes": [HOSTILE],
                "skipped": {HOSTILE: HOSTILE},
                "binaries": {HOSTILE: {HOSTILE: HOSTILE}},
                "xml": {"baseline": "xml/baseline.xml", HOSTILE: HOSTILE},
            }
        ),
    )
    missing = MissingMetric(
        metric=HOSTILE, reason=HOSTILE, trials=1, tunings=(HOSTILE,), workloads=(HOSTILE,)
    )
    hostile = replace(
        UNDECIDED,
        status=HOSTILE,
        lead=HOSTILE,
        because=HOSTILE,
        next=(Next(command=HOSTILE, text=HOSTILE),),
    )
    judgement = replace(judge(run), decision=hostile, warnings=(HOSTILE,), unavailable=(missing,))
    text = page(run, judgement, folder.path)
    assert loads(text) == []
    document = lxml_html.fromstring(text)
    assert document.xpath("//@onerror") == []
    assert "\x1b" not in text
    assert document.xpath("//title/text()")[0].startswith(HOSTILE.split("\x1b")[0][:10])


def test_a_hostile_guest_cannot_make_the_page_large(folder: RunFolder, judged: Judged) -> None:
    run, judgement = judged
    facts = {f"k{number}": "x" * 100_000 for number in range(5000)}
    run = replace(run, run=run_of({**run.run.to_json(), "guest": facts}))
    assert len(page(run, judgement, folder.path)) < 2_200_000


@pytest.mark.parametrize("place", ["../secret", "/etc/passwd", "xml/link"])
def test_xml_is_read_from_the_runs_folder_only(
    judged: Judged, folder: RunFolder, place: str
) -> None:
    secret = folder.path.parent / "secret"
    secret.write_text("root:x:0")
    (folder.path / "xml" / "link").symlink_to(secret)
    run, judgement = judged
    run = replace(
        run,
        run=run_of({**run.run.to_json(), "xml": {"baseline": "xml/baseline.xml", "pinned": place}}),
    )
    text = page(run, judgement, folder.path)
    assert "root:x:0" not in text
    assert "is outside the run&#39;s folder" in text


def test_missing_xml_is_said_and_harms_nothing_else(judged: Judged, tmp_path: Path) -> None:
    text = page(*judged, tmp_path)
    assert "xml/baseline.xml cannot be read" in text


def test_a_run_of_which_nothing_is_left_makes_a_page(tmp_path: Path) -> None:
    run = LoadedRun("r", RunRecord(), PlanRecord(), (), ("plan.json is missing",))
    text = page(run, judge(run), tmp_path)
    assert "plan.json is missing" in text
    assert 'id="verdicts"' not in text
    assert 'class="overview"' not in text


def test_the_page_is_written_into_the_runs_folder(judged: Judged, folder: RunFolder) -> None:
    path = write_page(*judged, folder.path)
    assert path == folder.path / "report.html"
    assert path.read_text(encoding="utf-8") == page(*judged, folder.path)
