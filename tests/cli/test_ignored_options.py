# SPDX-License-Identifier: Apache-2.0
"""Options that would do nothing are refused in one sentence; one thing has one name in all commands."""

import argparse

import pytest

from smartmem_tvm.cli import COMMANDS, build_parser
from smartmem_tvm.cli.ignored_options import IGNORED, spelled


def parsers() -> dict[str, argparse.ArgumentParser]:
    return next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction)).choices


FOLDER = "{folder}"
CASES = [
    (["export-graph", FOLDER, "-o", "k.onnx", "--no-fuse"], "--no-fuse", "compiled already"),
    (["export-graph", FOLDER, "-o", "k.onnx", "--target", "opencl"], "--target", "compiled already"),
    (["run", FOLDER, "--no-tuned"], "--no-tuned", "compiled already"),
    (["run", FOLDER, "--shape", "x:1"], "--shape", "compiled already"),
    (["run", FOLDER, "--check-bounds"], "--check-bounds", "compiled already"),
    (["run", FOLDER, "--input", "x.npz", "--seed", "3"], "--seed", "beside x.npz"),
    (["plan", FOLDER, "--memory-budget", "1MB"], "--memory-budget", "compiled already"),
    (["plan", FOLDER, "--layout", "fluid"], "--layout", "compiled already"),
    (["plan", FOLDER, "--no-layout"], "--no-layout", "compiled already"),
    (["rpc", "query", "--tracker", "127.0.0.1:1", "--key", "here"], "--key", "asks a tracker for all keys"),
    (["rpc", "tracker", "--key", "here"], "--key", "servers register"),
    (["records", "check", "a.jsonl", "-o", "b.jsonl"], "--output", "writes nothing"),
    (["records", "merge", "a.jsonl", "-o", "b.jsonl", "--keep", "2"], "--keep", "keeps all"),
    (["explain", "m.onnx", "--threads", "1"], "--threads", "give --schedules"),
    (["stats", "m.onnx", "--repeat", "3"], "--repeat", "give --run"),
    (["bench", "m.onnx", "--large"], "--large", "--suite"),
    (["tune", "m.onnx", "--timeout", "3"], "--timeout", "no device of a tracker"),
    (["opt", "--list", "--print"], "--print", "--list"),
    (["phone", "--stop", "--key", "pixel"], "--key", "no server is started"),
]


@pytest.mark.parametrize(("arguments", "option", "why"), CASES, ids=[" ".join(each[0]) for each in CASES])
def test_what_does_nothing_is_refused(smartmem, compiled_folder, arguments, option, why):
    done = smartmem(*(compiled_folder if each == FOLDER else each for each in arguments))
    assert done.code == 2 and f"Option {option} does nothing here: " in done.err and why in done.err
    assert done.err.count("\n") == 1 and done.err.rstrip().endswith(".")


def test_the_table_names_commands_and_options_that_there_are():
    commands = parsers()
    for name, cases in IGNORED.items():
        known = {action.dest for action in commands[name]._actions}
        assert all(known.issuperset(case.options) for case in cases), name
    assert {module.NAME for module in COMMANDS} == set(commands)


def test_what_takes_a_folder_or_a_file_has_a_case_for_the_folder(compiled_folder):
    """Of the options of a compilation none acts on a folder, in any command that takes one."""
    takers = [name for name, parser in parsers().items() if "a folder" in _help_of(parser, "model")]
    assert sorted(takers) == ["export", "export-graph", "isa", "plan", "run"]
    compilation = {action.dest for action in parsers()["compile"]._actions} - {"help", "model", "output", "json"}
    for name in takers:
        mine = {action.dest for action in parsers()[name]._actions}
        cases = [
            each
            for each in IGNORED[name]
            if each.when(argparse.Namespace(model=compiled_folder, input=None, setup=False))
        ]
        ignored = {option for case in cases for option in case.options}
        assert (compilation & mine) - ignored - {"traceback"} == ({"memory_budget"} if name == "run" else set())


def _help_of(parser: argparse.ArgumentParser, dest: str) -> str:
    return next((action.help or "" for action in parser._actions if action.dest == dest), "")


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("tune", ("--records", "--output", "-o")),
        ("profile", ("--profiles", "--store")),
        ("measure", ("--repeat", "--runs")),
        ("run", ("-o", "--output")),
        ("verify", ("--rtol", "--tolerance")),
    ],
)
def test_one_thing_has_one_name_and_its_old_one(command, names):
    actions = parsers()[command]._option_string_actions
    assert len({id(actions[each]) for each in names}) == 1


def test_a_switch_is_named_as_it_was_given():
    parser = parsers()["explain"]
    for given, spelling in (([], "--records"), (["--no-tuned"], "--no-tuned"), (["--records", "f"], "--records")):
        assert spelled(parser, "records", parser.parse_args(["m.onnx", *given])) == spelling
