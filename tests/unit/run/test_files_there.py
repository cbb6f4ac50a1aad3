"""A workload's own files that cannot run are found by the plan, before anything boots."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path

import pytest

from labctl.base.errors import UsageError
from labctl.base.yamltext import YamlMapping
from labctl.run.planning.files_there import Files, imported, library_folders
from labctl.workloads.declarations import declare
from tests.unit.elf_files import elf_file

OWNERS = {"/usr/bin/ruby": "ruby", "*/libz.so.1": "zlib1g"}
PACKAGES = {"python3-numpy", "perl"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    for name in ("usr/bin/python3", "usr/lib/x86_64-linux-gnu/libc.so.6", "usr/lib64/ld.so.2"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    for name in ("usr/lib/python3.13/os.py", "usr/lib/python3.13/json/__init__.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    for name in ("bin", "lib", "lib64"):
        (folder / name).symlink_to(f"usr/{name}")
    return folder


def files(
    contents: Mapping[str, bytes],
    *command: str,
    sources: Mapping[str, Path] | None = None,
    env: Mapping[str, str] | None = None,
) -> Files:
    first = next(iter(contents))
    given = {
        "description": "mine",
        "primary": "elapsed",
        "trial": {"kind": "once"},
        "files": {name: {"base64": b64encode(data).decode()} for name, data in contents.items()},
        "command": [*(command or (f"{{{{ files }}}}/{first}",))],
        "env": dict(env or {}),
    }
    mapping = YamlMapping(given)
    mapping.lines = {}
    program = declare("mine", mapping, Path("mine.yaml"))
    return Files(program, sources or {}, OWNERS.get, PACKAGES.__contains__)


def lacks(found: Files, tree: Path | None) -> dict[str, str]:
    found.check_alone()
    return {one.what: one.remedy for one in found.lacks(tree)}


def refused(found: Files) -> tuple[str, str]:
    with pytest.raises(UsageError) as caught:
        found.check_alone()
    return caught.value.message, caught.value.hint or ""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"#!/usr/bin/python3", {}),
        (b"#!/usr/bin/env python3", {"the interpreter /usr/bin/env of w": "--package NAME"}),
        (
            b"#!/usr/bin/env -S A=1 ruby -w",
            {
                "the interpreter /usr/bin/env of w": "--package NAME",
                "the interpreter ruby of w": "--package ruby",
            },
        ),
        (b"#! /opt/x/perl -w", {"the interpreter /opt/x/perl of w": "--package perl"}),
    ],
)
def test_a_script_s_interpreter_is_looked_for(
    tree: Path, line: bytes, expected: Mapping[str, str]
) -> None:
    assert lacks(files({"w": line + b"\nx\n"}), tree) == expected


def test_loader_and_libraries_are_looked_for_in_the_tree_and_beside_the_program(
    tree: Path,
) -> None:
    needed = ("libfoo.so.1", "libz.so.1", "libc.so.6")
    data = elf_file(needed=needed, loader="/lib64/ld.so.2", runpath="$ORIGIN/lib")
    foo = "the library libfoo.so.1 of w"
    found = lacks(files({"w": data}), tree)
    assert set(found) == {foo, "the library libz.so.1 of w"}
    assert found[foo].startswith("--package NAME, or --file PATH")
    library = elf_file(soname="libfoo.so.1", needed=("libc.so.6",))
    assert foo not in lacks(files({"w": data, "lib/libfoo.so.1": library}), tree)
    assert foo in lacks(files({"w": data, "libfoo.so.1": library}), tree), "not where it looks"
    env = {"LD_LIBRARY_PATH": "{{ files }}"}
    assert foo not in lacks(files({"w": data, "libfoo.so.1": library}, env=env), tree)
    (tree / "usr/local/lib").mkdir(parents=True)
    (tree / "usr/local/lib/libfoo.so.1").touch()
    assert foo not in lacks(files({"w": data}), tree)


def test_symbols_of_newer_libraries_are_found(tree: Path) -> None:
    libc = tree / "usr/lib/x86_64-linux-gnu/libc.so.6"
    libc.write_bytes(elf_file(soname="libc.so.6", defines=("GLIBC_2.4", "GLIBC_2.36")))
    (tree / "usr/lib/x86_64-linux-gnu/libm.so.6").symlink_to("libm-2.36.so")
    libm = tree / "usr/lib/x86_64-linux-gnu/libm-2.36.so"
    libm.write_bytes(elf_file(soname="libm.so.6", defines=("GLIBC_2.29",)))

    def built_for(*versions: str, library: str = "libc.so.6") -> bytes:
        return elf_file(needed=(library,), needs={library: (*versions, "WEAK")})

    found = files(
        {
            "old": built_for("GLIBC_2.4", "GLIBC_2.36"),
            "new": built_for("GLIBC_2.36", "GLIBC_2.38"),
            "maths": built_for("GLIBC_2.35", library="libm.so.6"),
            "user": built_for("OWN_2", library="libown.so"),
            "libown.so": elf_file(soname="libown.so", defines=("OWN_1",)),
        }
    )
    assert found.too_new(tree) == [
        ("new", "libc.so.6", "GLIBC_2.38"),
        ("maths", "libm.so.6", "GLIBC_2.35"),
    ]


def test_a_missing_loader_is_named(tree: Path) -> None:
    data = elf_file(needed=("libc.so.6",), loader="/lib/ld-musl-x86_64.so.1")
    assert list(lacks(files({"w": data}), tree)) == ["the loader /lib/ld-musl-x86_64.so.1 of w"]


def test_a_library_beside_the_program_on_this_host_is_the_remedy(
    tree: Path, tmp_path: Path
) -> None:
    (tmp_path / "libfoo.so.1").touch()
    data = elf_file(needed=("libfoo.so.1",), runpath="${ORIGIN}/../" + tmp_path.name)
    found = lacks(files({"w": data}, sources={"w": tmp_path / "w"}), tree)
    assert found == {"the library libfoo.so.1 of w": f"--file {tmp_path}/libfoo.so.1"}


def test_folders_of_ld_so_conf_count(tree: Path) -> None:
    (tree / "etc/ld.so.conf.d").mkdir(parents=True)
    (tree / "etc/ld.so.conf.d/own.conf").write_text("# own\n/opt/lib\n")
    assert tree / "opt/lib" in library_folders(tree)


def test_a_large_file_is_checked_only_if_it_is_the_planned_one(tree: Path, tmp_path: Path) -> None:
    data = elf_file(needed=("libfoo.so.1",)) + bytes(1 << 20)
    (tmp_path / "w").write_bytes(data)
    named = {
        "path": str(tmp_path / "w"),
        "sha256": hashlib.sha256(data).hexdigest(),
        "size_bytes": len(data),
    }
    given = {"description": "mine", "primary": "elapsed", "command": ["{{ files }}/w"]}
    mapping = YamlMapping({**given, "files": {"w": named}})
    mapping.lines = {}
    program = declare("mine", mapping, Path("mine.yaml"))
    assert list(lacks(Files(program, {}, OWNERS.get, PACKAGES.__contains__), tree)) == [
        "the library libfoo.so.1 of w"
    ]
    (tmp_path / "w").write_bytes(data + b"x")
    assert lacks(Files(program, {}, OWNERS.get, PACKAGES.__contains__), tree) == {}, (
        "the image refuses it"
    )
    (tmp_path / "w").unlink()
    assert lacks(Files(program, {}, OWNERS.get, PACKAGES.__contains__), tree) == {}


@pytest.mark.parametrize(
    ("data", "said", "remedy"),
    [
        (elf_file(machine=4711), "is built for machine 4711", "Compile it for"),
        (b"\x7fELF\x02\x01", "damaged ELF file", "Compile or copy it again"),
        (b"#!/bin/sh\r\nls\r\n", "(CRLF)", "sed -i 's/\\r$//' w"),
        (b"#!\nls\n", "no interpreter after '#!'", "#!/bin/sh"),
        (b"ls\n", "neither an ELF program nor a script", "--command 'sh w'"),
        (b"\xef\xbb\xbf#!/bin/sh\n", "byte-order mark", "--command 'sh w'"),
    ],
)
def test_a_file_that_runs_nowhere_is_refused(data: bytes, said: str, remedy: str) -> None:
    message, hint = refused(files({"w": data}))
    assert said in message
    assert remedy in hint


def test_a_shell_does_not_understand_crlf(tree: Path) -> None:
    data = {"w.sh": b"echo a\r\n"}
    assert "(CRLF)" in refused(files(data, "sh", "{{ files }}/w.sh"))[0]
    assert lacks(files({"w.py": b"a = 1\r\n"}, "python3", "{{ files }}/w.py"), tree) == {}


SCRIPT = b"""\
#!/usr/bin/python3
import json, helper, sys, numpy.linalg
from package.inner import x
from . import relative
try:
    import maybe
except ImportError:
    pass
"""


def test_modules_of_a_python_script_are_looked_for(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "helper.py").touch()
    (tmp_path / "package").mkdir()
    found = lacks(files({"w.py": SCRIPT}, sources={"w.py": tmp_path / "w.py"}), tree)
    assert found == {
        "the Python module helper of w.py": f"--file {tmp_path}/helper.py",
        "the Python module numpy of w.py": "--package python3-numpy",
        "the Python module package of w.py": f"--file {tmp_path}/package",
    }
    dist = tree / "usr/lib/python3/dist-packages/numpy"
    dist.mkdir(parents=True)
    brought = {
        "w.py": SCRIPT,
        "helper.py": b"import far\n",
        "package/inner.py": b"",
    }
    assert list(lacks(files(brought), tree)) == ["the Python module far of helper.py"]


def test_a_module_beside_the_script_is_named_without_an_image(tmp_path: Path) -> None:
    (tmp_path / "helper.py").touch()
    found = lacks(files({"w.py": SCRIPT}, sources={"w.py": tmp_path / "w.py"}), None)
    assert list(found) == ["the Python module helper of w.py"]


@pytest.mark.parametrize("more", [b"import sys; sys.path.append('x')\n", b"print 'old'\n"])
def test_modules_are_not_looked_for_where_labctl_cannot_know(tree: Path, more: bytes) -> None:
    assert lacks(files({"w.py": SCRIPT + more}), tree) == {}


def test_conditional_and_built_in_imports_do_not_count() -> None:
    assert imported(b"import sys, a.b\nif x:\n    import c\ndef f():\n    import d\n") == ["a"]
