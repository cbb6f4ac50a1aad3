"""No installed package sees or changes what labctl validates."""

import os
import subprocess
import sys
from pathlib import Path

PLUGIN = """
print("a plugin was loaded")

def new_schema_validator(*of, **more):
    return None, None, None
"""


def test_no_plugin_of_pydantic_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "spy.py").write_text(PLUGIN)
    metadata = tmp_path / "spy-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: spy\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[pydantic]\nspy = spy\n")
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"

    def said(imported: str) -> str:
        script = f"import {imported}; from pydantic import BaseModel\nclass M(BaseModel): a: int"
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return done.stdout

    assert said("sys") == "a plugin was loaded\n"
    assert said("labctl.store.run_folder") == ""
