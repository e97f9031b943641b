# SPDX-License-Identifier: Apache-2.0
"""Refuse options that have no effect together with the other arguments of a command."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from .model import TECHNIQUES

_LEAVE = "leave it out"


@dataclass(frozen=True)
class Ignored:
    """Options without an effect in one case.

    Attributes
    ----------
    when : callable
        (arguments) -> whether the case applies.
    options : tuple of str
        Names in the parsed arguments.
    why : str
        The reason, a text with names of arguments in braces.
    remedy : str
    """

    when: Callable[[argparse.Namespace], bool]
    options: tuple[str, ...]
    why: str
    remedy: str = _LEAVE


COMPILATION = (
    "target",
    "profiles",
    "records",
    "dump_dir",
    "check",
    "precision",
    "weights",
    "activations",
    "float_weights",
    "layout",
    *TECHNIQUES,
)
_COMPILED = (
    lambda args: Path(args.model).is_dir(),
    "{model} is compiled already",
    "give the ONNX file, or leave it out",
)


_OF_FOLDER = tuple(dict.fromkeys(("shape", "value", *COMPILATION)))


def _for_a_folder(*more: str, takes: tuple[str, ...] = ()) -> Ignored:
    when, why, remedy = _COMPILED
    options = (each for each in (*_OF_FOLDER, *more) if each not in takes)
    return Ignored(when, tuple(dict.fromkeys(options)), why, remedy)


def _of_action(name: str, *options: str, why: str) -> Ignored:
    return Ignored(lambda args: args.action == name, options, why)


def _is_of_one_size(args: argparse.Namespace) -> bool:
    if not Path(args.model).is_dir():
        return False
    from ..deploy.manifest import sizes_in

    return not sizes_in(Path(args.model))


_ONE_SIZE = Ignored(_is_of_one_size, ("shape",), *_COMPILED[1:])  # of a folder of several sizes it chooses one
_SEED = Ignored(lambda args: args.input is not None, ("seed",), "no input is drawn beside {input}")
_NO_TRACKER = Ignored(lambda args: args.tracker is None, ("timeout",), "no device of a tracker is waited for")

# Command -> its cases.
IGNORED: dict[str, tuple[Ignored, ...]] = {
    "run": (_for_a_folder("bounds", "cache", takes=("shape",)), _ONE_SIZE, _SEED),
    "verify": (_SEED,),
    "measure": (_SEED,),
    "reduce": (
        _SEED,
        Ignored(
            lambda args: args.command is not None, (*COMPILATION, "rtol", "atol"), "--command says what fails, and how"
        ),
    ),
    "plan": (_for_a_folder("memory_budget", "cache", takes=("shape",)), _ONE_SIZE),
    "export": (_for_a_folder("memory_budget"),),
    "export-graph": (
        _for_a_folder(),
        Ignored(lambda args: True, ("arena", "cuda_graph"), "a graph of kernels is the same with and without"),
    ),
    "explain": (
        Ignored(
            lambda args: not args.schedules and args.why is None,
            ("threads", "records", "schedule", "winograd", "arena"),
            "schedules and memory are no part of what is explained without --schedules or --why",
            "give --schedules or --why, or leave it out",
        ),
        Ignored(lambda args: args.why is not None, ("op", "all", "schedules", "arena"), "--why is about one kernel"),
        Ignored(lambda args: True, ("cuda_graph",), "kernels are looked at one by one"),
    ),
    "accesses": (Ignored(lambda args: True, ("schedule",), "accesses are those of scheduled kernels"),),
    "isa": (
        Ignored(
            lambda args: args.setup,
            ("kernel", "gpu", "shape", "value", "cache", *(name for name in COMPILATION if name != "target")),
            "--setup only gets Mesa's compiler",
        ),
        Ignored(lambda args: args.model is not None and _COMPILED[0](args), (*_OF_FOLDER, "cache"), *_COMPILED[1:]),
        Ignored(lambda args: True, ("schedule", "arena", "cuda_graph"), "it is about code of scheduled kernels"),
    ),
    "stats": (
        Ignored(
            lambda args: not args.run, ("repeat",), "nothing is timed without --run", "give --run, or leave it out"
        ),
    ),
    "bench": (
        Ignored(lambda args: args.suite is None, ("models", "large"), "it is about the models of a --suite"),
        Ignored(lambda args: args.output is None, ("again",), "nothing is known to be finished without --output"),
    ),
    "tune": (_NO_TRACKER,),
    "profile": (_NO_TRACKER,),
    "opt": (
        Ignored(
            lambda args: args.list,
            ("passes", "output", "print_module", "shape", "value", "profiles", "records", "check", "simplify"),
            "--list only says what there is",
        ),
    ),
    "phone": (
        Ignored(
            lambda args: args.stop or args.status,
            ("tracker", "key", "server", "push", "port"),
            "no server is started",
            "leave it out, or --stop and --status",
        ),
    ),
    "records": (
        _of_action("check", "output", "keep", why="`records check` writes nothing"),
        _of_action("repair", "output", "keep", why="`records repair` writes FILE itself, all that is of use"),
        _of_action("prune", "output", why="`records prune` writes FILE itself"),
        *(_of_action(name, "keep", why=f"`records {name}` keeps all") for name in ("merge", "export")),
    ),
    "rpc": (
        _of_action("tracker", "tracker", "key", why="servers register with a tracker, and have keys"),
        _of_action(
            "query",
            "host",
            "port",
            "key",
            "with_parent",
            why="`rpc query` asks a tracker for all keys, and serves nothing",
        ),
    ),
}


def refuse_ignored(name: str, parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuse options that were given and have no effect.

    Parameters
    ----------
    name : str
        The name of the command.
    parser : argparse.ArgumentParser
        The parser of the command.

    Raises
    ------
    UserError
        For the first ignored option whose value is not the default.
    """
    for case in IGNORED.get(name, ()):
        given = (
            [each for each in case.options if getattr(args, each) != parser.get_default(each)]
            if case.when(args)
            else ()
        )
        for option in given:
            why = case.why.format(**vars(args))
            raise UserError(f"Option {spelled(parser, option, args)} does nothing here: {why}; {case.remedy}.")


def spelled(parser: argparse.ArgumentParser, option: str, args: argparse.Namespace) -> str:
    """Return an option as typed: of several switches of one argument, the one that sets its value."""
    actions = [each for each in parser._actions if each.dest == option]
    switches = [each for each in actions if each.nargs == 0 and each.const == getattr(args, option)]
    return next(each for each in (switches or actions)[0].option_strings if each.startswith("--"))
