# SPDX-License-Identifier: Apache-2.0
"""Packaging: metadata, dependencies and the `smartmem` command. Tool settings are in pyproject.toml."""

import runpy
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
FACTS = runpy.run_path(str(ROOT / "python" / "smartmem_tvm" / "_version.py"))
README = ROOT / "README.md"

setup(
    name="smartmem-tvm",
    version=FACTS["__version__"],
    description="TVM Relax passes that remove layout operators, choose storage layouts and fuse what is left",
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    package_dir={"": "python"},
    packages=find_packages("python"),
    install_requires=[
        # Exact on purpose, see TVM_PINS.
        *(f"{name}=={version}" for name, version in FACTS["TVM_PINS"].items()),
        "numpy",
        "onnx>=1.17",
        "onnxruntime>=1.20",
        "rich>=13",
    ],
    extras_require={
        **{extra: list(names) for extra, names in FACTS["EXTRAS"].items()},
        "dev": [
            *FACTS["EXTRAS"]["plots"],
            *("pytest>=8", "pytest-xdist", "hypothesis", "ruff", "tomli; python_version < '3.11'"),
        ],
    },
    entry_points={"console_scripts": ["smartmem = smartmem_tvm.cli:main"]},
)
