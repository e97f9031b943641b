# SPDX-License-Identifier: Apache-2.0
"""Temporary folders that do not stay behind."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from smartmem_tvm.tune.scratch import scratch


@pytest.fixture(autouse=True)
def top(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_temporary_files_of_this_process_and_of_others_are_below_it_and_go_with_it(top):
    with scratch() as folder:
        mine = Path(tempfile.mkdtemp())
        command = [sys.executable, "-c", "import tempfile; print(tempfile.mkdtemp())"]
        theirs = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
        assert mine.parent == theirs.parent == folder and folder.parent == top
    assert not list(top.iterdir()) and tempfile.gettempdir() == str(top) == os.environ["TMPDIR"]


def test_the_folder_of_a_process_that_was_killed_is_removed_and_that_of_one_that_lives_is_not(top):
    code = """
import os
from smartmem_tvm.tune.scratch import scratch
with scratch():
    os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", code])
    assert len(list(top.iterdir())) == 1
    with scratch() as first, scratch():
        assert first.exists() and len(list(top.iterdir())) == 1  # the second one is in the first
        os.environ["TMPDIR"] = tempfile.tempdir = str(top)
        with scratch() as third:
            assert sorted(top.iterdir()) == sorted([first, third])


def test_it_goes_after_an_error_too(top):
    with pytest.raises(KeyError), scratch():
        raise KeyError
    assert not list(top.iterdir())
