"""docs/promises.md: each promise, download and bug names a test, and nothing is downloaded by pip
without hashes. That the named tests exist is held by `test_docs_name_tests.py`."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/promises.md"

_PIP = re.compile(r"\$\{pip\[@\]\}|\bpip (?:install|download|wheel)\b")
"""Calls of pip in scripts: by the array of tools/setup.sh, or by name."""


def rows(heading: str) -> list[str]:
    section = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| (?!-).*\|$", section, re.MULTILINE)[1:]


def test_each_promise_download_and_bug_names_its_test() -> None:
    headings = re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE)
    assert len(headings) >= 8
    for heading in {*headings} - {"Attackers", "Fuzzing"}:
        assert len(rows(heading)) >= 4, heading
        for row in rows(heading):
            assert "`tests/" in row.split(" | ")[-1] or "the same" in row, row


def test_each_attacker_has_a_section_of_threats() -> None:
    assert len(rows("Attackers")) == 7
    assert all("](security.md#" in row or "](#downloads)" in row for row in rows("Attackers"))


def test_pip_downloads_nothing_without_hashes() -> None:
    scripts = [ROOT / "Makefile", *ROOT.glob("tools/**/*.sh"), *ROOT.glob("tools/**/*.py")]
    found = [
        line.strip()
        for script in scripts
        for line in script.read_text().replace("\\\n", " ").splitlines()
        if _PIP.search(line) and "--no-index" not in line
    ]
    assert len(found) >= 3
    assert [line for line in found if "--require-hashes" not in line] == []
    locks = ("requirements.lock", "requirements-build.lock", "tests/fuzz/requirements.txt")
    for lock in locks:
        text = (ROOT / lock).read_text().replace("\\\n", " ")
        assert all(
            "--hash=sha256:" in line for line in text.splitlines() if re.match(r"[\w.-]+==", line)
        ), lock
