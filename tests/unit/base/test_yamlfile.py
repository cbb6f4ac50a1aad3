from __future__ import annotations

from pathlib import Path

import pytest

from labctl.base.errors import ExitCode, UsageError
from labctl.base.yaml import FileModel, line_of, load, load_mapping


class Inner(FileModel):
    size_mib: int = 1


class Outer(FileModel):
    name: str
    inner: Inner = Inner()
    several: dict[str, Inner] = {}
    numbers: list[int] = []


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "file.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refusal(folder: Path, text: str | bytes) -> str:
    with pytest.raises(UsageError) as caught:
        load(Outer, written(folder, text))
    assert caught.value.exit_code == ExitCode.USAGE
    return caught.value.message


def test_a_good_file_is_read(tmp_path: Path) -> None:
    text = "name: a\ninner: {size_mib: 2}\nseveral:\n  x: {}\nnumbers: [1, 2]\n"
    loaded = load(Outer, written(tmp_path, text))
    assert (loaded.inner.size_mib, loaded.numbers) == (2, [1, 2])


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("name: a\nnam: b\n", 2, "unknown key 'nam'. Did you mean 'name'? Allowed: inner, na"),
        ("name: a\ninner:\n  size: 2\n", 3, "'inner.size'. Did you mean 'size_mib'?"),
        ("name: a\nseveral:\n  x:\n    size: 2\n", 4, "'several.x.size'. Did you mean 'size_mib'?"),
        ("name: a\ninner:\n  size_mib: big\n", 3, "'inner.size_mib' is 'big'"),
        ("name: a\nnumbers:\n  - 1\n  - two\n", 4, "'numbers.1' is 'two'"),
        ("name: 1\n", 1, "'name' is 1"),
        ("name: a\nname: b\n", 2, "not valid YAML"),
        ("name: [\n", 2, "not valid YAML"),
        ("name: 2026-02-30\n", 1, "YAML reads '2026-02-30' as a date, and no such date exists"),
        ("name: a\nnumbers: [1,\n  2026-11-22]\n", 3, "'numbers.1' is a date to YAML: put it in"),
        ("name: !!float zz\n", 1, "'zz' is not a number"),
        ("name: &a [*a]\n", 1, "marked '&a'"),
    ],
)
def test_an_error_names_file_line_and_key(tmp_path: Path, text: str, place: int, said: str) -> None:
    message = refusal(tmp_path, text)
    assert f"file.yaml:{place}: " in message
    assert said in message


def test_a_value_is_shown_as_far_as_it_fits(tmp_path: Path) -> None:
    assert len(refusal(tmp_path, f"name: [{'x' * 100_000}]\n")) < 500


def test_of_many_mistakes_the_first_are_told_and_the_others_counted(tmp_path: Path) -> None:
    lines = refusal(tmp_path, "".join(f"k{n}: 1\n" for n in range(9000))).splitlines()
    assert len(lines) == 21
    assert "8981 more errors" in lines[-1]  # the missing name among them


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    assert "larger than 1 MiB" in refusal(tmp_path, "#" * (2 << 20))
    with pytest.raises(UsageError, match="larger than 1 MiB"):
        load(Outer, Path("/dev/zero"))


def test_all_errors_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    assert len(refusal(tmp_path, "nam: a\ninner: 3\n").splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("inner: {}\n", "key 'name' is missing"),
        *((text, "has no mapping") for text in ("", "- a\n", "word\n")),
        (b"\xff\xfe\x00", "is not UTF-8"),
        ("name: a\x00b\n", "not valid YAML"),
    ],
)
def test_a_file_without_what_it_must_have_is_refused(
    tmp_path: Path, text: str | bytes, said: str
) -> None:
    assert said in refusal(tmp_path, text)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        load(Outer, tmp_path / "none.yaml")


def test_yaml_cannot_make_python_objects(tmp_path: Path) -> None:
    marker = tmp_path / "made"
    refusal(tmp_path, f"name: !!python/object/apply:os.mkdir ['{marker}']\n")
    assert not marker.exists()


def test_the_line_is_that_of_the_innermost_key_that_is_there(tmp_path: Path) -> None:
    mapping = load_mapping(written(tmp_path, "a:\n  b:\n    - x\n    - y\n"))
    assert line_of(mapping, ("a", "b", 1)) == 4
    assert line_of(mapping, ("a", "none")) == 1
    assert line_of(mapping, ("none",)) is None
