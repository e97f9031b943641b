# SPDX-License-Identifier: Apache-2.0
"""PlaceTextures: which tensors move to textures, in which form, and why the others stay in buffers."""

import numpy as np
import pytest
from tvm import ir, relax, tirx

from helpers import assert_same_results, constant, legal, nodes, op, random
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.ir.kernel import emit, parse
from smartmem_tvm.ir.storage import stored_as
from smartmem_tvm.planner.storage_order import Demand
from smartmem_tvm.planner.texture_choice import PlacementTrial
from smartmem_tvm.planner.texture_form import ImageLimits, TextureForm, texture_form
from smartmem_tvm.transform import EliminateLayout, FuseOperators
from smartmem_tvm.transform.layout.place_textures.place_textures import SCOPE, PlaceTextures
from texture_modules import TARGET


def willing(_):
    return PlacementTrial()


def placed(build, *shapes, accepts=willing, limits=None, dtype="float32"):
    mod = FuseOperators()(EliminateLayout()(legal(build, *shapes, dtype=dtype)))
    return PlaceTextures(TARGET, accepts, limits)(mod)


def decisions(mod, kind="tensor") -> dict:
    log = [entry for entry in read_log(mod) if entry["pass"] == "PlaceTextures"]
    return {entry["tensor"]: entry for entry in log if entry["kind"] == kind}


def scopes(kernel):
    return [buffer.scope() for buffer in kernel.inputs]


def layers(x):
    """Two products; the second one sums over the columns of the first."""
    return op.matmul(op.matmul(x, constant(7, 12)), constant(12, 8))


def test_a_reduction_dimension_fills_the_texel():
    mod = placed(layers, (3, 5, 7))
    between, result = decisions(mod).values()
    assert between["memory"] == "texture" and between["shape"] == [3, 3, 5, 4] and between["texel"] == 2
    assert result["memory"] == "buffer" and result["reason"] == "it is a result of the function"
    writer, reader = nodes(mod)
    assert str(writer.kernel.outputs[0].scope()) == SCOPE
    assert scopes(reader.kernel) == [SCOPE, SCOPE]
    assert writer.var.ty.vdevice.memory_scope == SCOPE


def test_the_writer_runs_over_texels():
    writer, _ = nodes(placed(layers, (3, 5, 7)))
    *_, lane = writer.kernel.last.body.indices
    assert writer.kernel.last.extents[lane] == 4


def test_inputs_are_never_touched():
    mod = placed(lambda x: op.matmul(x, constant(8, 4)), (5, 8))
    (node,) = nodes(mod)
    assert dict(zip(map(type, node.args), scopes(node.kernel))) == {relax.Var: "global", ir.GenericConst: SCOPE}


def test_a_kernel_that_cannot_keeps_its_tensor_in_a_buffer():
    mod = placed(layers, (3, 5, 7), accepts=lambda kernel: PlacementTrial("no rule for it"))
    between, _ = decisions(mod).values()
    assert between["memory"] == "buffer" and between["reason"].endswith("no rule for it")
    assert all(buffer.scope() == "global" for node in nodes(mod) for buffer in node.kernel.inputs)


def test_both_writer_and_reader_are_asked():
    asked = []
    placed(
        layers, (3, 5, 7), accepts=lambda kernel: asked.append([p.scope() for p in kernel.params]) or PlacementTrial()
    )
    between, weights = asked[:2], asked[2:]
    assert all(scopes.count(SCOPE) == 1 for scopes in between)
    assert between[0][-1] == SCOPE and between[1][-1] != SCOPE
    assert weights == [["global", SCOPE, SCOPE], [SCOPE, SCOPE, "global"]]


# -- weights -----------------------------------------------------------------------------------------------------------


def biased(x):
    return op.add(op.matmul(x, constant(8, 6)), constant(6))


def test_texels_of_weights_lie_along_those_of_results():
    mod = placed(biased, (5, 8))
    (node,) = nodes(mod)
    found = [np.from_dlpack(arg.value) for arg in node.args if isinstance(arg, ir.GenericConst)]
    by_rank = sorted(found, key=lambda array: array.size)
    bias = np.zeros(8, "float32")
    bias[:6] = constant(6).value.numpy()
    np.testing.assert_array_equal(by_rank[0], bias.reshape(1, 2, 4))
    matrix = np.zeros((8, 8), "float32")
    matrix[:, :6] = constant(8, 6).value.numpy()
    np.testing.assert_array_equal(by_rank[1], matrix.reshape(8, 2, 4).transpose(1, 0, 2))
    assert all(arg.ty.vdevice.memory_scope == SCOPE for arg in node.args if isinstance(arg, ir.GenericConst))
    assert_same_results(legal(biased, (5, 8)), without_scopes(mod), *random((5, 8)))


def without_scopes(mod):
    """The same with the textures in buffers, which a CPU can run."""
    result = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            kernel = parse(func)
            for buffer in kernel.inputs:
                plain = tirx.decl_buffer(list(buffer.shape), buffer.dtype, buffer.name)
                kernel = stored_as(kernel, buffer, plain, list)
            result[gvar] = emit(kernel)
    return result


def test_weights_of_a_kernel_move_together_or_one_by_one():
    """Here the kernel reads the numbers of its first input one by one, whatever its texels are."""
    asked = []

    def accepts(kernel):
        asked.append([param.scope() for param in kernel.params])
        return PlacementTrial(singly=frozenset([0]) if asked[-1][0] == SCOPE else frozenset())

    (node,) = nodes(mod := placed(biased, (5, 8), accepts=accepts))
    assert asked[0].count(SCOPE) == 2 and scopes(node.kernel).count(SCOPE) == 1
    reasons = {each["memory"]: each.get("reason") for each in decisions(mod, "weight").values()}
    assert reasons == {"texture": None, "buffer": f"{node.var.name}: it reads single numbers of texels"}


def test_a_form_that_is_read_by_single_numbers_is_not_tried_again():
    """Two weights with two forms each, of which none is read in whole texels: both forms of both at once."""
    asked = []

    def accepts(kernel):
        asked.append([position for position, param in enumerate(kernel.params) if param.scope() == SCOPE])
        return PlacementTrial(singly=frozenset(asked[-1]))

    def build(x):
        return op.add(op.matmul(x, constant(8, 6)), op.matmul(x, constant(8, 6)))

    mod = placed(build, (5, 8), accepts=accepts)
    assert {each["memory"] for each in decisions(mod, "weight").values()} == {"buffer"}
    assert max(map(asked.count, asked)) <= 2


def test_weights_that_are_left_are_weighed_one_by_one():
    """One is read by single numbers, one gains by a texture and one loses less than that: it stays."""
    weights = []

    def build(x):
        return op.add(op.multiply(op.matmul(x, constant(8, 6)), constant(6)), constant(6, seed=8))

    def accepts(kernel):
        moved = [position for position, param in enumerate(kernel.params) if param.scope() == SCOPE]
        weights[:] = weights or moved
        single, gains, loses = weights or (None, None, None)
        seconds = 10 - 4 * (gains in moved) + 1 * (loses in moved)
        return PlacementTrial(measured=float(seconds), singly=frozenset(moved) & {single})

    (node,) = nodes(placed(build, (5, 8), accepts=accepts))
    assert [position for position, scope in enumerate(scopes(node.kernel)) if scope == SCOPE] == [weights[1]]


def test_a_weight_of_two_kernels_is_one_texture():
    weight = constant(8, 8)
    mod = placed(lambda x: op.matmul(op.nn.softmax(op.matmul(x, weight)), weight), (5, 8))
    assert len(decisions(mod, "weight")) == 1
    used = [arg for node in nodes(mod) for arg in node.args if isinstance(arg, ir.GenericConst)]
    assert len(used) == 2 and used[0].same_as(used[1])


def test_a_weight_that_something_opaque_reads_stays():
    weight = constant(8, 8)

    def build(x):
        return op.add(op.matmul(x, weight), relax.op.topk(weight, k=8, ret_type="values"))

    (entry, *_) = decisions(placed(build, (8, 8)), "weight").values()
    assert entry["memory"] == "buffer" and entry["reason"] == "it is made or read by something without loop structure"


def test_memory_is_counted_with_padding():
    entries = decisions(placed(biased, (5, 8)), "weight").values()
    assert sorted((each["bytes"], each["padding"]) for each in entries) == [(32, 8), (256, 64)]


def test_a_table_too_large_for_the_device_stays():
    mod = placed(lambda x: op.matmul(x, constant(40, 40)), (5, 40), limits=ImageLimits(width=16, height=16))
    (entry,) = decisions(mod, "weight").values()
    assert entry["reason"] == "it would have 40 columns, and images of the device at most 16"


# -- what stays --------------------------------------------------------------------------------------------------------


def test_limits_of_the_device():
    reason = next(iter(decisions(placed(layers, (3, 5, 7), limits=ImageLimits(width=4))).values()))["reason"]
    assert reason == "it would have 5 columns, and images of the device at most 4"


def test_integers_stay():
    def build(x):
        return op.sum(op.add(op.sum(x, axis=0), op.sum(x, axis=0)), axis=0)

    reasons = [entry["reason"] for entry in decisions(placed(build, (4, 8), dtype="int32")).values()]
    assert "its elements are int32" in reasons


def test_what_has_no_loop_structure_takes_no_texture():
    def build(x):
        return relax.op.topk(op.matmul(x, constant(8, 8)), k=2, ret_type="values")

    entries = decisions(placed(build, (5, 8)))
    assert all(entry["memory"] == "buffer" for entry in entries.values())


def demand(*dims, elements=1, slid=()):
    return Demand(frozenset(dims), elements, "reader", frozenset(slid))


def test_the_paper_s_example():
    """Figure 5: of D1 and D3 one is cut into texels, the other runs along an axis of the image."""
    form = texture_form((8, 4, 12), [demand(2, elements=2), demand(0)], ImageLimits())
    assert form == TextureForm(texel=2, axes=(1, 2, 0), shape=(4, 3, 8, 4))


def test_a_window_slides_over_whole_texels():
    """Channels fill the texel, rows and columns of the picture lie in the image."""
    form = texture_form((1, 16, 12, 8), [demand(2, 3, slid=(2, 3))], ImageLimits())
    assert form.texel == 1 and form.axes[-2:] == (2, 3) and form.shape == (1, 4, 12, 8, 4)


@pytest.mark.parametrize("shape", [(8,), (1, 8), (3, 8), (2, 3, 8), (2, 3, 5, 8)])
def test_every_element_has_a_place(shape):
    form = texture_form(shape, [demand(len(shape) - 1)], ImageLimits())
    assert form.shape[-1] == 4 and len(form.shape) >= 3
    kept = [axis for axis in form.axes if axis is not None]
    assert sorted(kept) == list(range(len(shape)))
