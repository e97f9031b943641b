# SPDX-License-Identifier: Apache-2.0
"""PlaceTextures: which tensors move to textures, in which form, and why the others stay in buffers."""

import pytest
from tvm import relax

from helpers import constant, legal, nodes, op
from smartmem_tvm.analysis.graph import read_log
from smartmem_tvm.planner.storage_order import Demand
from smartmem_tvm.planner.texture_form import ImageLimits, TextureForm, texture_form
from smartmem_tvm.transform import EliminateLayout, FuseOperators
from smartmem_tvm.transform.place_textures import SCOPE, PlaceTextures
from texture_modules import TARGET


def willing(_):
    return None


def placed(build, *shapes, accepts=willing, limits=None, dtype="float32"):
    mod = FuseOperators()(EliminateLayout()(legal(build, *shapes, dtype=dtype)))
    return PlaceTextures(TARGET, accepts, limits)(mod)


def decisions(mod) -> dict:
    return {entry["tensor"]: entry for entry in read_log(mod) if entry["pass"] == "PlaceTextures"}


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
    assert [buffer.scope() for buffer in reader.kernel.inputs].count(SCOPE) == 1
    assert writer.var.ty.vdevice.memory_scope == SCOPE


def test_the_writer_runs_over_texels():
    writer, _ = nodes(placed(layers, (3, 5, 7)))
    *_, lane = writer.kernel.last.body.indices
    assert writer.kernel.last.extents[lane] == 4


def test_inputs_are_never_touched():
    mod = placed(lambda x: op.matmul(x, constant(8, 4)), (5, 8))
    (node,) = nodes(mod)
    assert SCOPE not in [buffer.scope() for buffer in node.kernel.inputs]


def test_a_kernel_that_cannot_keeps_its_tensor_in_a_buffer():
    mod = placed(layers, (3, 5, 7), accepts=lambda kernel: "no rule for it")
    between, _ = decisions(mod).values()
    assert between["memory"] == "buffer" and between["reason"].endswith("no rule for it")
    assert all(buffer.scope() == "global" for node in nodes(mod) for buffer in node.kernel.inputs)


def test_both_writer_and_reader_are_asked():
    asked = []
    placed(layers, (3, 5, 7), accepts=lambda kernel: asked.append([p.scope() for p in kernel.params]))
    assert len(asked) == 2 and all(scopes.count(SCOPE) == 1 for scopes in asked)
    assert asked[0][-1] == SCOPE and asked[1][-1] != SCOPE


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
