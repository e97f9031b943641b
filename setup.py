# SPDX-License-Identifier: Apache-2.0
"""Packaging: metadata, dependencies, the `smartmem` command, the native libraries. Tools' settings: pyproject.toml."""

import runpy
import shutil
import sys
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Distribution, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

ROOT = Path(__file__).parent
FACTS = runpy.run_path(str(ROOT / "python" / "smartmem_tvm" / "_version.py"))
NATIVE = runpy.run_path(str(ROOT / "native" / "build.py"))
README = ROOT / "README.md"
# A library that was not built, and what then lacks.
WITHOUT = {"opencl": "OpenCL", "stream": "streaming of weights", "threads": "threads of its own"}


class BuildNative(Command):
    """Builds the native libraries into the package; without them it works too, on the CPU with weights in memory.

    A command of its own and no `Extension`: they are opened with ctypes, are no modules of one Python version, and
    must build where Python's headers are missing.
    """

    description = "build the native libraries"
    user_options: ClassVar = [
        ("build-lib=", None, "where the package is put together"),
        ("build-temp=", None, "where objects go"),
    ]
    editable_mode = False

    def initialize_options(self):
        """Set what setuptools fills in."""
        self.build_lib = self.build_temp = None

    def finalize_options(self):
        """Take the folders of the whole build."""
        self.set_undefined_options("build", ("build_platlib", "build_lib"), ("build_temp", "build_temp"))

    def run(self):
        """Build them, or leave the reason in a file beside each: pip hides what is printed here."""
        # What is installed as editable shares its objects with `python native/build.py`.
        target, objects = ROOT / "python", ROOT / "build"
        if not self.editable_mode:
            target, objects = Path(self.build_lib), Path(self.build_temp)
        for library, sources in NATIVE["LIBRARIES"].items():
            self.build(target / library, objects / "native", sources)
        if not self.editable_mode:
            for source, copy in self.runner_sources().items():
                (target / copy).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, target / copy)

    def runner_sources(self):
        """What `smartmem export --runner` builds for other machines -> where it is installed."""
        folders = (Path("native"), *(Path("native", name) for name in ("compat", "run", "stream", "threads")))
        files = [Path(name) for name in self.get_source_files() if not name.endswith((".py", ".md"))]
        kept = [file for file in files if file.parent == folders[0] or any(f in file.parents for f in folders[1:])]
        return {file: Path("smartmem_tvm") / file for file in kept}

    def build(self, library, objects, sources):
        """Build one library."""
        why = library.with_suffix(".txt")
        why.unlink(missing_ok=True)
        try:
            NATIVE["build"](library, objects, sources)
        except NATIVE["BuildError"] as error:
            library.unlink(missing_ok=True)
            why.parent.mkdir(parents=True, exist_ok=True)
            why.write_text(f"{error}\n", encoding="utf-8")
            print(f"smartmem-tvm is installed without {WITHOUT[library.stem]}: {error}.", file=sys.stderr)

    def get_source_files(self):
        """Name what belongs into a source distribution."""
        files = (path for path in (ROOT / "native").rglob("*") if path.suffix in (".cc", ".h", ".md", ".py", ".txt"))
        return sorted(str(path.relative_to(ROOT)) for path in files)

    def get_outputs(self):
        """Name what `run` leaves behind."""
        sources = () if self.editable_mode else self.runner_sources().values()
        return [str(Path(self.build_lib) / file) for file in (*NATIVE["LIBRARIES"], *sources)]

    def get_output_mapping(self):
        """Map outputs to the files they are copies of: none are."""
        return {}


class Wheel(bdist_wheel):
    """Its libraries are for one kind of machine and for any Python: they are opened with ctypes."""

    def get_tag(self):
        """Name interpreter, ABI and platform; `make wheel` has the last one named by what the libraries need."""
        return "py3", "none", super().get_tag()[2]


class BinaryDistribution(Distribution):
    """Says that a wheel of this package is for one kind of machine."""

    def has_ext_modules(self):
        """Whether there is something compiled."""
        return True


def packages() -> list[str]:
    """Every folder with Python files; one without ``__init__.py`` would be left out without a word."""
    found = find_packages("python")
    folders = {path.parent.relative_to(ROOT / "python") for path in (ROOT / "python").rglob("*/*.py")}
    if lost := {".".join(folder.parts) for folder in folders} - set(found):
        raise SystemExit(f"setup.py: no __init__.py in {', '.join(sorted(lost))}; add one, or it is not installed.")
    return found


build.sub_commands.append(("build_native", None))

setup(
    name="smartmem-tvm",
    version=FACTS["__version__"],
    description="TVM Relax passes that remove layout operators, choose storage layouts and fuse what is left",
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    distclass=BinaryDistribution,
    cmdclass={"build_native": BuildNative, "bdist_wheel": Wheel},
    package_dir={"": "python"},
    packages=packages(),
    package_data={"smartmem_tvm.tools.page": ["assets/*"], "smartmem_tvm.tools.isa": ["*.c"]},
    py_modules=["_smartmem_opencl", "_smartmem_opencl_vectors", "_smartmem_opencl_workers", "_smartmem_pipeline"],
    install_requires=[
        # Exact on purpose, see TVM_PINS.
        *(f"{name}=={version}" for name, version in FACTS["TVM_PINS"].items()),
        "numpy",
        "onnx>=1.17",
        "onnxruntime>=1.20",
        "rich>=13",
    ],
    extras_require={
        **{extra: FACTS["requirements"](extra) for extra in FACTS["EXTRAS"]},
        "dev": [
            *(name for extra in ("exact", "gguf", "plots", "pocl", "tune") for name in FACTS["requirements"](extra)),
            *("auditwheel", "build", "packaging", "pytest>=8", "pytest-xdist", "hypothesis", "pyelftools", "ruff"),
            *("selenium>=4", "setuptools>=70.1"),
            "tomli; python_version < '3.11'",
            "cmake",
        ],
    },
    entry_points={
        "console_scripts": ["smartmem = smartmem_tvm.cli:main"],
        # TVM calls these at the end of its import, so that a plain `import tvm` finds OpenCL, in an RPC server too,
        # and knows the pipeline.
        "tvm.backends": [
            "smartmem_opencl = _smartmem_opencl:autoload",
            "smartmem_pipeline = _smartmem_pipeline:autoload",
        ],
        # torch.compile(model, backend="smartmem")
        "torch_dynamo_backends": ["smartmem = smartmem_tvm.torch_backend:smartmem"],
    },
)
