# SPDX-License-Identifier: Apache-2.0
"""Which functions of a module its caller knows."""

import tvm

from functions import called_and_caller, linear
from helpers import module, op
from smartmem_tvm.ir.public_functions import default_function, entry_functions, public_functions


def test_of_several_none_is_the_default():
    mod = linear({"prefill": (5, 8), "decode": (1, 8)})[0]
    assert public_functions(mod) == entry_functions(mod) == ["decode", "prefill"]
    assert default_function(mod) is None


def test_main_is_the_default_and_so_is_the_only_one():
    assert default_function(module(op.exp, (2, 3))) == "main"
    assert default_function(called_and_caller()) == "main"
    assert default_function(linear({"forward": (5, 8)})[0]) == "forward"
    assert default_function(tvm.IRModule()) is None


def test_what_is_called_is_no_entry():
    mod = called_and_caller()
    assert public_functions(mod) == ["main", "twice"]
    assert entry_functions(mod) == ["main"]


def test_main_needs_no_symbol_and_others_do():
    func = module(op.exp, (2, 3))["main"].without_attr("global_symbol")
    assert public_functions(tvm.IRModule({"main": func, "other": func})) == ["main"]
