# SPDX-License-Identifier: Apache-2.0
import os
import signal
import subprocess
import sys
import threading
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, shape_inference

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import from_onnx
from smartmem_tvm.frontend import helper as process
from smartmem_tvm.frontend.child_process import Stopped, in_child_process, model_in_child_process
from smartmem_tvm.frontend.prepare import Known, changed

ROOM = 2**30
GRANDPARENT = (eval, "int(open(f'/proc/{__import__(\"os\").getppid()}/stat').read().split()[3])")
TENSOR = ((2, 3), "float32")


def test_what_is_made_comes_back(relu_model):
    made = model_in_child_process(shape_inference.infer_shapes, relu_model, name="m", memory=ROOM)
    assert made == shape_inference.infer_shapes(relu_model)


def test_a_refusal_comes_through(build):
    """Of `changed`, whose loop has a trip count that nothing knows."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Identity", ["v"], ["w"])],
        "ünï",
        [
            helper.make_tensor_value_info(name, kind, shape)
            for name, kind, shape in (("i", 7, []), ("c", 9, []), ("v", 1, [2, 3]))
        ],
        [helper.make_tensor_value_info("d", 9, []), helper.make_tensor_value_info("w", 1, [2, 3])],
    )
    nodes = [helper.make_node("Loop", ["n", "", "x"], ["y"], name="ünï", body=body)]
    model = build(nodes, {"x": TENSOR, "n": ((), "int64")}, {"y": TENSOR})
    with pytest.raises(UserError, match="ünï"):
        model_in_child_process(changed, model, "m", Known(frozenset(), frozenset(["Loop"])), name="m", memory=ROOM)


def test_an_error_of_this_package_stays_one():
    with pytest.raises(RuntimeError, match=r"(?s)Traceback.*ZeroDivisionError"):
        in_child_process(Fraction, 1, 0, seconds=60, memory=ROOM)


@pytest.mark.parametrize("ends", [(os.abort,), (bytearray, 2 * ROOM), (np.ones, ROOM), (time.sleep, 60)])
def test_a_crash_a_hang_and_too_much_memory_are_told(ends):
    with pytest.raises(Stopped, match=r"ended with -|memory"):
        in_child_process(*ends, seconds=2, memory=ROOM)


def test_the_process_has_neither_tvm_nor_our_threads():
    names = in_child_process(eval, "list(__import__('sys').modules)", seconds=60, memory=ROOM)
    assert "smartmem_tvm.frontend.control_flow" in names and "onnxruntime" in names
    assert not [name for name in names if name.split(".")[0] in ("tvm", "tvm_ffi")]
    assert in_child_process(threading.active_count, seconds=60, memory=ROOM) == 1


def test_one_process_serves_all_calls_and_threads():
    parents = set()
    calls = [
        threading.Thread(target=lambda: parents.add(in_child_process(*GRANDPARENT, seconds=60, memory=ROOM)))
        for _ in range(16)
    ]
    for each in calls:
        each.start()
    for each in calls:
        each.join()
    assert parents == {process._helper.process.pid}


def test_it_starts_again_when_it_was_killed():
    first = in_child_process(os.getpid, seconds=60, memory=ROOM)
    os.kill(process._helper.process.pid, signal.SIGKILL)
    assert in_child_process(os.getpid, seconds=60, memory=ROOM) != first


def test_it_ends_with_its_parent():
    code = (
        "import os\nfrom smartmem_tvm.frontend import helper\n"
        "from smartmem_tvm.frontend.child_process import in_child_process\n"
        "in_child_process(os.getpid, seconds=60, memory=2**30)\n"
        "print(helper._helper.process.pid)\nos.kill(os.getpid(), 9)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    deadline = time.monotonic() + 20
    while Path("/proc", found.stdout.strip()).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path("/proc", found.stdout.strip()).exists()


def test_a_fork_of_this_process_has_one_of_its_own():
    in_child_process(os.getpid, seconds=60, memory=ROOM)
    mine = process._helper.process.pid
    mine_read, other = os.pipe()
    if not (child := os.fork()):
        os.write(other, str(in_child_process(*GRANDPARENT, seconds=60, memory=ROOM) != mine).encode())
        os._exit(0)
    os.close(other)
    assert os.read(mine_read, 10) == b"True"
    os.waitpid(child, 0)


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
