# SPDX-License-Identifier: Apache-2.0
"""Buffers that stay: read and written at each run; states go round without a copy."""

import threading

import ml_dtypes
import numpy as np
import pytest
import tvm

from helpers import module, op
from smartmem_tvm import Options, UserError, compile
from smartmem_tvm.deploy.export import load, save
from tensor_buffers import Foreign, aligned, floats

STEPS = 10


def step(x, h, c):
    """The state that is computed, another that is passed through, and an output that is neither."""
    new = op.tanh(op.add(op.multiply(x, h), x))
    return op.add(new, new), new, c


@pytest.fixture(scope="module")
def cell():
    return compile(module(step, (2, 3), (2, 3), (4,)))


def expected(inputs, h):
    for x in inputs:
        h = np.tanh(x * h + x)
        yield h + h


@pytest.fixture(params=["compiled", "loaded"])
def session(request, cell, tmp_path):
    if request.param == "compiled":
        return cell.session()
    inputs = [{"name": f"x{at}", "shape": list(s), "dtype": "float32"} for at, s in enumerate([(2, 3), (2, 3), (4,)])]
    save(cell, tmp_path / "m", {"inputs": inputs, "outputs": ["output_0", "output_1", "output_2"]}, {})
    return load(tmp_path / "m").session()


KINDS = {
    "aligned": aligned,
    "anywhere": lambda shape: aligned(shape, off=4),
    "of TVM": lambda shape: tvm.runtime.empty(shape, "float32"),
    "of another library": lambda shape: Foreign(aligned(shape, off=20)),
}


def array(buffer) -> np.ndarray:
    return buffer.array if isinstance(buffer, Foreign) else np.from_dlpack(buffer)


@pytest.mark.parametrize("kind", KINDS)
def test_buffers_are_read_and_written_at_each_run(session, kind):
    x, h, c, y = (KINDS[kind](shape) for shape in ((2, 3), (2, 3), (4,), (2, 3)))
    array(h)[:], array(c)[:] = floats(2, 3), floats(4)
    bound = session.bind({"x0": x, "x1": h, "x2": c}, {"output_0": y})
    for _ in range(3):
        array(x)[:] = floats(2, 3)
        found = bound.run()
        assert found[0] is y
        np.testing.assert_allclose(array(y), next(expected([array(x)], array(h))), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(found[2], array(c))


@pytest.mark.parametrize("kind", KINDS)
def test_states_go_round(session, kind):
    x, h, c = (KINDS[kind](shape) for shape in ((2, 3), (2, 3), (4,)))
    first = floats(2, 3)
    array(h)[:], array(c)[:] = first, floats(4)
    bound = session.bind({"x0": x, "x1": h, "x2": c}, states={"output_1": "x1", "output_2": "x2"})
    for _ in range(2):
        inputs = [floats(2, 3) for _ in range(STEPS)]
        for given, right in zip(inputs, expected(inputs, first), strict=True):
            array(x)[:] = given
            np.testing.assert_allclose(bound.run()[0], right, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(array(h), first)  # is read, not written
        bound.reset()


def test_a_state_is_not_copied(session):
    x, h, c = aligned((2, 3)), aligned((2, 3)), aligned((4,))
    bound = session.bind({"x0": x, "x1": h, "x2": c}, states={"output_1": "x1"})
    for _ in range(STEPS):
        state = bound.run()[1]
        assert bound._tensors[1].data_ptr() == state.ctypes.data
        assert bound._tensors[0].data_ptr() == x.ctypes.data


def test_several_are_bound_at_once_and_threads_take_turns(cell):
    session, errors = cell.session(), []

    def work(seed):
        random = np.random.default_rng(seed)
        first, inputs = random.standard_normal((2, 3)).astype("f4"), random.standard_normal((50, 2, 3)).astype("f4")
        x = aligned((2, 3))
        bound = session.bind({"x0": x, "x1": first, "x2": floats(4)}, states={"output_1": "x1"})
        for given, right in zip(inputs, expected(inputs, first), strict=True):
            x[:] = given
            if not np.allclose(bound.run()[0], right, rtol=1e-5, atol=1e-5):
                errors.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not errors


def test_narrow_and_bfloat16_buffers():
    compiled = compile(module(lambda x: op.concat([x, x], 0), (2, 3), dtype="bfloat16"))
    x, y = floats(2, 3).astype(ml_dtypes.bfloat16), np.zeros((4, 3), ml_dtypes.bfloat16)
    bound = compiled.session().bind({"x0": x}, {"output_0": y})
    for value in (2, 3):
        x[:] = value
        assert bound.run()[0] is y and (y == value).all()


def test_within_a_memory_budget_outputs_are_copies():
    compiled = compile(module(lambda x: op.nn.relu(x), (2, 3)), options=Options(memory_budget=2**20))
    found = [compiled.run(np.full((2, 3), n, "f4"))[0] for n in range(5)]
    assert [int(each[0, 0]) for each in found] == [*range(5)]


REFUSED = {
    "input": ({"inputs": {"x0": floats(2, 3), "x1": floats(2, 3), "z": floats(4)}}, "'z' is none of them"),
    "missing": ({"inputs": {"x0": floats(2, 3)}}, "'x1' is missing"),
    "shape": ({"inputs": {"x0": floats(3, 2), "x1": floats(2, 3), "x2": floats(4)}}, "has shape 3x2"),
    "output": ({"outputs": {"y": floats(2, 3)}}, "'y' is none of them"),
    "state": ({"states": {"output_1": "h"}}, "takes 'x0', 'x1', 'x2', and 'h' is none of them"),
    "buffer": ({"outputs": {"output_0": [1.0]}}, "is no tensor on a CPU"),
    "function": ({"function": "f"}, "no function 'f'"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_wrong_is_refused_when_it_is_bound(cell, what):
    given, message = REFUSED[what]
    inputs = {"x0": floats(2, 3), "x1": floats(2, 3), "x2": floats(4)}
    with pytest.raises(UserError, match=message):
        cell.session().bind(**{"inputs": inputs, **given})


def test_a_buffer_of_another_size_or_type_is_refused(cell):
    inputs = {"x0": floats(2, 3), "x1": floats(2, 3), "x2": floats(4)}
    for buffer in (np.zeros((3, 2), "f4"), np.zeros((2, 3))):
        with pytest.raises(UserError, match=r"The buffer of output 'output_0' .* the output is float32 \[2, 3\]"):
            cell.session().bind(inputs, {"output_0": buffer}).run()


def test_a_state_of_another_shape_is_refused(cell):
    inputs = {"x0": floats(2, 3), "x1": floats(2, 3), "x2": floats(4)}
    with pytest.raises(UserError, match=r"'output_0'.*'x2'"):
        cell.session().bind(inputs, states={"output_0": "x2"}).run()
