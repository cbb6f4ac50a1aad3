"""What stays over a reboot: files of /etc, and domains as libvirt has them defined."""

from __future__ import annotations

import stat
from functools import partial
from pathlib import Path

import pytest

from labctl.host.settings import permanent
from labctl.host.settings.journal import Journal, KnobChange, rebuild
from labctl.host.settings.journal_file import UndoOutcome
from labctl.host.settings.permanent import ConfigFile, DomainDefinition, content
from labctl.host.settings.tunables import ABSENT, Tunable


class Tools:
    """Take the calls of tools; a virsh knows one domain."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.defined = "<domain/>"

    def __call__(self, *argv: str) -> str:
        self.calls.append(argv)
        if "define" in argv:
            self.defined = Path(argv[-1]).read_text()
        return self.defined + "\n"


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Tools:
    made = Tools()
    monkeypatch.setattr(permanent, "_tool", made)
    return made


@pytest.mark.parametrize(
    "tunable", [ConfigFile("/etc/sysctl.d/90-x.conf"), DomainDefinition("qemu:///system", "web1")]
)
def test_each_is_rebuilt_and_outlives_a_reboot(tunable: Tunable) -> None:
    assert rebuild(tunable.kind, tunable.arguments()) == tunable
    assert tunable.survives_reboot


def test_a_file_is_put_back_with_its_text_or_removed(tmp_path: Path, tools: Tools) -> None:
    there, absent = tmp_path / "a.conf", tmp_path / "new/b.conf"
    there.write_text("absent")
    journal = Journal(tmp_path / "journal.jsonl")
    with journal.changing() as changes:
        wanted = [(there, "one\ntwo\n"), (absent, "three\n")]
        changes.make(
            [
                KnobChange(tunable=ConfigFile(str(path)), value=content(text))
                for path, text in wanted
            ]
        )
        assert (there.read_text(), absent.read_text()) == ("one\ntwo\n", "three\n")
        assert [ConfigFile(str(path)).read() for path, _ in wanted] == [
            content(text) for _, text in wanted
        ]
    assert there.read_text() == "absent", "a text like the word for no file"
    assert not absent.exists()
    assert tools.calls == []


def test_a_file_keeps_its_mode_its_bytes_and_its_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "odd.conf"
    for data in (b"caf\xe9 = 1\r\n", b"a:b:c\r\n"):
        path.write_bytes(data)
        path.chmod(0o600)
        with Journal(tmp_path / "journal.jsonl").changing() as changes:
            changes.make([KnobChange(tunable=ConfigFile(str(path)), value=content("new\n"))])
            assert path.read_text() == "new\n"
        assert path.read_bytes() == data
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "there.conf").write_text("x")
    (tmp_path / "link.conf").symlink_to(tmp_path / "there.conf")
    with pytest.raises(OSError, match="it is a link"):
        ConfigFile(str(tmp_path / "link.conf")).read()


def test_grubs_menu_is_made_anew_until_that_went_well(
    tmp_path: Path, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is gone after the first try, and the menu still has its words."""
    monkeypatch.setattr(permanent, "_GRUB", f"{tmp_path}/grub.d/")
    grub = ConfigFile(f"{tmp_path}/grub.d/x.cfg")
    journal = Journal(tmp_path / "journal.jsonl")
    with journal.changing() as changes:
        changes.make([KnobChange(tunable=grub, value=content("text"))])
        changes.keep("x")

    def fails(*_: str) -> str:
        raise OSError(0, "/boot is full")

    monkeypatch.setattr(permanent, "_tool", fails)
    assert [one.outcome for one in journal.restore_all(kept=True)] == [UndoOutcome.FAILED]
    assert grub.read() == ABSENT
    monkeypatch.setattr(permanent, "_tool", tools)
    tools.calls.clear()
    assert [one.outcome for one in journal.restore_all(kept=True)] == [UndoOutcome.RESTORED]
    assert tools.calls == [("update-grub",)]


def test_what_someone_changed_between_two_of_our_changes_is_not_overwritten(
    tmp_path: Path, tools: Tools
) -> None:
    domain = DomainDefinition("qemu:///system", "web1")
    journal = Journal(tmp_path / "journal.jsonl")
    for after in ("<one/>", "<two/>"):
        with journal.changing() as changes:
            changes.make(
                [KnobChange(tunable=domain)], act=partial(setattr, tools, "defined", after)
            )
            changes.keep("x")
        if after == "<one/>":
            tools.defined = "<one><disk/></one>"
    outcomes = [one.outcome for one in journal.restore_all(kept=True)]
    assert outcomes == [UndoOutcome.RESTORED, UndoOutcome.FOREIGN]
    assert tools.defined == "<one><disk/></one>"


def test_a_domain_is_defined_as_it_was(tmp_path: Path, tools: Tools) -> None:
    domain = DomainDefinition("qemu:///system", "web1")
    with Journal(tmp_path / "journal.jsonl").changing() as changes:

        def edit() -> None:
            tools.defined = "<domain><cputune/></domain>"

        changes.make([KnobChange(tunable=domain)], act=edit)
        assert domain.read() == "<domain><cputune/></domain>"
    assert tools.defined == "<domain/>"


def test_a_domain_that_is_gone_has_nothing_to_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: str) -> str:
        raise OSError(0, "'virsh …' ended with status 1: error: failed to get domain 'web1'")

    monkeypatch.setattr(permanent, "_tool", fails)
    with pytest.raises(FileNotFoundError, match="no domain 'web1'"):
        DomainDefinition("qemu:///system", "web1").read()
