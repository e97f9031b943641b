# SPDX-License-Identifier: Apache-2.0
"""Kernels that check their indices: what is out of bounds is found and named, what is right stays as it is."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax, te

import smartmem_tvm
from attention_model import attention_model
from helpers import module, op
from smartmem_tvm import Options, UserError
from smartmem_tvm.cli import main
from smartmem_tvm.deploy.check_bounds import OutOfBounds, with_bounds_checks
from smartmem_tvm.frontend import input_spec
from smartmem_tvm.frontend.inputs import id_limits, random_inputs
from smartmem_tvm.tables.suite import SUITES
from smartmem_tvm.target import parse_target

ROOT = Path(__file__).resolve().parents[2]


def kernel(*args):
    """The function that computes the last of some tensors of TVM's, with checks."""
    func = te.create_prim_func(args).with_attr("global_symbol", "bad")
    checked = with_bounds_checks(tvm.IRModule({"bad": func}))
    return tvm.compile(checked, "llvm")["bad"]


def call(function, *arrays):
    tensors = [tvm.runtime.tensor(each) for each in arrays]
    function(*tensors)
    return tensors[-1].numpy()


@pytest.mark.parametrize("begin, found", [(12, "[16]"), (-1, "[-1]")])
def test_a_read_is_named(begin, found):
    a = te.placeholder((16,), "float32", name="a")
    index = te.placeholder((4,), "int32", name="index")
    function = kernel(a, index, te.compute((4,), lambda i: a[index[i]], name="out"))
    numbers, out = np.arange(16, dtype="float32"), np.zeros(4, "float32")
    assert call(function, numbers, np.array([15, 0, 3, 7], "int32"), out).tolist() == [15, 0, 3, 7]
    with pytest.raises(OutOfBounds) as caught:
        call(function, numbers, np.array([0, begin, begin + 4, 0][:: 1 if begin < 0 else -1], "int32"), out)
    assert f"Kernel bad reads a{found}, and a has the shape [16]" in str(caught.value)


def test_the_bounds_are_those_of_the_buffer():
    """Schedules go on from the end of a line to the next one."""
    a = te.placeholder((4, 4), "float32", name="a")
    numbers, out = np.arange(16, dtype="float32").reshape(4, 4), np.zeros(4, "float32")
    assert call(kernel(a, te.compute((4,), lambda i: a[2, i + 1], name="out")), numbers, out).tolist() == [
        9,
        10,
        11,
        12,
    ]
    with pytest.raises(OutOfBounds, match=r"reads a\[3, 4\], and a has the shape \[4, 4\]"):
        call(kernel(a, te.compute((4,), lambda i: a[3, i + 1], name="out")), numbers, out)


def test_what_is_not_computed_is_not_read():
    a = te.placeholder((4,), "float32", name="a")
    padded = te.compute((8,), lambda i: tvm.tirx.if_then_else(i < 4, a[i], 0.0), name="out")
    assert call(kernel(a, padded), np.ones(4, "float32"), np.zeros(8, "float32")).sum() == 4
    wrong = te.compute((8,), lambda i: tvm.tirx.if_then_else(i < 5, a[i], 0.0), name="out")
    with pytest.raises(OutOfBounds, match=r"a\[4\]"):
        call(kernel(a, wrong), np.ones(4, "float32"), np.zeros(8, "float32"))


def same_with_checks(model, **arrays):
    mod = smartmem_tvm.from_onnx(model)
    given = [arrays[name] for name in input_spec(mod)]
    plain = smartmem_tvm.compile(mod).run(*given)
    for mine, expected in zip(smartmem_tvm.compile(mod, options=Options(bounds=True)).run(*given), plain, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-5)


def test_a_right_model_computes_the_same():
    same_with_checks(attention_model(), x=np.random.default_rng(0).standard_normal((2, 4, 8)).astype("float32"))


def test_a_run_ends_with_one_sentence(tmp_path, capsys, monkeypatch):
    """What the kernel of a fault of ours would do, in the place of the model's."""
    onnx.save(attention_model(), tmp_path / "m.onnx")
    source = te.placeholder((2, 4, 8), "float32", name="x")
    wrong = te.compute((2, 4, 8), lambda i, j, k: source[i + 1, j, k], name="out")
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((2, 4, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            func = te.create_prim_func([source, wrong]).with_attr("global_symbol", "bad")
            y = builder.emit_output(relax.call_tir(builder.add_func(func, "bad"), (x,), x.ty))
        builder.emit_func_output(y)
    monkeypatch.setattr("smartmem_tvm.frontend.from_onnx", lambda _: builder.get())
    assert main(["run", str(tmp_path / "m.onnx"), "--check-bounds"]) == 2
    said = capsys.readouterr().err
    assert "reads x[2, 0, 0], and x has the shape [2, 4, 8]" in said and said.count("\n") == 1, said


def test_kernels_for_a_gpu_are_refused():
    with pytest.raises(UserError, match="Bounds are checked in kernels for a CPU"):
        smartmem_tvm.compile(module(op.exp, (4,)), parse_target("adreno-740"), Options(bounds=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", [entry.file for entry in SUITES["gpu"]])
def test_networks_stay_within_bounds(name):
    check(ROOT / "models" / f"{name}.onnx")


@pytest.mark.slow
def test_graphs_of_the_corpus_stay_within_bounds():
    for path in sorted((ROOT / "tests" / "fuzz" / "corpus").glob("*.onnx")):
        check(path)


def check(path):
    model = smartmem_tvm.frontend.read_model(path)
    arrays = random_inputs(model.inputs, id_limits(model.proto))
    mod = smartmem_tvm.from_onnx(model)
    compiled = smartmem_tvm.compile(mod, options=Options(bounds=True))
    assert compiled.run(*(arrays[name] for name in input_spec(mod)))
