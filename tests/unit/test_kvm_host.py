"""The emulated KVM host, without a machine: what it is made of, and how commands go in and come
out."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from labctl.base.errors import BrokenError, DeadlineError
from labctl.base.events import silent
from labctl.base.paths import StatePaths
from labctl.base.process import Deadline, run, running
from labctl.guest.images import Image
from labctl.host.facts import QEMU
from labctl.run.guests import leftovers
from labctl.run.guests.base_guest import prepared_path
from tools.kvm_host import __main__, image, machine
from tools.kvm_host.__main__ import CHECKOUT, RESULTS, commands_of, main
from tools.kvm_host.machine import INSIDE, Machine

FAKE_QEMU = """#!/bin/sh
for word; do
  case $word in
    local,*mount_tag=task,*) task=${word#local,path=} task=${task%%,*} ;;
  esac
done
"""


def made(folder: Path, name: str) -> Image:
    folder = folder / name
    (folder / "prepared").mkdir(parents=True)
    (folder / "vmlinuz").write_bytes(b"kernel")
    manifest = {"name": name, "user": "lab", "command_line": "rw", "files": {"initrd.img": {}}}
    return Image(folder, manifest)


@pytest.fixture
def emulated(tmp_path: Path) -> Machine:
    host, guest = made(tmp_path, "kvm-host-1"), made(tmp_path, "debian-13-1")
    disks = tmp_path / "guest.raw", tmp_path / "venv.raw"
    return Machine(host, guest, *disks, tmp_path / "check,out")


def qemu(emulated: Machine, script: str) -> Path:
    """In the place of the loader of the tree's QEMU: a script that knows the task's folder."""
    path = Path(emulated.qemu(Path("/task"))[0])
    path.parent.mkdir(parents=True)
    path.write_text(FAKE_QEMU + script)
    path.chmod(0o755)
    return path


def test_the_host_has_what_labctl_and_its_venv_need_but_what_only_checks_a_checkout() -> None:
    needed = {line.partition(" ")[0] for line in image.PACKAGES.read_text().splitlines()}
    assert needed >= image.LEFT_OUT
    recipe = image.host_recipe()
    assert {"qemu-system-x86", "bpftrace", "linux-perf", "binutils", "gcc"} <= set(
        recipe.spec.packages
    )
    assert not image.LEFT_OUT & set(recipe.spec.packages)
    assert recipe.spec.kernel == "linux-image-amd64"


def test_nothing_in_the_machine_writes_to_the_images_or_the_checkout(emulated: Machine) -> None:
    argv = emulated.qemu(Path("/task"))
    drives = [word for word in argv if word.startswith("file=")]
    assert len(drives) == 3
    assert all("snapshot=on" in drive for drive in drives)
    (checkout,) = (word for word in argv if "mount_tag=checkout" in word)
    assert "readonly=on" in checkout
    assert "check,,out" in checkout
    # AMD's SVM with nested paging, without five levels of it.
    assert argv[argv.index("-cpu") + 1] == "max,la57=off"
    assert argv[argv.index("-accel") + 1].startswith("tcg")
    # A panic is the machine's end, and nobody waits for its task.
    assert "-no-reboot" in argv
    assert "panic=-1" in argv[argv.index("-append") + 1].split()


def test_what_commands_write_in_results_comes_out_only_where_that_is_asked(
    emulated: Machine,
) -> None:
    shares = [word for word in emulated.qemu(Path("/task")) if "mount_tag=" in word]
    assert len(shares) == 2
    assert emulated.inside()[-1] == "debian-13-1"
    out = replace(emulated, results=Path("/lab/results"))
    assert out.inside()[-1] == "results"
    (share,) = (word for word in out.qemu(Path("/task")) if "mount_tag=results" in word)
    assert share.startswith("local,path=/lab/results,")
    assert "readonly" not in share


def test_commands_run_in_the_checkouts_own_place(emulated: Machine) -> None:
    assert emulated.inside() == [
        *("sh", f"/run/checkout/{INSIDE}"),
        *(str(emulated.checkout), "debian-13-1"),
    ]
    assert (CHECKOUT / INSIDE).is_file()


def test_what_commands_print_is_shown_and_their_status_is_the_answer(
    emulated: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """
    touch "$task/output"
    for number in 1 2; do
      until [ -e "$task/$number/command" ]; do sleep 0.05; done
      cp "$task/$number/command" "$task/$number/output"
      sleep 0.5
      echo "$number failed" >>"$task/$number/output"
      echo "$number" >"$task/$number/status"
    done
    exec sleep 60
    """
    qemu(emulated, script)
    shown: list[str] = []
    with emulated.booted(shown.append) as booted:
        assert booted.run("pytest -k 'a or b'", 60) == 1
        assert "".join(shown) == "pytest -k 'a or b'\n1 failed\n"
        assert booted.run("labctl doctor", 60) == 2
    assert "".join(shown).endswith("labctl doctor\n2 failed\n")


def test_the_shell_inside_runs_one_command_after_the_other(tmp_path: Path) -> None:
    # Its end: what comes after the machine has been set up.
    loop = (CHECKOUT / INSIDE).read_text().partition("number=1\n")[2]
    script = f"set -eu\nnumber=1\n{loop}".replace("/run/task", str(tmp_path))
    for number, command in ((1, "echo one; exit 3"), (2, "echo two >&2")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "command").write_text(command)
    with running(["sh", "-c", script]):
        last = tmp_path / "2" / "status"
        until = time.monotonic() + 60
        while not last.exists() and time.monotonic() < until:
            time.sleep(0.01)
    assert (tmp_path / "1" / "status").read_text() == "3\n"
    assert last.read_text() == "0\n"
    assert (tmp_path / "1" / "output").read_text() == "one\n"
    assert (tmp_path / "2" / "output").read_text() == "two\n"


def test_words_are_one_command_and_without_any_each_line_is() -> None:
    assert list(commands_of(("pytest", "-k", "a or b"), ["not read"])) == ["pytest -k 'a or b'"]
    assert list(commands_of((), ["labctl doctor\n", "\n", "  labctl sweep | tail\n"])) == [
        "labctl doctor",
        "labctl sweep | tail",
    ]


def test_a_machine_that_does_not_come_to_a_command_shows_its_console(
    emulated: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    qemu(emulated, "echo 'Kernel panic'; exit 7\n")
    with (
        pytest.raises(BrokenError, match=r"status 7 before booting it was done:\nKernel panic"),
        emulated.booted(print),
    ):
        pass


def test_a_machine_that_ends_before_its_command_shows_what_setting_it_up_said(
    emulated: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    qemu(emulated, 'echo booted; echo "mount: failed" >"$task/output"; sleep 0.3\n')
    said = r"status 0 before 'pytest' was done:\nbooted\nmount: failed"
    with pytest.raises(BrokenError, match=said), emulated.booted(print) as booted:
        booted.run("pytest", 60)


@pytest.mark.parametrize("begun", [True, False])
def test_a_machine_that_takes_too_long_is_ended_and_shows_its_console(
    begun: bool, emulated: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid_file = tmp_path / "qemu.pid"

    @contextmanager
    def begun_late(*words: Any, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
        # What the fake takes to begin is none of the time that it is given.
        with running(*words, **options) as process:
            while process.poll() is None and not (pid_file.exists() and pid_file.read_text()):
                time.sleep(0.01)
            yield process

    monkeypatch.setattr(machine, "running", begun_late)
    if not begun:
        monkeypatch.setattr(machine, "BOOT_S", 1.0)
    begins = 'touch "$task/output"' if begun else ":"
    qemu(emulated, f'echo booting; {begins}; echo $$ >"{pid_file}"; exec sleep 60\n')
    said = "within 1 s; its console's last lines:\nbooting"
    with pytest.raises(DeadlineError, match=said), emulated.booted(print) as booted:
        booted.run("pytest", 1.0)
    assert not Path(f"/proc/{int(pid_file.read_text())}").exists()


def test_the_guest_image_is_copied_once_and_an_outdated_copy_goes(tmp_path: Path) -> None:
    places = StatePaths(tmp_path)
    host, guest = made(places.images, "kvm-host-1"), made(places.images, "debian-13-1")
    outdated = host.dir / "debian-13-0-abc.raw"
    outdated.touch()
    disk = image.guest_disk(guest, host, places, silent)
    assert not outdated.exists()
    made_at = disk.stat().st_mtime_ns
    assert image.guest_disk(guest, host, places, silent) == disk
    assert disk.stat().st_mtime_ns == made_at
    assert {path.name for path in host.dir.glob("*.raw*")} == {disk.name}


def test_a_copy_that_another_made_meanwhile_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = StatePaths(tmp_path)
    host, guest = made(places.images, "kvm-host-1"), made(places.images, "debian-13-1")
    disk = host.dir / f"debian-13-1-{prepared_path(guest).stem}.raw"

    @contextmanager
    def waited_for(places: StatePaths) -> Iterator[None]:
        disk.write_text("another's")
        yield

    monkeypatch.setattr(image, "images_lock", waited_for)
    assert image.guest_disk(guest, host, places, silent) == disk
    assert disk.read_text() == "another's"


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = StatePaths(tmp_path)
    host, guest = made(places.images, "kvm-host-1"), made(places.images, "debian-13-1")
    monkeypatch.setattr(image, "_FREE_MIB", -1)  # room for next to nothing
    (guest.dir / "disk").write_bytes(b"\x5a" * 2**22)
    with pytest.raises(BrokenError, match="mke2fs"):
        image.guest_disk(guest, host, places, silent)
    assert list(host.dir.glob("*.raw*")) == []


def test_another_labctl_is_told_who_has_the_host_while_the_guest_boots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def locked(path: Path, *, what: str, run_folder: Path | None) -> None:
        told.append(what)
        raise BrokenError("no further")

    places = StatePaths(tmp_path)
    guest = made(places.images, "debian-13-1")
    monkeypatch.setattr(leftovers, "host_locked", locked)
    monkeypatch.setattr(image, "build", lambda *_: guest)
    with pytest.raises(BrokenError, match="no further"):
        image.prepared_guest(places, silent)
    assert told == ["the emulated KVM host"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "pyproject.toml").write_text('[project]\nname = "x"\n\n[tool.ruff]\n')
    for name in image.LOCKS:
        (folder / name).write_text("a==1\n")
    return folder


def venv_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """In make_venv.sh's place: a script that makes a .venv, or fails to."""
    path = tmp_path / "make_venv.sh"
    path.write_text(script)
    monkeypatch.setattr(image, "MAKE_VENV", path)
    monkeypatch.setattr(image, "_NAMESPACES", ())


def test_the_venv_is_made_once_of_the_same_locks_and_an_outdated_one_goes(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = StatePaths(tmp_path)
    host = made(places.images, "kvm-host-1")
    guest = host.dir / "debian-13-1-abc.raw"
    guest.touch()
    venv_from(tmp_path, monkeypatch, 'mkdir "$3/venv"; echo "$1 $2" >"$3/venv/made-of"\n')

    def disk() -> Path:
        return image.venv_disk(checkout, host, places, silent)

    first = disk()
    said = run(["debugfs", "-R", "cat /made-of", first], deadline=Deadline.after(60, "reading it"))
    assert said.stdout == f"{host.tree} {checkout}\n"
    made_at = first.stat().st_mtime_ns
    (checkout / "pyproject.toml").write_text('[project]\nname = "x"\n\n[tool.mypy]\n')
    assert disk() == first
    assert first.stat().st_mtime_ns == made_at
    (checkout / image.LOCKS[1]).write_text("a==2\n")
    assert disk() != first
    (checkout / "pyproject.toml").write_text('[project]\nname = "y"\n\n[tool.mypy]\n')
    last = disk()
    assert {path.name for path in host.dir.iterdir() if path.is_file()} >= {last.name, guest.name}
    assert list(host.dir.glob("venv*")) == [last]


def test_a_venv_that_cannot_be_made_leaves_nothing(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = StatePaths(tmp_path)
    host = made(places.images, "kvm-host-1")
    venv_from(tmp_path, monkeypatch, 'mkdir "$3/venv"; echo "no index" >&2; exit 1\n')
    with pytest.raises(BrokenError, match="status 1: no index") as caught:
        image.venv_disk(checkout, host, places, silent)
    assert "pip" in (caught.value.hint or "")
    assert list(host.dir.glob("venv*")) == []


def test_the_emulator_is_the_hosts_own_with_its_libraries_and_firmware(emulated: Machine) -> None:
    argv = emulated.qemu(Path("/task"))
    tree = emulated.host.tree
    loader, option, libraries, program = argv[:4]
    assert Path(loader).parent == Path(libraries)
    assert option == "--library-path"
    assert Path(program) == tree / "usr/bin" / QEMU
    firmware = [after for word, after in pairwise(argv) if word == "-L"]
    assert len(firmware) == 2
    assert all(Path(one).is_relative_to(tree) for one in (loader, libraries, *firmware))


def test_the_machine_has_a_venv_of_its_own_over_the_checkouts(emulated: Machine) -> None:
    drives = [word for word in emulated.qemu(Path("/task")) if word.startswith("file=")]
    # As inside.sh has them: /dev/vda, /dev/vdb and /dev/vdc.
    wanted = (emulated.host.disk, emulated.disk, emulated.venv)
    for drive, disk in zip(drives, wanted, strict=True):
        assert drive.startswith(f"file={disk},")
    assert 'mount /dev/vdc "$checkout/.venv"' in (CHECKOUT / INSIDE).read_text()


def test_what_follows_the_command_is_the_commands_and_its_status_the_answer(
    emulated: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, float]] = []

    class Told:
        def run(self, command: str, limit_s: float) -> int:
            ran.append((command, limit_s))
            if "interrupted" in command:
                raise KeyboardInterrupt
            return 4

    @contextmanager
    def booted(self: Machine, show: object) -> Iterator[Told]:
        assert self.results == (RESULTS if "sweep" in arguments else None)
        yield Told()

    for name in ("built_host", "prepared_guest", "guest_disk", "venv_disk"):
        monkeypatch.setattr(__main__, name, lambda *_: emulated.host)
    monkeypatch.setattr(Machine, "booted", booted)
    arguments = ["pytest", "-m", "kvm", "--limit", "9"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 4
    arguments = ["--results", "--limit", "12h", "sweep", "--results", "x"]
    assert CliRunner().invoke(main, arguments).exit_code == 4
    arguments = []
    done = CliRunner().invoke(main, arguments, input="doctor\ninterrupted\nnever\n")
    assert done.exit_code == 130
    assert "'doctor' ended with status 4" in done.output
    assert ran == [
        ("pytest -m kvm --limit 9", 1800),
        ("sweep --results x", 43200),
        ("doctor", 1800),
        ("interrupted", 1800),
    ]
