# SPDX-License-Identifier: Apache-2.0
"""scripts/count_code.py counts code lines, and functions with a single caller, correctly."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "count_code.py"
CODE = '''"""A docstring
of two lines."""

# a comment
TABLE = {
    "a": 1,  # counts

    "b": """a text
    of two lines""",
}


def once():
    """A sentence."""
    return 1


def twice():
    return once()  # the only caller


twice(), twice()
'''


def test_counts(tmp_path):
    (tmp_path / "module.py").write_text(CODE)
    done = subprocess.run([sys.executable, str(SCRIPT), str(tmp_path), "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "code_lines": 10,
        "files": 1,
        "small_files": 1,
        "functions": 2,
        "single_caller": 1,
        "short_with_single_caller": 1,
    }
    said = subprocess.run([sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True, text=True).stdout
    assert said.startswith("10 code lines in 1 files, 1 of these under 40 lines; 2 functions, 1 with a single caller")
