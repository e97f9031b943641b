# SPDX-License-Identifier: Apache-2.0
"""Run TVM's own tests of its Adreno backend with this package imported, on this machine's first OpenCL device.

They are in TVM's source, not in its wheel: ``git clone --branch v0.27.0.post1 https://github.com/apache/tvm``, of which
only the folder of these tests is read. Some operators TVM skips as known failures; ``--skipped`` runs them too. CLML's
tests need Qualcomm's library and are left out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path("tests/python/relax/backend/adreno")
KNOWN_FAILURE = '@pytest.mark.skip(reason="Known failure'


def copy_tests(checkout: Path, folder: Path, skipped: bool) -> int:
    """Copy the tests of a checkout of TVM, beside a conftest.py that imports this package; returns how many files."""
    files = [path for path in sorted((checkout / TESTS).glob("*.py")) if "clml" not in path.name]
    for path in files:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if not (skipped and line.startswith(KNOWN_FAILURE))]
        (folder / path.name).write_text("".join(kept), encoding="utf-8")
    (folder / "conftest.py").write_text("import smartmem_tvm\n", encoding="utf-8")
    return len(files)


def main() -> int:
    """Return pytest's exit code, or 2 if there are no such tests."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkout", type=Path, help="folder of TVM's source")
    parser.add_argument("--skipped", action="store_true", help="also run what TVM skips as known failures")
    parser.add_argument("options", nargs="*", help="further options of pytest, after --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tvm-adreno-") as folder:
        if not copy_tests(options.checkout, Path(folder), options.skipped):
            print(f"error: {options.checkout} has no tests in {TESTS}: name a checkout of TVM's source.")
            return 2
        pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "markers=gpu", "-rs", "--durations=3"]
        return subprocess.run([*pytest, *options.options, folder], cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
