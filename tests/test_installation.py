# SPDX-License-Identifier: Apache-2.0
"""`pip install` of a wheel and of a source distribution gives a package that works away from its checkout.

The wheel is built from the source distribution. Its libraries are those of the installed package, which was compiled
from the same sources; the slow tier compiles the source distribution. This itself is installed without a C++ compiler,
where the package works too, except for OpenCL. The installed packages then run with no program of the system in their
path.
"""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import onnx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from opencl_package import ROOT
from small_network import network
from smartmem_tvm import __file__ as INSTALLED
from smartmem_tvm import __version__

DISTRIBUTION = "smartmem-tvm"
# The files that a build reads; other files of a checkout could hide that the distribution lacks them.
SOURCES = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "native", "python")
# Compiles nothing, and "links" the library of the installed package.
COMPILER = f"""#!{sys.executable} -SE
import pathlib, shutil, sys
output = pathlib.Path(sys.argv[sys.argv.index("-o") + 1])
library = pathlib.Path({str(Path(INSTALLED).parent / "lib")!r}, output.name.partition(".")[0] + ".so")
shutil.copy(library, output) if "-shared" in sys.argv else output.touch()
"""
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info", "lib", "build")


def run(*command, cwd: Path, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(each) for each in command], cwd=cwd, env={**environment, **variables}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def build(folder: Path, **variables: str) -> dict[str, Path]:
    """Make the source distribution, and the wheel that is built from it and not from the checkout."""
    checkout, dist = folder / "checkout", folder / "dist"
    checkout.mkdir()
    dist.mkdir()
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, checkout / name, ignore=LEFT_OUT)
        else:
            shutil.copy(path, checkout)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, checkout, cwd=dist, **variables)
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> dict[str, Path]:
    """Both, with the libraries of the installed package."""
    compiler = tmp_path_factory.mktemp("compiler") / "c++"
    compiler.write_text(COMPILER, encoding="utf-8")
    compiler.chmod(0o755)
    return build(tmp_path_factory.mktemp("build"), CXX=str(compiler))


def needed(name: str, found: dict[str, importlib.metadata.Distribution]) -> dict:
    """Return the distributions that `name` requires, without extras, and their requirements in turn."""
    for text in importlib.metadata.requires(name) or ():
        requirement = Requirement(text)
        key, marker = canonicalize_name(requirement.name), requirement.marker
        if key not in found and (marker is None or marker.evaluate({"extra": ""})):
            found[key] = importlib.metadata.distribution(requirement.name)
            needed(requirement.name, found)
    return found


def environment(folder: Path, *more: str) -> Path:
    """Return the Python of a new environment that holds this package's declared requirements only."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    parts = needed(DISTRIBUTION, {})
    parts |= {name: importlib.metadata.distribution(name) for name in more}
    for each in parts.values():
        for top in {file.parts[0] for file in each.files if file.parts[0] not in ("..", "__pycache__")}:
            (packages / top).symlink_to(each.locate_file(top))
    return python


@pytest.fixture(scope="module", params=["wheel", "sdist"])
def installed(request, distributions, tmp_path_factory) -> Path:
    """Return the folder of programs of an environment with the package, installed from one of the distributions."""
    folder = tmp_path_factory.mktemp(request.param)
    python = environment(folder / "environment", *(["setuptools"] if request.param == "sdist" else []))
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    run(*pip, "--no-build-isolation", distributions[request.param], cwd=folder, CXX="/no/compiler")
    return python.parent


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    onnx.save(network(), path)
    return path


def libraries(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if "/lib/" in name}


LIBRARIES = {f"smartmem_tvm/lib/{name}.so" for name in ("opencl", "stream", "threads")}


def test_the_source_distribution_has_every_source(distributions):
    """Byte for byte as in the checkout, so that what compiles there compiles here."""
    wanted = {path for top in ("native", "python") for path in (ROOT / top).rglob("*") if path.is_file()}
    wanted = {path for path in wanted if not {"__pycache__", "lib"} & set(path.parts) and "egg-info" not in str(path)}
    found = []
    wanted = {path.relative_to(ROOT).as_posix(): path for path in wanted}
    with tarfile.open(distributions["sdist"]) as archive:  # from its begin to its end: going back unpacks it again
        for member in archive:
            path = wanted.get(member.name.partition("/")[2])
            if path is not None:
                assert archive.extractfile(member).read() == path.read_bytes(), path
                found.append(path)
    assert len(wanted) > 600 and sorted(found) == sorted(wanted.values())


@pytest.mark.slow
def test_the_source_distribution_compiles(tmp_path):
    """Unoptimized code is enough, and compiles faster."""
    assert libraries(build(tmp_path, CXXFLAGS="-O0")["wheel"]) == LIBRARIES


def test_the_wheel_has_the_libraries_and_is_for_any_python(distributions, tmp_path):
    """auditwheel finds a tag that PyPI accepts: the libraries need only symbols that Linux has had for some years."""
    wheel = distributions["wheel"]
    assert wheel.name.startswith(f"smartmem_tvm-{__version__}-py3-none-linux_")
    assert libraries(wheel) == LIBRARIES
    said = run(sys.executable, "-m", "auditwheel", "show", wheel, cwd=tmp_path)
    assert re.search(r'platform tag: "manylinux_2_\d+_', " ".join(said.split()))


@pytest.mark.parametrize("installed", ["sdist"], indirect=True)
def test_the_version_is_the_one_of_the_file(installed, tmp_path):
    assert run(installed / "smartmem", "--version", cwd=tmp_path) == f"smartmem {__version__}\n"
    program = "from importlib.metadata import version; print(version('smartmem-tvm'))"
    assert run(installed / "python", "-c", program, cwd=tmp_path).strip() == __version__


def test_doctor_finds_everything(installed, tmp_path):
    found = json.loads(run(installed / "smartmem", "doctor", "--json", cwd=tmp_path, PATH=str(installed)))
    checks = {check["name"]: check for check in found["checks"]}
    assert [check for check in checks.values() if check["required"] and not check["ok"]] == []
    assert str(installed.parent) in checks["smartmem_tvm"]["detail"]
    library = checks["opencl library"]
    if "wheel" in str(installed):
        assert str(installed.parent) in library["detail"]
    else:
        assert "/no/compiler could not be started" in library["detail"] and not library["ok"]


@pytest.mark.parametrize("installed", ["wheel"], indirect=True)
def test_the_sources_of_the_runner_are_there(installed, tmp_path):
    program = "from smartmem_tvm.remote.runner import sources; print(sources() / 'run' / 'CMakeLists.txt')"
    found = Path(run(installed / "python", "-c", program, cwd=tmp_path).strip())
    assert found.is_file() and installed.parent in found.parents


@pytest.mark.parametrize("installed", ["wheel"], indirect=True)
def test_stats_counts_kernels(installed, model, tmp_path):
    found = json.loads(run(installed / "smartmem", "stats", model, "--json", cwd=tmp_path, PATH=str(installed)))
    assert found["smartmem"]["layout_kernels"] == 0 < found["tvm_default"]["layout_kernels"]


@pytest.mark.parametrize("installed", ["sdist"], indirect=True)
def test_verify_agrees_with_onnxruntime(installed, model, tmp_path):
    command = ("-m", "smartmem_tvm", "verify", model, "--json")
    assert json.loads(run(installed / "python", *command, cwd=tmp_path, PATH=str(installed)))["ok"]


@pytest.mark.parametrize("installed", ["wheel"], indirect=True)
def test_the_pipeline_is_registered_and_passes_import(installed, tmp_path):
    program = """
import smartmem_tvm as sm
from smartmem_tvm.transform import EliminateLayout, FuseOperators
import tvm
tvm.relax.get_pipeline("smartmem")
print(sm.__file__)
"""
    assert run(installed / "python", "-c", program, cwd=tmp_path).startswith(str(installed.parent))
