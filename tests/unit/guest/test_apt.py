from __future__ import annotations

from pathlib import Path

import pytest

from labctl.guest import apt

# As Debian's container images have it.
DEB822 = """\
Types: deb
# http://snapshot.example/archive/debian/20250520T000000Z
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
KEYRING = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    (tmp_path / "sources.list.d").mkdir()
    return tmp_path


def sources(etc: Path, suite: str = "bookworm", **files: str) -> list[str]:
    for name, text in files.items():
        stem, _, suffix = name.rpartition("_")
        (etc / "sources.list.d" / f"{stem}.{suffix}").write_text(text)
    return apt.host_sources(suite, etc)


def test_stanzas_become_lines_of_one_suite_each(etc: Path) -> None:
    assert sources(etc, debian_sources=DEB822) == [
        f"deb {KEYRING} http://mirror.example/debian bookworm main",
        f"deb {KEYRING} http://mirror.example/debian bookworm-updates main",
        f"deb {KEYRING} http://mirror.example/debian-security bookworm-security main",
    ]


def test_lines_of_the_old_format_are_read(etc: Path) -> None:
    (etc / "sources.list").write_text(
        "# deb http://old.example/debian bookworm main\n"
        "deb http://mirror.example/debian bookworm main contrib  # near\n"
        "deb-src http://mirror.example/debian bookworm main\n"
        "deb [arch=amd64 trusted=yes] http://local.example/debian bookworm-updates main\n"
    )
    assert sources(etc) == [
        "deb http://mirror.example/debian bookworm main",
        "deb [trusted=yes] http://local.example/debian bookworm-updates main",
    ]


def test_a_host_of_another_release_lends_no_sources(etc: Path) -> None:
    assert sources(etc, suite="trixie", debian_sources=DEB822) == []


@pytest.mark.parametrize(
    "stanza",
    [
        "Enabled: no\n" + DEB822.split("\n\n")[0],
        DEB822.split("\n\n")[0].replace("Types: deb", "Types: deb-src"),
        "Types: deb\nURIs: https://other.example/node_20.x\nSuites: nodistro\n"
        "Components: main\nSigned-By: /usr/share/keyrings/nodesource.gpg\n",
        "Types: deb\nURIs: https://apt.example.com\nSuites: bookworm\n"
        "Components: main\nSigned-By: /usr/share/keyrings/example.gpg\n",
        "Types: deb\nURIs: https://download.example.com/linux/debian\nSuites: bookworm\n"
        "Components: stable\n",
        "",
        ":::\n\n:",
    ],
    ids=["disabled", "source", "other suite", "other keys", "other component", "empty", "garbage"],
)
def test_what_is_not_debian_itself_stays_out(etc: Path, stanza: str) -> None:
    assert sources(etc, other_sources=stanza) == []


def test_files_that_apt_ignores_are_ignored(etc: Path) -> None:
    (etc / "sources.list.d" / "debian.sources.disabled").write_text(DEB822)
    assert sources(etc) == []


def test_a_key_inside_a_stanza_leaves_the_keyring_to_mmdebstrap(etc: Path) -> None:
    text = (
        "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\nComponents: main\n"
        "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n debian: xsFNBF\n"
    )
    assert sources(etc, debian_sources=text) == ["deb http://mirror.example/debian bookworm main"]


# `apt-config dump` of apt 2.6.1, shortened.
DUMP = """\
APT "";
Acquire "";
Acquire::AllowInsecureRepositories "0";
Acquire::Check-Valid-Until "false";
Acquire::Check-Date "false";
Acquire::http "";
Acquire::http::Proxy "http://proxy.example:3128";
Acquire::http::Proxy::local.example "DIRECT";
Acquire::https::Proxy "";
Acquire::Retries "3";
DPkg::Post-Invoke:: "rm -f /var/cache/apt/archives/*.deb || true";
Acquire::GzipIndexes "true";
"""


def test_only_options_that_decide_over_downloads_are_taken() -> None:
    assert apt.download_options(DUMP) == [
        'Acquire::Check-Valid-Until "false";',
        'Acquire::Check-Date "false";',
        'Acquire::http::Proxy "http://proxy.example:3128";',
        'Acquire::http::Proxy::local.example "DIRECT";',
        'Acquire::Retries "3";',
    ]


def test_another_release_comes_from_the_hosts_own_mirror(etc: Path) -> None:
    (etc / "sources.list.d" / "debian.sources").write_text(DEB822)
    release = etc / "os-release"
    release.write_text("ID=debian\nVERSION_CODENAME=bookworm\n")
    assert apt.sources_of("trixie", etc, release) == [
        f"deb {KEYRING} http://mirror.example/debian trixie main",
        f"deb {KEYRING} http://mirror.example/debian trixie-updates main",
        f"deb {KEYRING} http://mirror.example/debian-security trixie-security main",
    ]
    assert apt.sources_of("bookworm", etc, release) == apt.host_sources("bookworm", etc)
    release.write_text("ID=fedora\n")
    assert apt.sources_of("trixie", etc, release) == []
