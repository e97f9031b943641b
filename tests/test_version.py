# SPDX-License-Identifier: Apache-2.0
import runpy
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import smartmem_tvm
from opencl_package import declared
from smartmem_tvm import _version
from smartmem_tvm.cli import main

PAIR = dict(_version.TVM_PINS)

# Simulates an environment with another tvm-ffi by its metadata, which the check reads.
BAD_PAIR_PROGRAM = """
import sys
from importlib import metadata
real = metadata.version
metadata.version = lambda name: "0.1.15.post2" if name == "apache-tvm-ffi" else real(name)
try:
    import smartmem_tvm.frontend
except ImportError as err:
    print(err)
print("tvm" in sys.modules)
"""


ROOT = Path(__file__).resolve().parent.parent


def test_the_version_stands_in_one_place(capsys):
    """Wheel, program and site read the version from `_version.py`, and the changelog has an entry for it."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"smartmem {_version.__version__}\n"
    assert declared()["version"] == smartmem_tvm.__version__ == _version.__version__
    assert runpy.run_path(str(ROOT / "docs" / "conf.py"))["release"] == _version.__version__
    copies = [name for name in ("setup.py", "pyproject.toml", "docs/conf.py") if _version.__version__ in read(name)]
    assert copies == [] and _version.__version__ in read("CHANGELOG.md")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def fake_versions(monkeypatch, versions):
    def version(name):
        if versions[name] is None:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)


def test_the_pinned_pair_is_accepted(monkeypatch):
    fake_versions(monkeypatch, PAIR)
    assert _version.version_problem() is None


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("apache-tvm-ffi", "0.1.15.post2"),
        ("apache-tvm-ffi", "0.1.14"),
        ("apache-tvm", "0.28.0"),
        ("apache-tvm", None),
    ],
)
def test_another_pair_is_named_with_its_remedy(monkeypatch, name, version):
    fake_versions(monkeypatch, {**PAIR, name: version})
    problem = _version.version_problem()
    assert f"{name} {version or '(not installed)'}" in problem
    assert "`pip install apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post1`" in problem
    assert problem.endswith(".") and "\n" not in problem


def test_with_another_pair_the_import_stops_before_tvm_is_loaded():
    done = subprocess.run([sys.executable, "-c", BAD_PAIR_PROGRAM], capture_output=True, text=True, check=True)
    message, tvm_loaded = done.stdout.splitlines()
    assert "apache-tvm-ffi 0.1.15.post2" in message and "pip install" in message
    assert tvm_loaded == "False"
