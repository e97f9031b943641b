# SPDX-License-Identifier: Apache-2.0
"""Lists of sizes: which sizes they make, and the module with a function for each."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from sized_model import shapes, sized_model
from smartmem_tvm import UserError, compile, from_onnx
from smartmem_tvm.frontend import input_spec, read_sizes
from smartmem_tvm.frontend.several_sizes import MOST_SIZES, expanded
from smartmem_tvm.ir.several_sizes import size_functions


def graph(**inputs):
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    return helper.make_graph([], "g", infos, [])


def sizes_of(lists, **inputs):
    return [tuple(each.values()) for each in expanded(lists, graph(**inputs))]


def test_one_list():
    assert sizes_of({"x": [(1, 4, 8), (3,)]}, x=["n", 3]) == [((1, 3),), ((4, 3),), ((8, 3),)]


def test_lists_of_one_name_go_together_and_others_multiply():
    found = sizes_of({"x": [(1, 4), (2, 3)], "y": [(1, 4)]}, x=["n", "w"], y=["n"])
    assert found == [((1, 2), (1,)), ((1, 3), (1,)), ((4, 2), (4,)), ((4, 3), (4,))]


def test_an_expression_goes_with_its_name():
    assert sizes_of({"x": [(32, 64)], "y": [(1, 2)]}, x=["32*h"], y=["h"]) == [((32,), (1,)), ((64,), (2,))]


@pytest.mark.parametrize("name", ["", "?", "unk__1"])
def test_what_is_no_name_multiplies(name):
    assert len(sizes_of({"x": [(1, 2)], "y": [(1, 2)]}, x=[name], y=[name])) == 4


def test_a_size_that_is_repeated_is_one():
    assert sizes_of({"x": [(4, 4, 1)]}, x=["n"]) == [((4,),), ((1,),)]


def test_lists_of_one_name_have_one_length():
    with pytest.raises(UserError, match=r"'x' is given 2 sizes of 'n' and input 'y' 3, .*: give lists of one length"):
        sizes_of({"x": [(1, 2)], "y": [(1, 2, 3)]}, x=["n"], y=["n"])


def test_more_than_the_most():
    many = tuple(range(1, MOST_SIZES + 1))
    assert len(sizes_of({"x": [many]}, x=["n"])) == MOST_SIZES
    with pytest.raises(UserError, match=rf"{2 * MOST_SIZES} sizes are asked for, and a model has at most {MOST_SIZES}"):
        sizes_of({"x": [many, (1, 2)]}, x=["n", "m"])


def test_a_function_for_each_size():
    """The shapes that the graph computes are those of the size: sizes are bound before constants are folded."""
    mod = from_onnx(sized_model(), shapes=[shapes(1, 5, 7, 3), shapes(3, 4, 4, 1)])
    names = size_functions(mod)
    assert names == ["main_0", "main_1"]
    assert [input_spec(mod, name)["x"][0] for name in names] == [(1, 3, 5, 7), (3, 3, 4, 4)]
    assert [[int(dim) for dim in mod[name].ret_ty.fields[0].shape] for name in names] == [[1, 35, 8], [3, 16, 8]]


def test_a_list_of_one_is_a_model_of_one_size():
    assert "main" in {gvar.name_hint for gvar in from_onnx(sized_model(), [shapes(1, 2, 2, 1)]).get_global_vars()}


def test_sizes_share_the_weights():
    first, second = read_sizes(sized_model(), [shapes(1, 2, 2, 1), shapes(2, 2, 2, 1)])
    assert first.weights is second.weights


def test_a_kernel_that_the_importer_makes():
    """TVM's importer writes some operators as kernels; their variables have types, which its mutators ask for."""
    values = [helper.make_tensor("pads", TensorProto.INT64, [4], [0, 1, 0, 2])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [helper.make_node("Pad", ["x", "pads"], ["y"], mode="edge")]
    model = helper.make_model(helper.make_graph(nodes, "padded", [x], [y], values), ir_version=8)
    model.opset_import[0].version = 17
    mod = from_onnx(model, shapes=[{"x": (1, 4)}, {"x": (3, 4)}])
    kernels = [gvar for gvar in mod.get_global_vars() if gvar.name_hint not in size_functions(mod)]
    assert len(kernels) == 2, "otherwise this tests nothing"
    array = np.arange(12, dtype="float32").reshape(3, 4)
    np.testing.assert_array_equal(compile(mod).run(array)[0], np.pad(array, ((0, 0), (1, 2)), mode="edge"))


@pytest.mark.parametrize("wrong", [[], [(1, 3)], "x"])
def test_what_is_no_list_of_sizes(wrong):
    with pytest.raises(UserError, match="shapes is one mapping of input names to shapes, or a list"):
        from_onnx(sized_model(), shapes=wrong)


def test_a_wrong_size_of_several():
    with pytest.raises(UserError, match="contradicts"):
        from_onnx(sized_model(), [shapes(1, 2, 2, 1), {**shapes(1, 2, 2, 1), "fixed": (5, 160)}])
