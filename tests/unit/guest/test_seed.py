from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import pycdlib
import pytest
import yaml

from labctl.base.errors import BrokenError, HostError
from labctl.guest import seed

RUNNER = b"PK\x03\x04 \xff\n{{ not a template }}\n"

# /run/cloud-init/result.json and the log of cloud-init 22.4.2 on Debian 12.
DONE = (Path(__file__).parent / "cloud-init-22.4.2-result-done.json").read_text()
FAILED = (Path(__file__).parent / "cloud-init-22.4.2-result-failed.json").read_text()
FAILED_LOG = (Path(__file__).parent / "cloud-init-22.4.2-output-failed.log").read_text()


def render(runner: bytes = RUNNER) -> dict[str, str]:
    return seed.render(hostname="guest", instance_id="i-1", user="lab", runner=runner)


def parsed(text: str) -> Any:
    return yaml.safe_load(text)


def test_the_user_data_is_a_cloud_config_that_installs_the_runner_unchanged() -> None:
    text = render()["user-data"]
    assert text.startswith("#cloud-config\n")
    files = {entry["path"]: entry for entry in parsed(text)["write_files"]}
    runner = files[seed.RUNNER_PATH]
    assert base64.b64decode(runner["content"]) == RUNNER
    assert runner["permissions"] == "0755"


def test_the_runners_unit_serves_the_port_that_the_host_opens() -> None:
    files = {entry["path"]: entry for entry in parsed(render()["user-data"])["write_files"]}
    unit = files["/etc/systemd/system/labctl-runner.service"]["content"]
    assert f"{seed.RUNNER_PATH} --port /dev/virtio-ports/{seed.RUNNER_PORT}\n" in unit
    rule = files["/etc/udev/rules.d/90-labctl-runner.rules"]["content"]
    assert f'ATTR{{name}}=="{seed.RUNNER_PORT}"' in rule


def test_meta_data_names_instance_and_host() -> None:
    assert parsed(render()["meta-data"]) == {"instance-id": "i-1", "local-hostname": "guest"}


def test_another_runner_makes_another_seed() -> None:
    assert seed.seed_digest(render()) == seed.seed_digest(render())
    assert seed.seed_digest(render()) != seed.seed_digest(render(b"another"))


def test_the_seed_reads_back_as_it_was_rendered(tmp_path: Path) -> None:
    path = tmp_path / "seed.iso"
    files = render()
    seed.write_seed(path, files)
    iso = pycdlib.PyCdlib()
    iso.open(str(path))
    try:
        assert iso.pvd.volume_identifier.decode().strip() == "cidata"
        for name, text in files.items():
            for kind in ("rr_path", "joliet_path"):
                read = io.BytesIO()
                iso.get_file_from_iso_fp(read, **{kind: f"/{name}"})
                assert read.getvalue().decode() == text
    finally:
        iso.close()


def test_a_seed_that_cannot_be_written_is_an_error_of_the_host(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="cannot write"):
        seed.write_seed(tmp_path / "missing" / "seed.iso", render())


def test_a_template_that_asks_for_an_unknown_value_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    templates = tmp_path / "templates" / "cloud-init"
    templates.mkdir(parents=True)
    (templates / "user-data.j2").write_text("#cloud-config\nhostname: {{ hostnam }}\n")
    monkeypatch.setenv("LABCTL_LAB", str(tmp_path))
    with pytest.raises(BrokenError, match="hostnam"):
        render()


def test_a_first_boot_that_went_well_has_no_problem() -> None:
    assert seed.status_problem(DONE, "") is None


def test_a_failed_first_boot_is_told_with_its_logs_last_lines() -> None:
    problem = seed.status_problem(FAILED, FAILED_LOG)
    assert problem is not None
    assert problem.startswith("cloud-init failed: ")
    assert "scripts-user" in problem
    assert "no such thing" in problem


@pytest.mark.parametrize(
    "result",
    [
        *("", "{", DONE[:40], "[]", '{"v1": null}', '{"v1": {}}'),
        *(
            '{"v1": {"errors": 1.5, "datasource": "x"}}',
            '{"v1": {"errors": "no", "datasource": 1}}',
        ),
    ],
)
def test_a_result_that_is_cut_off_is_a_problem(result: str) -> None:
    problem = seed.status_problem(result, "the last line\n")
    assert problem is not None
    assert "no readable result" in problem
    assert "the last line" in problem


def test_a_boot_without_a_seed_is_a_problem() -> None:
    problem = seed.status_problem('{"v1": {"datasource": null, "errors": []}}', "")
    assert problem == "cloud-init found no seed"


def test_later_boots_leave_cloud_init_off_and_everything_on_the_disk() -> None:
    commands = seed.finish_commands()
    assert ["touch", "/etc/cloud/cloud-init.disabled"] in commands
    assert commands[-1] == ["sync"]
