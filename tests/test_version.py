# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from importlib import metadata

import pytest

from smartmem_tvm import _version

PAIR = dict(_version.TVM_PINS)

# Stands for an environment with another tvm-ffi: what the check asks is the metadata.
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
