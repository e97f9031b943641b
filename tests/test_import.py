# SPDX-License-Identifier: Apache-2.0
"""The effects of `import smartmem_tvm`, and the imports that it defers, for any order of imports."""

import os
import pickle
import pydoc
import subprocess
import sys

import pytest

import smartmem_tvm as sm
from opencl_package import PYTHON, python

VERBS = {"Compiled", "Decoder", "Options", "UserError"}
VERBS |= {"compile", "compile_baseline", "from_gguf", "from_onnx", "from_torch", "graph_cost"}
# For a package in a folder on the path: TVM must not search for installed packages.
ON_THE_PATH = {"TVM_DEVICE_BACKEND_AUTOLOAD": "0"}

USES_IT = """
import smartmem_tvm as sm
from tvm import relax
assert relax.get_pipeline("smartmem") is not None
print(callable(sm.compile), sm.Options().fuse)
"""
# The pipeline is registered and the OpenCL device present, before any module of this package is imported.
KNOWN = """
from tvm.relax.pipeline import PIPELINE_MAP
print("smartmem" in PIPELINE_MAP, tvm.opencl(0).exist, "smartmem_tvm.pipeline" in sys.modules)
print(tvm.relax.get_pipeline("smartmem").info.name)
"""
WRONG_PAIR = """
import sys
from importlib import metadata
real = metadata.version
metadata.version = lambda name: "0.1.15.post2" if name == "apache-tvm-ffi" else real(name)
import smartmem_tvm as sm
for use in (lambda: sm.compile, lambda: sm.pipeline, lambda: exec("from smartmem_tvm import Options")):
    try:
        use()
    except ImportError as error:
        print(error)
print(hasattr(sm, "nothing"), sm.__version__)
from smartmem_tvm.cli import main
main(["doctor"])
print("tvm" in sys.modules)
"""


def run(folder, *command: str) -> list[str]:
    path = os.pathsep.join([str(PYTHON), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, **ON_THE_PATH}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()


def test_a_script_of_any_name_gets_the_verbs_and_the_pipeline(tmp_path):
    (tmp_path / "smartmem.py").write_text(USES_IT)
    assert run(tmp_path, "smartmem.py") == ["True True"]


def test_a_package_that_is_run_as_a_module_gets_them_too(tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "__init__.py").write_text("import smartmem_tvm\n")
    (tmp_path / "theirs" / "__main__.py").write_text(USES_IT)
    assert run(tmp_path, "-m", "theirs") == ["True True"]


@pytest.mark.parametrize("imports", ["import sys, tvm, smartmem_tvm", "import sys, smartmem_tvm, tvm"])
def test_tvm_knows_the_pipeline_in_either_order(tmp_path, imports):
    assert run(tmp_path, "-c", imports + KNOWN) == ["True True False", "smartmem.pipeline"]


def test_where_the_package_is_installed_importing_tvm_is_enough(tmp_path):
    assert python(tmp_path, "import sys, tvm" + KNOWN) == ["True True False", "smartmem.pipeline"]


def test_with_another_pair_of_tvm_packages_every_name_says_so_and_the_doctor_works(tmp_path):
    *lines, imported = run(tmp_path, "-c", WRONG_PAIR)
    refused, names, table = lines[:3], lines[3], lines[4:]
    assert len(set(refused)) == 1 and "apache-tvm-ffi 0.1.15.post2" in refused[0] and refused[0].endswith(".")
    assert names == f"False {sm.__version__}"
    assert any("0.1.15.post2" in line for line in table) and imported == "False"


def test_all_names_can_be_seen_without_having_been_asked_for():
    assert VERBS | {"optimize", "__version__"} == set(sm.__all__) <= set(dir(sm))
    page = pydoc.plain(pydoc.render_doc(sm))
    assert all(name in page for name in sm.__all__)
    everything: dict = {}
    exec("from smartmem_tvm import *", everything)
    assert everything["compile"] is sm.compile


def test_single_passes_are_found_below_the_package():
    assert sm.transform.EliminateLayout.__module__.startswith("smartmem_tvm.transform.")


@pytest.mark.parametrize("name", ["nothing", "_nothing", "__wrapped__"])
def test_what_there_is_not_is_an_attribute_error(name):
    with pytest.raises(AttributeError, match=f"module 'smartmem_tvm' has no attribute '{name}'"):
        getattr(sm, name)


def test_options_are_pickled_by_where_they_are_from():
    assert pickle.loads(pickle.dumps(sm.Options(fuse=False))) == sm.Options(fuse=False)


@pytest.mark.parametrize("imports", ["import tvm, smartmem_tvm", "import smartmem_tvm, tvm"])
def test_a_tvm_that_is_only_its_runtime_is_told_nothing(tmp_path, monkeypatch, imports):
    monkeypatch.setenv("TVM_USE_RUNTIME_LIB", "1")
    program = (
        f"import sys, warnings; warnings.simplefilter('error'); {imports}; print('tvm.relax.pipeline' in sys.modules)"
    )
    assert run(tmp_path, "-c", program) == python(tmp_path, program) == ["False"]
