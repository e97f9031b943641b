# SPDX-License-Identifier: Apache-2.0
import os
import threading
import time

import numpy as np
import pytest
from onnx import helper

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import from_onnx
from smartmem_tvm.frontend.apart import model_apart

ROOM = 2**30
TENSOR = ((2, 3), "float32")


def _fails(error):
    def make():
        raise error

    return make


def test_what_is_made_comes_back(relu_model):
    assert model_apart(lambda: relu_model, "m", ROOM) == relu_model


def test_a_refusal_comes_through(relu_model):
    with pytest.raises(UserError, match=r"^it is too ünï$"):
        model_apart(_fails(UserError("it is too ünï")), "m", ROOM)


def test_an_error_of_this_package_stays_one():
    with pytest.raises(RuntimeError, match=r"(?s)Traceback.*ZeroDivisionError: by whom"):
        model_apart(_fails(ZeroDivisionError("by whom")), "m", ROOM)


@pytest.mark.parametrize("ends", [os.abort, lambda: bytearray(2 * ROOM), lambda: np.ones(ROOM, "float64")])
def test_a_crash_and_too_much_memory_are_refusals(ends):
    with pytest.raises(UserError, match="m has a graph that ONNX's libraries fail on"):
        model_apart(ends, "m", ROOM)


def test_a_copy_that_waits_for_a_thread_it_has_not_is_made_again(tmp_path, relu_model):
    """As with a lock of ONNX Runtime's, of which the copy has nobody to give it back."""
    begun = tmp_path / "begun"

    def make():
        if begun.exists():
            return relu_model
        begun.touch()
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()

    assert model_apart(make, "m", ROOM) == relu_model


def test_a_copy_that_works_for_long_is_left_alone(relu_model):
    def make():
        end = time.monotonic() + 2
        while time.monotonic() < end:
            pass
        return model_apart(lambda: time.sleep(0.5) or relu_model, "m", ROOM)  # and waits for a copy of its own

    assert model_apart(make, "m", ROOM) == relu_model


def test_a_file_on_which_onnx_aborts_is_refused(build):
    """A Pad that leaves fewer than no elements, and a Slice of them, beside something to fold."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Pad", ["x", "pads"], ["p"]),
        helper.make_node("Slice", ["p", "one", "two", "one"], ["y"]),
    ]
    constants = {"pads": np.array([0, -9, 0, 1]), "one": np.array([1]), "two": np.array([2])}
    with pytest.raises(UserError, match=r"ONNX's libraries fail on \(it ended with -6\)"):
        from_onnx(build(nodes, {"x": TENSOR}, {"y": ((2, None), "float32")}, constants))


@pytest.mark.parametrize(
    ("op_type", "constants", "attributes"),
    [
        ("GatherND", {"i": np.array([[0]])}, {"batch_dims": -5}),
        ("Div", {"a": np.int64(-(2**63)), "b": np.int64(-1)}, {}),
    ],
)
def test_other_crashes_of_theirs_are_refusals_too(build, op_type, constants, attributes):
    """A read out of bounds in ONNX's inference, and a division that overflows in ONNX Runtime's folding."""
    inputs = ["x", *constants] if op_type == "GatherND" else list(constants)
    nodes = [helper.make_node(op_type, inputs, ["y"], **attributes), helper.make_node("Shape", ["x"], ["s"])]
    model = build(nodes, {"x": TENSOR}, {"s": ((2,), "int64")}, constants)
    with pytest.raises(UserError, match=r"ONNX's libraries fail on \(it ended with -(8|11)\)"):
        from_onnx(model)
