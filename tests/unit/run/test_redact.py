"""A run that is passed on names no host, user or VM, and is read as the run is."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from labctl.base.errors import BrokenError, UsageError
from labctl.base.paths import StatePaths
from labctl.cli.main import cli
from labctl.host.facts import is_no_name, read_users
from labctl.host.lock import host_locked
from labctl.run.commands import export as module
from labctl.run.commands import export as redacting
from labctl.run.commands.export import Identity, Redacted, export, redact
from labctl.run.commands.scrub import Scrubber
from labctl.run.commands.verify import verify
from labctl.run.planning.plan import Begun
from labctl.run.trials.parse import reparse
from labctl.store.jsonfile import canonical
from labctl.store.run_folder import RunFolder
from labctl.store.trial import TrialFolder
from tests.unit.example import EXAMPLE
from tests.unit.records import write_plan, write_run_json
from tests.unit.store.test_fitting_plan import TUNINGS, planned, ran

SECRETS = {
    "bastion-db7.corp.example.net": "host-name",
    "bastion-db7": "host-name",
    "jörg.mustermann": "user",
    "Jörg O'Mustermann": "user",
    "ann": "user",
    "S5GXNF0R123456": "serial",
    "9b2f5c3ee3f74d7c8a6fd1c2b3a49e77": "machine-id",
    "fe80::5054:ff:fe12:3456": "address",
    "203.0.113.77": "address",
}
PATHS = {"/srv/lab & co/results": "/var/lib/labctl/results", "/home/ann": "/root"}
IDENTITY = Identity(SECRETS, PATHS)

BY_FORM = (
    "52:54:00:ab:cd:ef",
    "00-1A-2B-3C-4D-5E",
    "petra.meier@corp.example",
    "root@db01.corp",
    "4cb54d0d-fd38-518a-9ecf-b07240e1e3ee",
    "/mnt/customers/acme/disk.qcow2",
    "/data/My VMs/acme server.img",
    "/home/petra/study.yaml",
    "2a02:8108:1:2::77",
    "10.23.45.67",
    "eui.0025385b71b0a1c2",
    "SHA256:" + "qW9d" * 10 + "abc",
    "https://petra:geheim@git.acme.example:8443/team/x.git",
    "52540012ab34",
    "5254.0012.ab34",
    "0x5000c500a1b2c3d4",
    "5000c500a1b2c3d4",
    r"C:\Users\petra\My VMs\acme.vhdx",
    r"\\filer01\vms$\acme.vhdx",
    r"\\filer01\acme-vms",
    "iqn.2001-04.example.acme:storage.disk2",
    "https://github.com/acme-internal/vms",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0xq1Zz1234567 petra@laptop",
)
"""Of another host, whose names nobody knows here."""


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Two trials with digests; the plan has its own."""
    folder = RunFolder.create(tmp_path, "run")
    write_run_json(folder, {"status": "done", "command": "labctl sweep pin --seed 1", "notes": []})
    trials = [planned(1, 1), planned(2, 2)]
    plan = {"tunings": TUNINGS, "title": "?", "trials": trials}
    digest = hashlib.sha256(canonical(plan).encode()).hexdigest()
    write_plan(folder, {"schema": 1, "digest": digest, **plan})
    for trial in trials:
        ran(folder, trial)
    return folder


def redigested(trial: TrialFolder) -> None:
    trial.write_record(replace(trial.read_record(), digests=trial.digests()))


def copied(run: RunFolder, identity: Identity = IDENTITY) -> tuple[RunFolder, Redacted]:
    target = run.path.parent / "copy"
    done = redact(run, target, identity)
    return RunFolder(target), done


def everything(folder: RunFolder) -> str:
    paths = sorted(folder.path.rglob("*"))
    names = "\n".join(str(path.relative_to(folder.path)) for path in paths)
    return names + "".join(path.read_text() for path in paths if path.is_file())


WRITERS: dict[str, Callable[[RunFolder, str], None]] = {}


def writer(write: Callable[[RunFolder, str], None]) -> Callable[[RunFolder, str], None]:
    WRITERS[write.__name__] = write
    return write


@writer
def in_a_tools_output(run: RunFolder, text: str) -> None:
    run.trial(1).write_raw("stdout.txt", f"on {text}: done\nby ({text})\n{text}\n")


@writer
def in_the_file_name_of_a_tools_output(run: RunFolder, text: str) -> None:
    run.trial(1).write_raw(f"files/{text.replace('/', '_')}.txt", "")


@writer
def within_lines_in_json(run: RunFolder, text: str) -> None:
    """Where the bytes before it are those of an escape."""
    run.trial(1).write_raw_json("host.json", {"before": f"cpu 1\n{text}\n\t{text}", text: 1})


@writer
def escaped_in_json(run: RunFolder, text: str) -> None:
    escaped = json.dumps({"host": text}).replace("/", r"\/")
    run.trial(1).write_raw("files/tool.json", escaped)


@writer
def as_a_json_string(run: RunFolder, text: str) -> None:
    run.trial(1).write_raw_json("runner.json", [text, {"of": f"{text}"}])


@writer
def in_xml(run: RunFolder, text: str) -> None:
    from xml.sax.saxutils import escape, quoteattr

    (run.path / "xml").mkdir(exist_ok=True)
    xml = f"<source file={quoteattr(text)}/><name>{escape(text)}</name>"
    (run.path / "xml/baseline.xml").write_text(xml)
    run.trial(2).write_raw("live.xml", xml.replace('"', "'") if "'" not in text else xml)


@writer
def in_run_json(run: RunFolder, text: str) -> None:
    write_run_json(
        run, {**run.read_run().to_json(), "command": f"labctl sweep {text}", "notes": [text]}
    )


@writer
def in_the_plan(run: RunFolder, text: str) -> None:
    plan = {k: v for k, v in run.read_plan().to_json().items() if k not in ("schema", "digest")}
    plan["title"] = f"What does {text} do?"
    digest = hashlib.sha256(canonical(plan).encode()).hexdigest()
    write_plan(run, {"schema": 1, "digest": digest, **plan})


@writer
def in_reasons_and_samples(run: RunFolder, text: str) -> None:
    trial = run.trial(2)
    trial.write_raw_json(
        "samples.json",
        {"schema": 1, "samples": [], "unavailable": [{"metric": "ipc", "reason": f"no {text}"}]},
    )
    trial.write_record(replace(trial.read_record(), reasons=(f"'{text}' is gone",)))


@pytest.mark.parametrize("where", WRITERS)
@pytest.mark.parametrize("secret", [*SECRETS, *BY_FORM, *PATHS])
def test_nothing_that_identifies_is_left_wherever_it_stands(
    run: RunFolder, where: str, secret: str
) -> None:
    WRITERS[where](run, secret)
    for number in (1, 2):
        redigested(run.trial(number))
    before = run.load()
    copy, done = copied(run)
    left = everything(copy)
    assert secret not in left
    assert re.search(rf"(?<!\w){re.escape(json.dumps(secret)[1:-1])}(?!\w)", left) is None
    assert done.left_out == {}
    assert where == "in_the_file_name_of_a_tools_output" or sum(done.taken_out.values())
    after = copy.load()
    assert (after.problems, len(after.trials)) == (before.problems, len(before.trials)) == ((), 2)
    assert verify(copy).differences == ()


@pytest.mark.parametrize("seed", range(4))
def test_secrets_at_any_place_of_a_real_run_are_taken_out(tmp_path: Path, seed: int) -> None:
    """Texts of a real run, altered at random: strings of its JSON, its XML and its outputs."""
    chance = random.Random(seed)
    run = small_example(tmp_path)
    secrets = [*SECRETS, *BY_FORM]
    for path in sorted(run.path.rglob("*")):
        if not path.is_file() or path.name in ("plan.json", "trial.json"):
            continue
        text = path.read_text()
        if path.suffix == ".json":
            planted = altered(json.loads(text), chance, secrets)
            path.write_text(json.dumps(planted, ensure_ascii=chance.random() < 0.5))
        else:
            place = text.find("\n", chance.randrange(len(text) + 1)) + 1
            path.write_text(f"{text[:place]}{chance.choice(secrets)}\n{text[place:]}")
    copy, _ = copied(run)
    left = everything(copy)
    assert [secret for secret in secrets if len(secret) > 3 and secret in left] == []
    assert re.search(r"(?<![a-z])ann(?![a-z])", left) is None
    assert len(copy.load().trials) == len(run.load().trials)


def small_example(tmp_path: Path) -> RunFolder:
    target = tmp_path / "example"
    shutil.copytree(
        EXAMPLE,
        target,
        ignore=lambda folder, names: (
            [n for n in names if n[-1] not in "13"]
            if folder.endswith("trials")
            else ["report.html"]
        ),
    )
    for number in (*range(11, 200, 10), *range(13, 200, 10)):
        shutil.rmtree(target / f"trials/{number:04d}", ignore_errors=True)
    return RunFolder(target)


def altered(value: Any, chance: random.Random, secrets: list[str]) -> Any:
    """With secrets in some of the texts that no reader needs."""
    if isinstance(value, dict):
        return {key: altered(item, chance, secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [altered(item, chance, secrets) for item in value]
    is_free = isinstance(value, str) and "\n" in value
    if is_free and chance.random() < 0.3:
        return f"{value}\n{chance.choice(secrets)}\n"
    return value


def test_the_same_text_has_the_same_placeholder_everywhere(run: RunFolder) -> None:
    run.trial(1).write_raw("stdout.txt", "bastion-db7 and BASTION-DB7\n")
    run.trial(2).write_raw("stdout.txt", "bastion-db7.corp.example.net on bastion-db7\n")
    copy, _ = copied(run)
    first, second = (copy.trial(n).read_text("stdout.txt").split() for n in (1, 2))
    assert first[0] == first[2] == second[2] != second[0]


def test_what_every_host_has_stays_as_it_is(run: RunFolder) -> None:
    text = (
        "/usr/bin/qemu-system-x86_64 /sys/devices/system/cpu/cpu0 /dev/vda 0-1 127.0.0.1 12:34:56 "
        "MB/s </name> https://www.kernel.org/doc/x.rst 0000:00:1f.3 7.2.22 "
        f"/var/lib/labctl/data/data.img {'ab' * 32} foo::bar 1/2 (read/write)\n"
    )
    run.trial(1).write_raw("stdout.txt", text)
    copy, _ = copied(run)
    assert copy.trial(1).read_text("stdout.txt") == text


def test_numbers_stay_numbers_though_a_serial_is_one(run: RunFolder) -> None:
    run.trial(1).write_raw("host.json", '{"a": 1234567, "b": 1.50, "c": "1234567"}')
    copy, _ = copied(run, Identity({"1234567": "serial"}, {}))
    assert copy.trial(1).read_text("host.json") == '{"a": 1234567, "b": 1.50, "c": "serial-1"}'


def test_recordings_are_left_out_and_named_and_the_digests_say_so(run: RunFolder) -> None:
    run.trial(1).write_raw("trace/perf.data", b"PERFILE2\0\xff bastion-db7")
    redigested(run.trial(1))
    copy, done = copied(run)
    assert done.left_out == {"trials/0001/trace/perf.data": "it is not text"}
    record = copy.trial(1).read_record()
    assert record.redacted is not None
    assert record.redacted.left_out == ("trace/perf.data",)
    found = verify(copy)
    assert found.differences == ()
    assert any("redacted copy" in note and "1 file" in note for note in found.notes)


def test_a_redacted_trial_without_its_recordings_keeps_its_samples(run: RunFolder) -> None:
    run.trial(1).write_raw("trace/perf.data", b"PERFILE2\0\xff")
    copy, _ = copied(run)
    before = copy.trial(1).read_text("samples.json")
    assert any("redacted copy" in problem for problem in reparse(copy)[1])
    assert copy.trial(1).read_text("samples.json") == before


def test_what_was_edited_before_is_found_edited_in_the_copy(run: RunFolder) -> None:
    run.trial(1).write_raw("stdout.txt", "better on bastion-db7\n")
    run.trial(1).write_raw("new.txt", "")
    run.trial(2).write_raw("samples.json", '{"samples": [], "unavailable": []}')
    copy, _ = copied(run)
    named = {(one.trial, one.file, one.what) for one in verify(copy).differences}
    assert ("0001", "stdout.txt", "was changed") in named
    assert ("0001", "new.txt", "did not exist at the end of the trial") in named
    assert len(copy.load().trials) == len(run.load().trials) == 1


def test_a_plan_that_was_edited_is_found_edited_in_the_copy(run: RunFolder) -> None:
    write_plan(run, {**run.read_plan().to_json(), "title": "of bastion-db7"})
    copy, _ = copied(run)
    assert any("was changed after it was made" in text for text in copy.load().problems)


def test_links_are_not_followed(run: RunFolder) -> None:
    (run.path / "xml").mkdir()
    (run.path / "xml/x.xml").symlink_to("/etc/passwd")
    os.mkfifo(run.trial(1).path / "pipe")
    copy, done = copied(run)
    assert set(done.left_out) == {"xml/x.xml", "trials/0001/pipe"}
    assert not (copy.path / "xml/x.xml").exists()


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("system-info:\n      hostname: acme-web\n      nodename: acme-web\n", "acme-web"),
        ("Linux acme-web 6.1.0-18-amd64 #1 SMP\n", "acme-web"),
        ("\nacme-web login: \n", "acme-web"),
        ("# hostname : acme-web\n", "acme-web"),
        ("      run-by: petra\n", "petra"),
        ("<domain><name>acme-web</name><title>Acme Ltd</title>", "Acme Ltd"),
        ("<serial>ACME-000-1</serial>", "ACME-000-1"),
        ("<entry name='serial'>ZX81-77</entry>", "ZX81-77"),
        ("systemd[1]: Hostname set to <acme-web>.", "acme-web"),
        ("<cmdline>root=LABEL=acme-root ip=dhcp rw</cmdline>", "acme-root"),
        ("rd.lvm.lv=acme/root quiet", "acme/root"),
        ("<source network='acme-net' portgroup='x'/>", "acme-net"),
        ('<source bridge="br-acme"/>', "br-acme"),
        ("<source pool='acme-pool' volume='root'/>", "acme-pool"),
        ("<host name='ceph1.acme.example' port='6789'/>", "ceph1.acme.example"),
        ("<auth username='acme-admin'>", "acme-admin"),
        ("<source dev='uplink7' mode='bridge'/>", "uplink7"),
        ("4: br-acme: <BROADCAST,UP> mtu 1500", "br-acme"),
        ("7: vnet3: <BROADCAST,UP> mtu 1500 master br-acme state UP", "br-acme"),
        ("  br-acme: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16", "br-acme"),
        ("/sys/class/net/br-acme/operstate: up", "br-acme"),
        ("<target dev='tap-acme'/>", "tap-acme"),
        ("petra:x:1000:1000:Petra Meier,,,:/home/petra:/bin/bash", "Petra Meier"),
        ("acme-lab:x:1007:petra", "acme-lab"),
        ("-netdev bridge,br=br-acme,id=n0", "br-acme"),
        ("uid=1000(petra) gid=1000(petra) groups=1000(petra),1007(acme-lab)", "acme-lab"),
        ("link/ether 9c:b6:54:12:ab:34 brd", "9cb65412ab34"),
        ("link/ether 9c:b6:54:12:ab:34 brd", "9cb6.5412.ab34"),
    ],
)
def test_names_that_only_the_run_knows_are_taken_out(
    run: RunFolder, text: str, secret: str
) -> None:
    run.trial(1).write_raw("console.txt", text)
    run.trial(2).write_raw_json("neighbour.json", {"hog.yaml": f"---\n{text}"})
    run.trial(2).write_raw("stderr.txt", f"{secret} again\n")
    copy, _ = copied(run)
    for name, number in (("console.txt", 1), ("neighbour.json", 2), ("stderr.txt", 2)):
        assert secret not in copy.trial(number).read_text(name)


@pytest.mark.parametrize(
    "text",
    [
        "DB_PASSWORD=geheim7\n",
        'password: "geheim7"\n',
        "curl --password geheim7 x\n",
        "export AWS_SECRET_ACCESS_KEY=geheim7;\n",
        "auth-token = geheim7\n",
        "Authorization: Bearer geheim7geheim7geheim7\n",
        "<graphics type='vnc' passwd='geheim7'/>\n",
        '{"api_key": "geheim7"}\n',
    ],
)
def test_the_values_of_secrets_are_taken_out(run: RunFolder, text: str) -> None:
    run.trial(1).write_raw("stdout.txt", text)
    run.trial(2).write_raw_json("tool.json", {"said": text, "db-password": "geheim7"})
    copy, _ = copied(run)
    assert "geheim7" not in everything(copy)


@pytest.mark.parametrize(
    "text",
    [
        "https://www.kernel.org/doc/html/latest/x.html and http://libvirt.org/schemas/domain",
        "debian-13-d397e91cb6fa calibration-3ede8c1b7c38e938.json ab12cd34ef56",
        "0x5555555555555555 0xffffffff81000000 7f8a12345678 ffffffff81a3b5c7 0x7ffd5e8a1000",
        "tc: tokens 1999 ctokens 1999; sent 5254.0012 of 5254.5; 1.2.3 5254.1234",
        "1:02.5:30 10:20:30 a:\\n x:\\tb C: done D:12 E:/x? 3:\\4",
        "tap0 vnet3 enp3s0f1np1 eth0 virbr0 br0 bond0 docker0 lo",
        "2: enp3s0: <BROADCAST> mtu 1500 master br0 state UP; uid=0(root) groups=0(root),104(kvm)",
        "<target dev='vda' bus='virtio'/> <target dev='nvme0n1'/> eth0: 1 2 3 4 5 6 7 8 9 10 11 12",
        "  TIMER: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n  TIMER",
        "cpu0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\ncpu0 said a\\\\nb\\\\tc",
        "lat: 5,1500(usec) 10,2000(usec), 1000(usec) and usec",
        "secret,id=masterKey0,format=raw qom-type=secret token bucket; the password",
        "5000 events, 5001234567890123 cycles, 525400123456 ns, 0.5001234567890123",
    ],
)
def test_what_only_looks_like_a_name_or_a_number_of_a_disk_stays(run: RunFolder, text: str) -> None:
    run.trial(1).write_raw("stdout.txt", f"{text}\n")
    copy, _ = copied(run)
    assert copy.trial(1).read_text("stdout.txt") == f"{text}\n"


def test_a_report_of_the_copy_says_what_one_of_the_run_says(tmp_path: Path) -> None:
    """All numbers, verdicts and sentences, but for the one that says that it is a copy."""
    run = small_example(tmp_path)
    copy = RunFolder(tmp_path / "there" / run.name)
    redact(run, copy.path, IDENTITY)
    printed = [
        CliRunner().invoke(cli, ["report", f"{folder.path}", "--json"], catch_exceptions=False)
        for folder in (run, copy)
    ]
    before, after = (json.loads(done.output) for done in printed)
    assert before.keys() == after.keys()
    assert {key for key in before if before[key] != after[key]} == {"warnings"}
    of_runs = [text for text in after["warnings"] if not text.startswith("Redacted copy")]
    assert of_runs == before["warnings"]


@pytest.mark.parametrize(
    "text",
    [
        "  run-by: root\n  hostname: vm\n  nodename: vm\n",
        "Linux vm 6.1.0-18-amd64 #1 SMP\n",
        "vm login: \n",
        "serial_number = 7\n",
    ],
)
def test_a_commonplace_name_goes_where_it_is_said_to_be_one(run: RunFolder, text: str) -> None:
    run.trial(1).write_raw("stdout.txt", f"{text}the vm of root: 7\n")
    run.trial(2).write_raw_json("tool.json", {"hostname": "vm", "said": f"x\n{text}", "n": 7})
    copy, _ = copied(run)
    first, second = copy.trial(1).read_text("stdout.txt"), copy.trial(2).read_json("tool.json")
    assert first.endswith("the vm of root: 7\n")
    for said in (first.splitlines()[:-1], second["said"].splitlines(), [second["hostname"]]):
        assert re.search(r"\b(vm|root|7)\b", "\n".join(said)) is None
    assert second["n"] == 7


def test_the_samples_that_a_copy_parses_are_those_of_the_run(tmp_path: Path) -> None:
    run = small_example(tmp_path)
    copy, _ = copied(run)
    assert reparse(copy) == reparse(run)
    pairs = zip(run.load().trials, copy.load().trials, strict=True)
    assert all(list(one.readings) == list(other.readings) for one, other in pairs)


def test_nobody_goes_on_with_a_redacted_copy(tmp_path: Path) -> None:
    copy, _ = copied(small_example(tmp_path))
    with pytest.raises(UsageError, match="is a redacted copy"):
        Begun.read(copy)


def test_the_name_of_ones_own_vm_is_taken_out(run: RunFolder) -> None:
    write_run_json(
        run,
        {
            **run.read_run().to_json(),
            "domain": {"name": "acme", "asked": "acme", "digest": "a" * 64},
        },
    )
    run.trial(1).write_raw("stdout.txt", "acme runs\n")
    copy, _ = copied(run)
    assert "acme" not in everything(copy)


def test_a_name_that_is_a_word_of_the_run_stays_and_is_named(run: RunFolder) -> None:
    copy, done = copied(run, Identity({"baseline": "user"}, {}))
    assert done.kept == {"baseline": "user"}
    assert copy.load().trials[0].record.cell["tuning"] == "baseline"


def test_a_copy_that_still_holds_something_is_none(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check looks for what was to go by other means than those that take it out."""
    run.trial(1).write_raw("stdout.txt", "bastion-db7\n")
    monkeypatch.setattr(Scrubber, "_text", lambda self, data: data)
    monkeypatch.setattr(module, "host_identity", lambda folder, places: IDENTITY)
    target = run.path.parent / "out"
    with pytest.raises(BrokenError, match=r"still holds 'bastion-db7' \(host-name\) in the text"):
        export(run, target, StatePaths(run.path.parent), redacting=True)
    assert sorted(path.name for path in run.path.parent.iterdir()) == ["run"]


def test_a_copy_that_reads_otherwise_is_none(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redacting, "_vocabulary", lambda plan: set())
    identity = Identity({"status": "user"}, {})
    with pytest.raises(BrokenError, match="differs from the run: 0 trials instead of 2"):
        redact(run, run.path.parent / "copy", identity)


def test_a_run_that_is_measured_is_not_copied(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "lock/host.lock"
    monkeypatch.setattr("labctl.base.paths.host_lock", lambda: lock)
    words = ["run", "export", f"{run.path}", "--out", f"{tmp_path / 'x'}"]
    with host_locked(lock, what="labctl sweep", run_folder=run.path):
        refused = CliRunner().invoke(cli, words)
    assert "is being measured" in str(refused.exception)
    assert not (tmp_path / "x").exists()


def test_a_run_that_was_killed_is_copied(run: RunFolder) -> None:
    """Its record says that it goes on."""
    write_run_json(run, {**run.read_run().to_json(), "status": "running"})
    copy, _ = copied(run)
    assert copy.read_run().to_json()["status"] == "running"


def test_a_redacted_copy_may_be_redacted_once_more(run: RunFolder) -> None:
    run.trial(1).write_raw("stdout.txt", " ".join((*SECRETS, *BY_FORM)))
    redigested(run.trial(1))
    copy, _ = copied(run)
    again = redact(copy, run.path.parent / "again", IDENTITY)
    assert again.left_out == {}
    assert verify(RunFolder(run.path.parent / "again")).differences == ()


def test_the_report_of_a_redacted_run_says_that_it_is_one(tmp_path: Path) -> None:
    copy, _ = copied(small_example(tmp_path))
    for words in (["report", f"{copy.path}"], ["report", f"{copy.path}", "--json"]):
        printed = CliRunner().invoke(cli, words, catch_exceptions=False).output
        assert "Redacted copy" in printed


def test_other_commands_read_the_copy(tmp_path: Path) -> None:
    run = small_example(tmp_path)
    copy, _ = copied(run)
    for words in (
        ["compare", f"{run.path}", f"{copy.path}"],
        ["run", "verify", f"{copy.path}"],
        ["run", "show", f"{copy.path}"],
        ["advise", f"{copy.path}"],
        ["report", f"{copy.path}", "--csv"],
    ):
        done = CliRunner().invoke(cli, words, catch_exceptions=False)
        assert done.exit_code in (0, 1), done.output


@pytest.mark.parametrize("more", [[], ["--redact"]])
def test_the_command_packs_a_run_that_is_read_where_it_is_unpacked(
    run: RunFolder, tmp_path: Path, more: list[str]
) -> None:
    run.trial(1).write_raw("trace/perf.data", b"PERFILE2\0")
    redigested(run.trial(1))
    target = tmp_path / "run.tar.xz"
    words = ["run", "export", f"{run.path}", "--out", f"{target}", "--json", *more]
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    said = json.loads(done.output)
    assert said["redacted"] is bool(more)
    with tarfile.open(target) as tar:
        assert {(entry.uid, entry.uname, entry.mtime) for entry in tar} == {(0, "", 0)}
    shutil.unpack_archive(target, tmp_path / "there")
    there = RunFolder(tmp_path / "there" / "run")
    assert verify(there).differences == ()
    assert len(there.load().trials) == 2
    assert (there.trial(1).path / "trace/perf.data").exists() is not bool(more)


def test_words_that_only_the_caller_knows_are_taken_out_too(run: RunFolder, tmp_path: Path) -> None:
    run.trial(1).write_raw("stdout.txt", "process of Müller & Co's billing, müller & co\n")
    run.trial(2).write_raw_json("tool.json", {"title": "M\u00fcller & Co", "n": 7})
    words = ["run", "export", f"{run.path}", "--out", f"{tmp_path / 'x'}", "--hide", "Müller & Co"]
    refused = CliRunner().invoke(cli, words)
    assert "'--hide' needs '--redact'" in str(refused.exception)
    CliRunner().invoke(cli, [*words, "--hide", "billing", "--redact"], catch_exceptions=False)
    left = everything(RunFolder(tmp_path / "x"))
    assert not re.search("müller|billing", left, re.IGNORECASE)
    assert "word-1" in left


@pytest.mark.parametrize("text", ["", " ", "a", "12345", "0.25"])
def test_no_number_and_no_letter_is_hidden(run: RunFolder, tmp_path: Path, text: str) -> None:
    words = ["run", "export", f"{run.path}", "--out", f"{tmp_path / 'x'}", "--redact"]
    refused = CliRunner().invoke(cli, [*words, "--hide", text])
    assert "may also match measurements" in str(refused.exception)
    assert not (tmp_path / "x").exists()


def test_nothing_is_written_over(run: RunFolder) -> None:
    with pytest.raises(UsageError, match="already exists"):
        export(run, run.path, StatePaths(run.path.parent), redacting=True)


def test_people_of_the_host_are_known_and_nobodys_names_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SUDO_USER", "petra")
    monkeypatch.setenv("LOGNAME", "runner")
    found = read_users()
    assert found["petra"] == "user"
    assert not {"runner", "root", "nobody"} & found.keys()
    assert is_no_name("ab")
