"""Make the seed of a first boot: cloud-init's NoCloud data source as an ISO image, and its outcome.

https://cloudinit.readthedocs.io/en/22.4.2/topics/datasources/nocloud.html
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Mapping
from pathlib import Path

from labctl.base.errors import BrokenError, HostError
from labctl.base.json import parse_json
from labctl.base.templates import lab_template_environment

RUNNER_PATH = "/usr/local/lib/labctl/runner.pyz"
RUNNER_PORT = "org.labctl.runner.0"
"""Name of the virtio-serial port that the runner listens on."""

RESULT_PATH = "/run/cloud-init/result.json"
"""File that cloud-init writes when all its stages are over."""
LOG_PATH = "/var/log/cloud-init-output.log"

_FILES = ("user-data", "meta-data", "network-config")


def render(*, hostname: str, instance_id: str, user: str, runner: bytes) -> dict[str, str]:
    """Return the seed's files by name. `runner`: the archive to install."""
    from jinja2.exceptions import TemplateError

    environment = lab_template_environment("cloud-init", escapes=False)
    values = {
        "hostname": hostname,
        "instance_id": instance_id,
        "user": user,
        "runner_path": RUNNER_PATH,
        "runner_port": RUNNER_PORT,
        "runner_base64": base64.b64encode(runner).decode(),
    }
    try:
        return {name: environment.get_template(f"{name}.j2").render(values) for name in _FILES}
    except TemplateError as error:
        raise BrokenError(
            f"a template in 'templates/cloud-init' cannot be rendered: {error}",
            hint="If the lab folder has its own 'templates/cloud-init', compare it with labctl's.",
        ) from error


def seed_digest(files: Mapping[str, str]) -> str:
    """Return the SHA-256 (hex) of the seed's files, which determine a prepared overlay."""
    digest = hashlib.sha256()
    for name, text in sorted(files.items()):
        digest.update(f"{name}\0{len(text)}\0{text}".encode())
    return digest.hexdigest()


def write_seed(path: Path, files: Mapping[str, str]) -> None:
    """Write an ISO 9660 image with the volume id that cloud-init expects."""
    import pycdlib

    iso = pycdlib.PyCdlib()
    iso.new(interchange_level=3, joliet=3, rock_ridge="1.09", vol_ident="cidata")
    for number, (name, text) in enumerate(files.items()):
        data = text.encode()
        iso.add_fp(
            io.BytesIO(data),
            len(data),
            # ISO 9660's own names allow no hyphen; guests read the Rock Ridge or Joliet ones.
            iso_path=f"/FILE{number}.;1",
            rr_name=name,
            joliet_path=f"/{name}",
        )
    try:
        iso.write(str(path))
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}") from error
    finally:
        iso.close()


def finish_commands() -> list[list[str]]:
    """Return the commands to run in the guest, as root, after a successful first boot: cloud-init
    stays off in later boots, and everything is on the disk."""
    return [
        ["touch", "/etc/cloud/cloud-init.disabled"],
        # The generator would still run its shell script in each boot (systemd.generator(7): a file
        # of the same name in /etc masks it).
        ["mkdir", "-p", "/etc/systemd/system-generators"],
        ["ln", "-sf", "/dev/null", "/etc/systemd/system-generators/cloud-init-generator"],
        ["sync"],
    ]


def status_problem(result: str, log: str) -> str | None:
    """Return why the first boot failed, from the texts of RESULT_PATH and LOG_PATH; None if it
    succeeded."""
    try:
        told = parse_json(result)["v1"]
        errors, datasource = told["errors"], told["datasource"]
        if not isinstance(errors, list):
            raise TypeError("no list")
    except (ValueError, KeyError, TypeError):
        return f"cloud-init left no readable result ({result.strip()[:80]!r}){_last_lines(log)}"
    if errors:
        return f"cloud-init failed: {'; '.join(map(str, errors))}{_last_lines(log)}"
    if not datasource:
        return f"cloud-init found no seed{_last_lines(log)}"
    return None


def _last_lines(log: str, count: int = 10) -> str:
    lines = [line.rstrip() for line in log.splitlines() if line.strip()][-count:]
    return ". Its log ends:\n" + "\n".join(f"  {line}" for line in lines) if lines else ""
