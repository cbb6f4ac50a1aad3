"""tools/setup.sh, with apt-get and its kin replaced by programs that only say what they got."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from labctl.base import process
from labctl.base.errors import ExitCode
from labctl.base.process import Deadline

CHECKOUT = Path(__file__).parents[2]

APT = """#!/bin/sh
echo "$@" >>"$0.calls"
case "$*" in *update*) touch "$0.updated" ;; esac
[ -e "$0.updated" ] || [ ! -e "$0.outdated" ]
"""

INSTALLED = """#!/bin/sh
for name; do :; done
case $name in
  shellcheck) [ -e "$0.all" ] || exit 1 ;;
  e2fsprogs) [ -e "$0.all" ] || { printf config-files; exit; } ;;
esac
printf installed
"""


class Host:
    """A host without shellcheck and with an e2fsprogs that was removed."""

    def __init__(self, folder: Path) -> None:
        self.checkout = folder / "checkout"
        for name in ("tools/setup.sh", "labctl/host/install.sh", "labctl/host/packages.txt"):
            (self.checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / name, self.checkout / name)
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name in ("awk", "bash", "cat", "dirname", "env", "grep", "ln", "mkdir", "touch"):
            (self.bin / name).symlink_to(shutil.which(name) or "")
        self.program("apt-get", APT)
        self.program("dpkg-query", INSTALLED)
        self.user(0)
        self.release = folder / "os-release"
        self.distribution("Debian GNU/Linux 13 (trixie)", ID="debian", VERSION_ID="13")

    def distribution(self, name: str, **fields: str) -> None:
        lines = [f'{key}="{value}"\n' for key, value in {"PRETTY_NAME": name, **fields}.items()]
        self.release.write_text("".join(lines))

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def user(self, number: int) -> None:
        self.program("id", f"#!/bin/sh\necho {number}\n")

    def mark(self, name: str) -> None:
        (self.bin / name).touch()

    def setup(self, *steps: str) -> process.Completed:
        return process.run(
            [self.checkout / "tools" / "setup.sh", *steps],
            env={
                "PATH": str(self.bin),
                "LABCTL_LINK": str(self.link),
                "LABCTL_OS_RELEASE": str(self.release),
            },
            deadline=Deadline.after(30, "the set-up"),
            check=False,
        )

    @property
    def link(self) -> Path:
        return self.bin.parent / "local" / "labctl"

    @property
    def apt_calls(self) -> list[str]:
        calls = self.bin / "apt-get.calls"
        return calls.read_text().splitlines() if calls.exists() else []


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_only_what_is_missing_is_installed(host: Host) -> None:
    done = host.setup("packages")
    assert done.returncode == 0, done.stderr
    (call,) = host.apt_calls
    assert call.endswith("install e2fsprogs shellcheck")
    assert "--no-install-recommends" in call


def test_nothing_is_asked_of_apt_when_all_is_there(host: Host) -> None:
    host.mark("dpkg-query.all")
    assert host.setup("packages").returncode == 0
    assert host.apt_calls == []


def test_package_lists_are_fetched_only_when_installing_fails(host: Host) -> None:
    host.mark("apt-get.outdated")
    assert host.setup("packages").returncode == 0
    assert [call.split()[-1] for call in host.apt_calls] == ["shellcheck", "update", "shellcheck"]


def test_apt_that_cannot_install_is_the_hosts_fault(host: Host) -> None:
    host.program("apt-get", "#!/bin/sh\necho 'no space' >&2\nexit 100\n")
    done = host.setup("packages")
    assert done.returncode == ExitCode.HOST
    assert "no space" in done.stderr
    assert "could not install e2fsprogs shellcheck" in done.stderr


FEDORA = {"ID": "fedora", "VERSION_ID": "43"}


def test_another_debian_is_said_to_be_untested(host: Host) -> None:
    host.distribution("Debian GNU/Linux forky/sid", ID="debian")
    done = host.setup("packages")
    assert done.returncode == 0
    assert "tested on Debian 12 and 13, not on Debian GNU/Linux forky/sid" in done.stdout
    assert len(host.apt_calls) == 1


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"ID": "ubuntu", "ID_LIKE": "debian"}, "apt-get install .* e2fsprogs shellcheck\n"),
        ({"ID": "kali", "ID_LIKE": "debian"}, "apt-get install .* e2fsprogs shellcheck\n"),
        (FEDORA, "dnf install .* qemu-img .* perf .*"),
        ({"ID": "centos", "ID_LIKE": "rhel fedora"}, "dnf install .* qemu-img .* perf .*"),
        (
            {"ID": "arch"},
            "apt-get install .* linux-perf .*\n\n    dnf install .* perf .*\n\n'tools/setup.sh",
        ),
    ],
    ids=["ubuntu", "kali", "fedora", "centos", "arch"],
)
def test_elsewhere_packages_are_listed_and_nothing_is_installed(
    host: Host, fields: dict[str, str], says: str
) -> None:
    host.distribution("Another 1.0", **fields)
    done = host.setup("packages")
    assert done.returncode == ExitCode.HOST
    assert "Debian 12 and 13 alone, and this is Another 1.0." in done.stderr
    assert re.search(says, done.stderr)
    assert host.apt_calls == []


def test_elsewhere_what_was_installed_by_hand_is_taken(host: Host) -> None:
    host.distribution("Fedora Linux 43", **FEDORA)
    host.program("rpm", "#!/bin/sh\nexit 0\n")
    assert host.setup("packages").returncode == 0


def test_a_user_who_may_not_install_is_told_what_to_do(host: Host) -> None:
    host.user(1000)
    done = host.setup("packages")
    assert done.returncode == ExitCode.HOST
    assert "e2fsprogs shellcheck. Run 'make setup' once as root." in done.stderr
    assert host.apt_calls == []


def test_a_user_with_sudo_installs_through_it(host: Host) -> None:
    host.user(1000)
    host.program("sudo", '#!/bin/sh\necho "$@" >>"$0.calls"\nexec "$@"\n')
    assert host.setup("packages").returncode == 0
    assert len(host.apt_calls) == 1
    assert (host.bin / "sudo.calls").exists()


class Installed(Host):
    """A host on which a wheel is installed."""

    def setup(self, *words: str) -> process.Completed:
        return process.run(
            [sys.executable, "-m", "labctl.cli.main", "setup", *words],
            env={
                "PATH": str(self.bin),
                "PYTHONPATH": str(CHECKOUT),
                "LABCTL_OS_RELEASE": str(self.release),
            },
            deadline=Deadline.after(60, "labctl setup"),
            check=False,
        )


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    host = Installed(tmp_path)
    record_accounts(host)
    return host


def test_labctl_installs_the_packages_that_it_runs_with(installed: Installed) -> None:
    done = installed.setup()
    assert done.returncode == 0, done.stderr
    (call,) = installed.apt_calls
    assert call.endswith("install e2fsprogs")  # shellcheck is for tests
    assert accounts(installed)


def test_labctl_only_lists_what_is_missing(installed: Installed) -> None:
    assert "setup: these packages are missing: e2fsprogs\n" in installed.setup("--list").stdout
    installed.mark("dpkg-query.all")
    assert "setup: no package is missing\n" in installed.setup("--list").stdout
    assert (installed.apt_calls, accounts(installed)) == ([], [])


def test_labctl_names_itself_where_it_can_install_nothing(installed: Installed) -> None:
    installed.user(1000)
    done = installed.setup()
    assert done.returncode == ExitCode.HOST
    assert "e2fsprogs. Run 'labctl setup' once as root." in done.stderr
    installed.distribution("Fedora Linux 43", **FEDORA)
    done = installed.setup()
    assert done.returncode == ExitCode.HOST
    assert re.search("'labctl setup' again:\n\n    dnf install .* qemu-img", done.stderr)
    assert "ShellCheck" not in done.stderr


def test_each_package_has_a_use() -> None:
    lines = (CHECKOUT / "labctl" / "host" / "packages.txt").read_text().splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    assert {len(row) for row in rows} == {4}
    assert {row[3] for row in rows} == {"run", "build", "test"}


def record_accounts(host: Host) -> None:
    host.program("getent", '#!/bin/sh\n[ -e "$0.$1" ]\n')
    for name in ("groupadd", "useradd", "usermod"):
        host.program(name, '#!/bin/sh\necho "${0##*/} $*" >>"${0%/*}/accounts"\n')


def accounts(host: Host) -> list[str]:
    calls = host.bin / "accounts"
    return calls.read_text().splitlines() if calls.exists() else []


def test_the_account_that_libvirt_asks_for_is_made(host: Host) -> None:
    record_accounts(host)
    assert host.setup("account").returncode == 0
    made = [(line.split()[0], line.split()[-1]) for line in accounts(host)]
    assert made == [("groupadd", "kvm"), ("groupadd", "libvirt-qemu"), ("useradd", "libvirt-qemu")]


def test_an_account_that_is_there_is_left_alone(host: Host) -> None:
    record_accounts(host)
    host.mark("getent.passwd")
    host.mark("getent.group")
    assert host.setup("account").returncode == 0
    assert accounts(host) == []


def test_a_user_who_may_make_no_account_is_told_what_to_do(host: Host) -> None:
    record_accounts(host)
    host.user(1000)
    done = host.setup("account")
    assert done.returncode == ExitCode.HOST
    assert "libvirt-qemu is missing. Run 'make setup' once as root." in done.stderr
    assert accounts(host) == []


def test_root_gets_the_command_linked(host: Host) -> None:
    assert host.setup("link").returncode == 0
    assert os.readlink(host.link) == str(host.checkout / ".venv/bin/labctl")


def test_a_link_into_a_checkout_that_is_gone_is_replaced(host: Host) -> None:
    host.link.parent.mkdir()
    host.link.symlink_to("/gone/.venv/bin/labctl")
    assert host.setup("link").returncode == 0
    assert os.readlink(host.link) == str(host.checkout / ".venv/bin/labctl")


def test_another_command_of_that_name_is_left_alone(host: Host) -> None:
    host.link.parent.mkdir()
    host.link.write_text("something else")
    assert host.setup("link").returncode == 0
    assert host.link.read_text() == "something else"


def test_a_user_gets_no_link(host: Host) -> None:
    host.user(1000)
    assert host.setup("link").returncode == 0
    assert not host.link.exists()
