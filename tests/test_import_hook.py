# SPDX-License-Identifier: Apache-2.0
"""A function that is called at the end of an import."""

import importlib
import importlib.util
import sys

import pytest

from smartmem_tvm._import_hook import after_import


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Return the calls of the function, with the names that it saw in a package ``late``, which is imported later."""
    (tmp_path / "late.py").write_text("import os\nnumber = int(os.environ['LATE'])\n")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("LATE", "7")
    seen: list[int] = []
    yield seen
    sys.modules.pop("late", None)


def hook(calls: list) -> None:
    after_import("late", lambda: calls.append(sys.modules["late"].number))


def test_before_the_import_it_waits_for_its_end_and_is_called_once(calls):
    finders = list(sys.meta_path)
    hook(calls)
    assert importlib.util.find_spec("late") is not None and importlib.util.find_spec("no_such_package") is None
    assert calls == []
    importlib.import_module("late")
    assert calls == [7] and sys.meta_path == finders
    importlib.reload(sys.modules["late"])
    assert calls == [7]


def test_after_the_import_it_is_called_at_once(calls):
    importlib.import_module("late")
    hook(calls)
    assert calls == [7]


def test_an_import_that_fails_may_be_tried_again(calls, monkeypatch):
    hook(calls)
    monkeypatch.setenv("LATE", "seven")
    with pytest.raises(ValueError, match="seven"):
        importlib.import_module("late")
    monkeypatch.setenv("LATE", "8")
    importlib.import_module("late")
    assert calls == [8]


def test_a_package_that_is_not_there_stays_a_package_that_is_not_there(calls):
    after_import("no_such_package", lambda: calls.append(0))
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_package")
    assert calls == []
