import pytest

from labctl.base.errors import BrokenError
from labctl.collect.perf_kvm_stat import Report, read_reports
from tests.unit.collect.trials import recorded

INTEL = "perf-kvm-stat-intel-report-866-samples.txt"
ARM = "perf-kvm-stat-arm64-report-669155-samples.txt"
LIVE = "perf-kvm-stat-intel-live-two-frames.txt"
NONE = "perf-kvm-stat-no-samples.txt"


def _only(text: str) -> Report:
    (report,) = read_reports(text, "report.txt")
    return report


def test_a_report_names_each_reason_with_its_count_and_its_times() -> None:
    report = _only(recorded(INTEL))
    assert (report.of, report.samples) == ("all VMs, all VCPUs", 866)
    assert report.time_ns == pytest.approx(1_815_367_450)
    by_name = {reason.name: reason for reason in report.reasons}
    assert list(by_name)[:3] == ["MSR_WRITE", "HLT", "EXTERNAL_INTERRUPT"]
    halts = by_name["HLT"]
    assert halts.samples == 179
    assert (halts.samples_share, halts.time_share) == pytest.approx((0.2067, 0.9982))
    assert halts.min_ns == pytest.approx(64_530)
    assert halts.max_ns == pytest.approx(17_159_690)
    assert halts.average_ns == pytest.approx(10_123_400)
    assert sum(reason.time_ns for reason in report.reasons) == pytest.approx(
        report.time_ns, rel=1e-4
    )


def test_arm64_is_read_as_well() -> None:
    report = _only(recorded(ARM))
    assert report.reasons[0].name == "DABT_LOW"
    assert sum(reason.samples for reason in report.reasons) == report.samples == 669155


def test_live_output_is_a_table_per_frame() -> None:
    first, second = read_reports(recorded(LIVE), "live.txt")
    assert (first.samples, second.samples) == (70746, 1981)
    assert len(first.reasons) == len(second.reasons) == 10


def test_a_table_without_samples_is_one_of_no_exits() -> None:
    report = _only(recorded(NONE))
    assert (report.of, report.samples, report.reasons) == ("all VMs, VCPU 27", 0, ())


def test_times_count_in_the_unit_that_they_are_printed_in() -> None:
    text = recorded(INTEL)
    changed = text.replace("10123.40us", "10.1234ms").replace("1815367.45us", "1.81536745s")
    assert changed != text
    changed_report = _only(changed)
    assert changed_report.time_ns == pytest.approx(_only(text).time_ns)
    assert changed_report.reasons[1].average_ns == pytest.approx(10_123_400)


def test_a_reason_may_have_a_space_in_its_name_and_no_deviation() -> None:
    text = recorded(INTEL).replace("MSR_WRITE", "PF excp  ").replace("( +-   2.66% )", "")
    assert _only(text).reasons[0].name == "PF excp"


def test_lost_events_are_told() -> None:
    assert _only(recorded(INTEL) + "\nLost events: 12\n\n").lost == 12


def test_what_perf_says_about_codes_that_it_does_not_know_is_no_row() -> None:
    text = recorded(INTEL).replace(
        "           MSR_WRITE", "unknown kvm exit code:131072 on VMX\n           MSR_WRITE"
    )
    assert _only(text) == _only(recorded(INTEL))


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ("2.62us ( +-   2.66% )", "", "line 6.*a row or a total"),
        ("  Samples%", "", "line 4.*columns"),
        ("2.62us (", "2.62 fortnights (", "line 6"),
        ("2.62us (", "2,62us (", "line 6"),
        ("520    60.05%", "520    60,05%", "line 6"),
        ("520    60.05%", "52O    60.05%", "line 6"),
        ("520    60.05%", "521    60.05%", "line 14.*867 samples"),
        ("520    60.05%", "520    61.05%", "line 14.*MSR_WRITE"),
        ("10123.40us (", "1012.34us (", "line 14.*take"),
        ("Total Samples:866", "Total Samples:8660", "line 14.*866 samples"),
        ("events handled time:1815367.45us", "events handled time:1us", "line 14"),
        ("Analyze events for", "Anlyze", "line 2"),
    ],
)
def test_a_broken_report_is_an_error_that_names_the_file_and_the_line(
    was: str, now: str, said: str
) -> None:
    text = recorded(INTEL)
    assert was in text
    with pytest.raises(BrokenError, match=rf"report\.txt, {said}"):
        read_reports(text.replace(was, now), "report.txt")


@pytest.mark.parametrize("line", range(2, 14))
def test_a_report_cut_anywhere_is_an_error(line: int) -> None:
    cut = "\n".join(recorded(INTEL).splitlines()[:line])
    with pytest.raises(BrokenError, match=r"report\.txt"):
        read_reports(cut, "report.txt")


@pytest.mark.parametrize("text", ["", "\n", "ELF\x00\x01garbage", "VM-EXIT Samples"])
def test_something_else_is_no_report(text: str) -> None:
    with pytest.raises(BrokenError, match=r"report\.txt"):
        read_reports(text, "report.txt")
