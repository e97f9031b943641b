# SPDX-License-Identifier: Apache-2.0
"""The real parser accepts every command of a page; commands and programs run, except for those in `NOT_RUN`."""

import argparse
import ast
import importlib
import os
import re
from importlib.util import find_spec

import numpy as np
import onnx
import pytest

from doc_blocks import IMAGE, PAGES, ROOT, Command, blocks, commands, mentions, name_of, words, workplace
from smartmem_tvm._version import EXTRAS
from smartmem_tvm.cli import build_parser, main

COMMANDS = sorted({each for page in PAGES for each in commands(page)}, key=str)
PROGRAMS = {"adb", "apt-get", "cmake", "export", "git", "cd", "tar", "unzip", "file", "pytest", "cp", "gcc", "g++"}
"""Programs of others, whose options are not checked."""
NOT_RUN = {
    r"--tracker|--key| (rpc|phone|devices|measure) ": "devices of other machines: tests/remote, tests/cli/test_rpc.py",
    r"--target cuda|make bench": "a GPU",
    r"torch|\.pt2": "torch, which the tests do without",
    r"smartmem isa": "Mesa's compiler: tests/cli/test_isa.py",
    r"smartmem bench": "minutes, and other systems: tests/cli/test_bench.py",
    r"smartmem tune|records|--effort": "minutes: tests/cli/test_tune.py",
    r"smartmem reduce|small\.onnx": "a model that fails: tests/tools/reduce",
    r"smartmem profile|--layout fluid": "minutes: tests/cli/test_profile.py, tests/cli/test_layouts.py",
    r"lib\.so|--runner|--requests": "programs of native/: tests/native",
    r"MODEL|here\.json|swin_phone": "what another command of the page makes",
    r"decoder(_4bit)?\.onnx": "a user's file: tests/transform/precision/test_round_weights.py",
    r"llama\.onnx": "a user's file: tests/cli/test_accesses.py",
    r"silero_vad": "a file of another package: docs/wild.md",
}
"""Commands that are parsed and not run: a part of the command -> the reason, or the test that runs it."""
QUICK = {"docs/index.md"}
"""Pages whose commands run in a few seconds; so do the programs of the README."""


def run_here(command: Command) -> bool:
    """Whether a command is this package's and runs on a small network, without other devices."""
    line = " ".join(command.words)
    return command.words[0] == "smartmem" and not any(re.search(part, line) for part in NOT_RUN)


def pages(which, quick: set[str]) -> list:
    """Return the pages for which `which` finds something to run; most of them are in the slow tier."""
    found = [page for page in PAGES if which(page)]
    marks = {name: () if name in quick else pytest.mark.device for name in map(name_of, found)}
    return [pytest.param(page, id=name_of(page), marks=marks[name_of(page)]) for page in found]


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.words[0] == "smartmem"], ids=str)
def test_the_parser_takes_it(command):
    try:
        build_parser().parse_args(command.words[1:])
    except SystemExit as done:
        assert done.code == 0, command
    for path in (each for each in command.words if each.startswith(("models/", "tuning_logs/"))):
        assert list(ROOT.glob(path)), path


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.words[0] != "smartmem"], ids=str)
def test_other_commands_name_what_exists(command):
    program, *rest = command.words
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
        assert [each for each in rest if "=" not in each and each not in targets] == []
    elif program == "pip":
        extras = {name for group in re.findall(r"\[([\w,]+)\]", " ".join(rest)) for name in group.split(",")}
        assert extras <= {*EXTRAS, "dev"}
    elif program == "python":
        assert rest[0] in ("program.py", "-m") or (ROOT / rest[0]).is_file()
    else:
        assert program in PROGRAMS or "/" in program  # what the page has made


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """Return the options of a command and of its subcommands."""
    below = [each.choices.values() for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    return {*parser._option_string_actions, *(name for group in below for each in group for name in options_of(each))}


@pytest.mark.parametrize("page", [page for page in PAGES if mentions(page)], ids=name_of)
def test_commands_in_the_text_exist(page):
    (known,) = (each.choices for each in build_parser()._actions if isinstance(each.choices, dict))
    for line in mentions(page):
        command, *rest = words(line)[1:]
        if command != "COMMAND" and not command.startswith("-"):
            options = {each.partition("=")[0] for each in rest if each.startswith("--")}
            assert command in known and options <= options_of(known[command]), line


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
def test_what_programs_import_exists(page):
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("smartmem_tvm"):
                module = importlib.import_module(node.module)
                assert [each.name for each in node.names if not is_in(module, each.name)] == []


def is_in(module, name: str) -> bool:
    """Whether a module has an attribute, or a submodule that is not imported, of this name."""
    return (hasattr(module, "__path__") and find_spec(f"{module.__name__}.{name}") is not None) or hasattr(module, name)


@pytest.mark.parametrize("page", pages(lambda page: any(map(run_here, commands(page))), QUICK))
def test_commands_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(workplace(tmp_path))
    for command in filter(run_here, commands(page)):
        if "out" in command.words and not os.path.exists("out"):  # noqa: PTH110
            assert main(["compile", "models/swin_t.onnx", "-o", "out"]) == 0
        assert main(list(command.words[1:])) == 0, command


def program_runs(block: str) -> bool:
    """Whether a program is complete, needs no other device, and need not be the first of its process."""
    return not re.search(
        r"cuda\"\)|import torch|torch\.(?!export)|torch_|remote|records\.jsonl|profiles=|opencl\.select", block
    )


@pytest.mark.parametrize("page", pages(lambda page: any(map(program_runs, blocks(page, "python"))), {"README.md"}))
def test_programs_run(page, tmp_path, monkeypatch):
    """The programs of a page run one after the other, with the names that the page takes as given."""
    import smartmem_tvm as sm
    from smartmem_tvm.target import parse_target

    monkeypatch.chdir(workplace(tmp_path))
    found = {"image": np.zeros(IMAGE, "float32"), "target": parse_target("cpu"), "proto": onnx.load("model.onnx")}
    found |= {"mod": sm.from_onnx("model.onnx"), "arrays": {"x": found["image"]}, "is_wrong": lambda *_: True}
    for command in filter(run_here, commands(page) if "load(" in page.read_text("utf-8") else ()):
        assert main(list(command.words[1:])) == 0
    for block in filter(program_runs, blocks(page, "python")):
        exec(compile(block, name_of(page), "exec"), found)
