# SPDX-License-Identifier: Apache-2.0
"""Scripts of `benchmarks/` run in this process: in one of its own, importing TVM takes more than a second."""

import importlib
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from subprocess import CompletedProcess
from unittest import mock


def run_here(script: str, *arguments) -> CompletedProcess:
    """Call ``main`` of a script, whose folder is in `sys.path`, with these words; return its exit code and output."""
    words = [f"{script}.py", *map(str, arguments)]
    out, err = StringIO(), StringIO()
    with mock.patch.object(sys, "argv", words), redirect_stdout(out), redirect_stderr(err):
        try:
            code = importlib.import_module(script).main()
        except SystemExit as end:
            code = end.code
            if isinstance(code, str):
                print(code, file=sys.stderr)
                code = 1
    return CompletedProcess(words, code or 0, out.getvalue(), err.getvalue())
