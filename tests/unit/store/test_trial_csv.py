"""Raw trials from elsewhere: read as they stand, or refused with the line and the column."""

from __future__ import annotations

import pytest

from labctl.base.errors import UsageError
from labctl.base.units import Better, Unit
from labctl.report.export import samples
from labctl.store import trial_csv
from labctl.store.samples import Sample, Unavailable
from labctl.store.trial import TrialStatus
from labctl.store.trial_csv import CsvTrials, read_trials

HEADER = "tuning,workload,block,metric,value,unit,better"
ROW = "fifo,cpu,1,real,0.33,s,lower"


def read(*lines: str) -> CsvTrials:
    return read_trials("\n".join(lines).encode(), "x.csv")


def refusal(data: bytes | str) -> tuple[str, str]:
    with pytest.raises(UsageError) as caught:
        read_trials(data.encode() if isinstance(data, str) else data, "x.csv")
    return caught.value.message, caught.value.hint or ""


def test_a_minimal_row_is_a_trial_with_one_sample() -> None:
    ((record, readings),) = read(HEADER, ROW).trials
    assert (record.number, record.block, record.boot, record.status) == (1, 1, 1, TrialStatus.DONE)
    assert record.cell == {"tuning": "fifo", "workload": "cpu"}
    (sample,) = readings
    assert isinstance(sample, Sample)
    assert (sample.metric, sample.value) == ("real", 0.33)
    assert (sample.unit, sample.better) == (Unit.SECONDS, Better.LOWER)


def test_rows_of_one_cell_and_block_are_one_trial_wherever_they_stand() -> None:
    found = read(
        HEADER, ROW, "rr,cpu,1,real,0.3,s,lower", "fifo,cpu,1,ctx_switches,2,count,neither"
    ).trials
    assert [(record.cell["tuning"], len(readings)) for record, readings in found] == [
        ("fifo", 2),
        ("rr", 1),
    ]


def test_labels_conditions_and_what_is_unavailable_are_kept() -> None:
    ((record, readings),) = read(
        f"{HEADER},condition,labels,unavailable",
        "fifo,cpu,1,switches,2,count,neither,10 processes,kind=a;of=b,",
        "fifo,cpu,1,ipc,,,,10 processes,,no PMU",
    ).trials
    assert record.cell["condition"] == "10 processes"
    assert isinstance(readings[0], Sample)
    assert readings[0].key == "switches{kind=a,of=b}"
    assert readings[1] == Unavailable(metric="ipc", reason="no PMU")


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["bare", "byte order mark"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_spreadsheets_write_is_read(mark: str, end: str) -> None:
    text = mark + end.join([HEADER, '"fifo","cpu", 1 ,real,3.3e-1,s,lower', "", ""])
    assert len(read_trials(text.encode(), "x.csv").trials) == 1


def test_a_file_of_a_newer_labctl_is_refused() -> None:
    assert len(read(f"{HEADER},schema", f"{ROW},2").trials) == 1
    message, hint = refusal(f"{HEADER},schema\n{ROW},3")
    assert message == "x.csv:2: column 'schema': 3: a newer labctl wrote this file"
    assert hint == "Update labctl."


def test_what_is_read_is_what_labctl_exports() -> None:
    assert samples.SCHEMA == trial_csv.SCHEMA
    assert set(samples.COLUMNS) <= set(trial_csv.NEEDED + trial_csv.OPTIONAL)


def test_columns_of_others_are_named_and_left_alone() -> None:
    assert read(f"{HEADER},operator", f"{ROW},me").unread == ("operator",)


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ("fifo,cpu,1,real,fast,s,lower", "x.csv:3: column 'value': 'fast' is not a number"),
        ("fifo,cpu,1,real,NaN,s,lower", "x.csv:3: column 'value': 'NaN' is not a measured value"),
        ("fifo,cpu,1,real,-inf,s,lower", "x.csv:3: column 'value': '-inf' is not a measured value"),
        ("fifo,cpu,1,real,1e999,s,lower", "x.csv:3: column 'value': '1e999' is too large"),
        ("fifo,cpu,1,real,1_0,s,lower", "x.csv:3: column 'value': '1_0' is not a number"),
        ('fifo,cpu,1,real,"0,33",s,lower', "x.csv:3: column 'value': '0,33' is not a number"),
        ("fifo,cpu,1,real,,s,lower", "x.csv:3: column 'value': is empty"),
        ("fifo,cpu,1,real,1,ms,lower", "x.csv:3: column 'unit': no unit 'ms'"),
        ("fifo,cpu,1,real,1,b/s,lower", "x.csv:3: column 'unit': no unit 'b/s'"),
        ("fifo,cpu,1,real,1,[x],lower", "x.csv:3: column 'unit': no unit '[x]'"),
        ("fifo,cpu,1,real,1,s,smaller", "x.csv:3: column 'better': no better 'smaller'"),
        (
            "fifo,cpu,one,real,1,s,lower",
            "x.csv:3: column 'block': expected a whole number ≥ 0, got 'one'",
        ),
        (
            "fifo,cpu,-1,real,1,s,lower",
            "x.csv:3: column 'block': expected a whole number ≥ 0, got '-1'",
        ),
        (",cpu,1,real,1,s,lower", "x.csv:3: column 'tuning': is empty"),
        ("a\x1b[1mb,cpu,1,real,1,s,lower", "x.csv:3: column 'tuning': has a control character"),
        ('fifo,"c\npu",1,real,1,s,lower', "x.csv:4: column 'workload': has a control"),
        (f"{'x' * 151},cpu,1,real,1,s,lower", "x.csv:3: column 'tuning': has 151 characters"),
        ("fifo,cpu,1,a{b=c},1,s,lower", "x.csv:3: column 'metric': 'a{b=c}' includes labels"),
        (ROW, "x.csv:3: column 'metric': real of this trial appears twice (also in line 2)"),
        ("fifo,cpu,2,real,1,us,lower", "x.csv:3: column 'unit': real has 'us' here, but 's'"),
        ("fifo,cpu,2,real,1,s,higher", "x.csv:3: column 'better': real has 'higher' here, but"),
        ("fifo,cpu,1,real,1,s", "x.csv:3: expected 7 fields, got 6"),
        ('fifo,cpu,1,real,1,s,"low', "x.csv:3: is not CSV"),
    ],
)
def test_a_broken_row_is_refused_with_its_line_and_column(row: str, place: str) -> None:
    message, _ = refusal(f"{HEADER}\n{ROW}\n{row}")
    assert message.startswith(place)


@pytest.mark.parametrize(
    ("header", "message", "hint"),
    [
        ("tuning,workload,block,metric,value,unit", "column 'better': is missing", "better"),
        (
            "tuning,workload,blocks,metric,value,unit,better",
            "column 'block': is missing",
            "Is it 'blocks'?",
        ),
        (f"{HEADER},lables", "column 'lables': no such column", "Did you mean 'labels'?"),
        (f"{HEADER},block", "column 'block': appears twice", ""),
        (
            HEADER.replace(",", ";"),
            "expected commas between columns, got ';'",
            "decimals with a point",
        ),
        (HEADER.replace(",", "\t"), "expected commas between columns, got tabs", "commas"),
    ],
)
def test_a_wrong_header_is_refused(header: str, message: str, hint: str) -> None:
    found, remedy = refusal(f"{header}\n{ROW}")
    assert found.startswith("x.csv:1: ")
    assert message in found
    assert hint in remedy


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "x.csv: is empty"),
        (b" \n\n", "x.csv: is empty"),
        (HEADER.encode(), "x.csv: has a header but no rows"),
        (f"{HEADER}\n{ROW}".encode("utf-16"), "x.csv: is UTF-16 text"),
        (
            f"{HEADER}\n{ROW}\n".encode() + b"\xe9t\xe9,cpu",
            "x.csv:3: is not UTF-8 text (byte 0xe9)",
        ),
    ],
)
def test_what_is_no_such_file_is_refused(data: bytes, message: str) -> None:
    found, hint = refusal(data)
    assert found == message
    assert hint


def test_a_unit_of_others_comes_with_its_conversion() -> None:
    for unit, remedy in (("ms", "Divide by 1000"), ("%", "Divide by 100")):
        assert remedy in refusal(f"{HEADER}\nfifo,cpu,1,real,1,{unit},lower")[1]


def test_two_trials_of_one_cell_and_block_are_refused() -> None:
    message, hint = refusal(f"trial,{HEADER}\n1,{ROW}\n2,{ROW}")
    assert message.startswith("x.csv:3: column 'trial': trial 2 has the same tuning")
    assert "'block'" in hint


def test_a_trial_cannot_be_of_two_tunings() -> None:
    message, _ = refusal(f"trial,{HEADER}\n1,{ROW}\n1,rr,cpu,1,switches,1,s,lower")
    assert message.startswith("x.csv:3: column 'trial': trial 1 differs from line 2")
