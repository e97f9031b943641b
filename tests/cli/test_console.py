# SPDX-License-Identifier: Apache-2.0
"""Printing: JSON that every parser reads, tables that hide nothing, progress on a terminal."""

import io
import json
import math

from rich.console import Console

from smartmem_tvm.cli import console


def test_json_goes_out_alone(capsys):
    console.emit(console.Result({"error": math.inf}, render=lambda _: print("no")), as_json=True)
    assert json.loads(capsys.readouterr().out) == {"error": None}


def test_table_folds_instead_of_cutting():
    text = io.StringIO()
    name = "a_very_long_operator_name_" * 3
    Console(file=text, width=40).print(console.table("title", ("name", "n"), [(name, "")], numbers=(1,)))
    letters = "".join(text.getvalue().split())
    assert name in letters.replace("─", "") and "…" not in letters


def test_columns_that_are_not_broken(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "30")
    name = "a_name_of_some_length"
    rows = [(name, "12345", "words that may be broken")] * 2
    shown = console.table("title", ("name", "MB moved", "why"), rows, numbers=(1,), whole=(0, 1))
    console.emit(console.Result({}, render=lambda out: out.print(shown)), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert sum(name in line and "12345" in line for line in lines) == 2
    assert max(map(len, lines)) <= 50, "what may be broken is"
    assert not any("MB moved" in line for line in lines), "and headings between words"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_for_terminals(monkeypatch):
    for stream, shown in ((io.StringIO(), False), (Terminal(), True)):
        monkeypatch.setattr("sys.stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        with console.step("Reading [x].onnx"):
            pass
        assert ("Reading [x].onnx" in stream.getvalue()) is shown


def test_no_color(monkeypatch, capsys):
    table = console.table("title", ("name",), [("x",)])
    for value, colored in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", value)
        monkeypatch.setenv("FORCE_COLOR", "1")
        result = console.Result({}, render=lambda out: out.print("hello", style="red"))
        console.emit(result, as_json=False)
        assert ("\x1b[31m" in capsys.readouterr().out) is colored
    assert table.row_count == 1
