"""The tables were posted on public kernel lists and pages, from hosts with hardware KVM: the first
ones of perf (3.7) in its commit messages, RISC-V's and LoongArch's in theirs."""

import pytest

from labctl.base.errors import BrokenError
from labctl.collect.exits.perf import VM_EXITS, Report, read_reports
from tests.unit.collect.trials import recorded

INTEL = "perf-kvm-stat-intel-report-866-samples.txt"
ARM = "perf-kvm-stat-arm64-report-669155-samples.txt"
LIVE = "perf-kvm-stat-intel-live-two-frames.txt"
NONE = "perf-kvm-stat-no-samples.txt"
AMD = "perf-kvm-stat-amd-679918-samples.txt"
OLD = "perf-kvm-stat-3.7-intel-98202-samples.txt"
OLD_ACCESSES = "perf-kvm-stat-3.7-mmio-and-ioport.txt"
RISCV = "perf-kvm-stat-riscv-browser.txt"
LOONGARCH = "perf-kvm-stat-loongarch-browser.txt"


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


def test_amd_s_names_are_read_as_well() -> None:
    report = _only(recorded(AMD))
    assert [reason.name for reason in report.reasons[:3]] == ["interrupt", "msr", "vintr"]
    assert report.time_ns == pytest.approx(481_784_640)


def test_a_perf_without_shortest_and_longest_times_is_read_as_well() -> None:
    report = _only(recorded(OLD))
    assert (report.of, report.samples) == ("all VCPUs", 98202)
    halts = next(reason for reason in report.reasons if reason.name == "HLT")
    assert (halts.samples, halts.min_ns, halts.max_ns) == (4496, None, None)
    assert halts.average_ns == pytest.approx(8_360_340)


def test_what_a_table_counts_is_told() -> None:
    assert _only(recorded(AMD)).what == VM_EXITS
    mmio, ports = read_reports(recorded(OLD_ACCESSES), "report.txt")
    assert (mmio.what, ports.what) == ("MMIO Access", "IO Port Access")
    assert [reason.name for reason in ports.reasons] == ["0xc090:POUT"]


@pytest.mark.parametrize(
    ("name", "first", "samples", "time_ns", "average_ns", "longest_ns"),
    [
        (RISCV, "STORE_GUEST_PAGE_FAULT", 49669, 4_929_713_800, 74274, 3_361_400),
        (LOONGARCH, "Memory store", 146_745, 6_005_011_490, 8590, None),
    ],
)
def test_a_browser_s_table_is_read_by_its_columns(
    name: str, first: str, samples: int, time_ns: int, average_ns: int, longest_ns: int | None
) -> None:
    report = _only(recorded(name))
    assert (report.samples, report.time_ns) == (samples, time_ns)
    assert report.reasons[0].name == first
    # perf cuts its averages to whole nanoseconds.
    assert int(report.reasons[0].average_ns) == pytest.approx(average_ns, abs=1)
    assert report.reasons[0].max_ns == longest_ns


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("26968     54.00%", "26968     55.00%"),
        ("26968     54.00%", "26968     nan%"),
        ("17645     35.00%", "1764x     35.00%"),
        ("HYPERVISOR_SYSCALL         21", "HYPERVISOR_SYSCALL         0"),
        ("2003031800", "-2003031800"),
        ("2003031800", "9" * 400),
        ("Sample%", "Share"),
        ("Time (ns)     Time%", "Time%"),
    ],
)
def test_a_broken_browser_s_table_is_an_error_that_names_the_line(was: str, now: str) -> None:
    text = recorded(RISCV)
    assert was in text
    with pytest.raises(BrokenError, match=r"report\.txt, line \d"):
        read_reports(text.replace(was, now), "report.txt")


@pytest.mark.parametrize("lines", [1, 2, 3])
def test_a_browser_s_table_that_lacks_much_is_an_error(lines: int) -> None:
    cut = "\n".join(recorded(RISCV).splitlines()[:lines])
    with pytest.raises(BrokenError, match=r"report\.txt"):
        read_reports(cut, "report.txt")


def test_shares_and_deviations_of_no_time_may_be_no_numbers() -> None:
    text = recorded(NONE).replace(
        "Total Samples:0",
        "  WFx  2  100.00%  -nan%  0.00us  0.00us  0.00us ( +-   -nan% )\n\nTotal Samples:2",
    )
    (reason,) = _only(text).reasons
    assert (reason.samples, reason.time_share, reason.time_ns) == (2, None, 0)


def test_live_clears_the_screen_before_each_table() -> None:
    frames = recorded(LIVE).split("\n\n\n")
    text = "\x1b[H\x1b[2J\n".join(["", *frames])
    assert read_reports(text, "live.txt") == read_reports(recorded(LIVE), "live.txt")


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
