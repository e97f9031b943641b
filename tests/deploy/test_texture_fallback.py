# SPDX-License-Identifier: Apache-2.0
"""Kernels that cannot be compiled with textures read and write buffers; mistakes of this package are none of them."""

import pytest
import tvm

import smartmem_tvm
from helpers import constant, module, op
from smartmem_tvm.deploy import build

MOD = module(lambda x: op.nn.relu(op.matmul(x, constant(64, 64))), (64, 64))


def failing(monkeypatch, error: Exception, times: int) -> list:
    """Let code generation end in `error` so many times; returns what it was called with."""
    called, generated = [], build._generated

    def generate(*args):
        called.append(args)
        if len(called) <= times:
            raise error
        return generated(*args)

    monkeypatch.setattr(build, "_generated", generate)
    return called


def test_what_tvm_refuses_is_compiled_with_buffers(monkeypatch):
    called = failing(monkeypatch, tvm.error.InternalError("no code for this"), 1)
    smartmem_tvm.compile(MOD, "adreno-740")
    assert len(called) == 2 and called[1][2].in_buffers


@pytest.mark.parametrize("error", [TypeError("an operand"), AttributeError("a name"), NameError("a name")])
def test_mistakes_are_not_hidden(monkeypatch, error):
    called = failing(monkeypatch, error, 1)
    with pytest.raises(type(error)):
        smartmem_tvm.compile(MOD, "adreno-740")
    assert len(called) == 1
