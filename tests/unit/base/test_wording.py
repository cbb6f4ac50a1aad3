from __future__ import annotations

from labctl.base.metrics.table import METRICS
from labctl.base.wording import counted, metric_title, printable


def test_metrics_are_named_in_words() -> None:
    assert metric_title("latency_p95") == "p95 latency"
    assert metric_title("latency_p95{op=read}", closed_loop=True) == (
        "closed-loop p95 latency (read)"
    )
    assert metric_title("iops", closed_loop=True) == "IOPS"
    assert metric_title("open_latency_mean") == "open-loop mean latency"
    assert metric_title("events_per_s") == "events/s"
    assert metric_title("host_cpu{thread=vcpu}") == "host CPU (vcpu)"
    assert metric_title("ctx_switches{kind=voluntary,of=workload}") == (
        "context switches (voluntary, workload)"
    )


def test_two_metrics_never_share_a_name_and_a_number_says_of_what_it_is() -> None:
    assert metric_title("exits{reason=HLT}") == "VM exits (HLT)"
    assert metric_title("exits_per_op{reason=HLT}") == "VM exits per operation (HLT)"
    assert metric_title("exit_time{vcpu=0}") == "time in VM exits (vCPU 0)"
    titles = [metric_title(row.name) for row in METRICS]
    assert sorted(set(titles)) == sorted(titles)


def test_what_drives_a_terminal_or_reorders_text_is_replaced() -> None:
    assert printable("a\x1b[31mb\u202ec\x00\r\nd\te") == "a�[31mb�c��\nd\te"


def test_counts_of_things_have_their_plural() -> None:
    assert (counted(1, "boot"), counted(2, "boot")) == ("1 boot", "2 boots")
