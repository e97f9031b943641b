# SPDX-License-Identifier: Apache-2.0
"""The dataflow graph: reading, rewriting, writing back."""

import numpy as np
import pytest
import tvm_ffi
from tvm import ir, relax

from helpers import assert_same_results, bindings, calls, graph, legal, nodes, op, random, run
from smartmem_tvm.ir.graph import (
    append_log,
    graphs,
    kernel_name,
    launches,
    private_calls,
    read_log,
    rewrite_graphs,
    write,
)
from smartmem_tvm.transform import EliminateLayout, FuseOperators


def diamond(x, w):
    y = op.matmul(x, w)
    return op.add(op.nn.relu(y), op.negative(y)), op.exp(y)


DIAMOND = (diamond, (5, 6), (6, 7))


def named(found) -> dict:
    return {node.members[0].split(" ")[0]: node for node in found if node.members}


def assert_consistent(g) -> None:
    """The index of readers and producers says what the nodes say."""
    for node in g:
        assert g.producer(node.var) is node
        for operand in node.operands:
            assert node in g.readers(operand)
        if node.kernel is not None:
            assert len(node.kernel.inputs) == len(node.args)
            assert [[int(d) for d in b.shape] for b in node.kernel.inputs] == [
                [int(d) for d in a.ty.shape] for a in node.args
            ]
    for node in g:
        for reader in g.readers(node.var):
            assert reader in g
            assert node.var in reader.operands


def test_readers_and_producers():
    g = graph(legal(*DIAMOND))
    assert_consistent(g)
    found = named(g)
    matmul = found["matmul"]
    assert g.readers(matmul.var) == [found["relu"], found["tir_negative"], found["tir_exp"]]
    assert g.producer(g.function.params[0]) is None
    assert g.producer(relax.const(1.0)) is None
    assert [g.is_output(n.var) for n in (matmul, found["add"], found["tir_exp"])] == [False, True, True]


def test_write_undoes_read():
    """Reading and writing back changes nothing but names and the recorded members."""
    before = legal(*DIAMOND)
    after = write(before, graph(before), [])
    assert len(bindings(after)) == len(bindings(before))
    assert_same_results(before, after, *random(*DIAMOND[1:]))


def test_remove_forgets_the_node():
    g = graph(legal(*DIAMOND))
    found = named(g)
    g.remove(found["tir_exp"])
    assert found["tir_exp"] not in g
    assert found["tir_exp"] not in g.readers(found["matmul"].var)
    assert g.producer(found["tir_exp"].var) is None
    assert_consistent(g)


def test_absorb_reads_what_the_producer_read():
    g = graph(legal(*DIAMOND))
    found = named(g)
    g.absorb(found["add"], found["relu"], inline_output=True)
    assert found["relu"] in g, "other readers may need it"
    assert g.readers(found["relu"].var) == []
    assert found["add"] in g.readers(found["matmul"].var)
    assert [m.split(" ")[0] for m in found["add"].members] == ["relu", "add"]
    assert_consistent(g)


def test_absorb_reads_one_operand_once():
    """Both arms read the matmul: after both are absorbed it is one operand."""
    g = graph(legal(*DIAMOND))
    found = named(g)
    for arm in ("relu", "tir_negative"):
        g.absorb(found["add"], found[arm], inline_output=True)
    assert [a.name for a in found["add"].args] == [found["matmul"].var.name]
    assert_consistent(g)


def test_absorbed_layout_operators_are_views_not_members():
    g = graph(legal(lambda x: op.exp(op.permute_dims(x)), (4, 6)))
    found = named(g)
    g.absorb(found["tir_exp"], found["transpose"], inline_output=True)
    assert [m.split(" ")[0] for m in found["tir_exp"].members] == ["tir_exp"]
    assert [v.split(" ")[0] for v in found["tir_exp"].views] == ["transpose"]


def test_rename_moves_the_readers():
    g = graph(legal(*DIAMOND))
    found = named(g)
    other = relax.DataflowVar("other", found["matmul"].var.ty)
    g.rename(found["matmul"], other)
    assert g.producer(other) is found["matmul"]
    assert len(g.readers(other)) == 3
    assert_consistent(g)


def test_replace_value_makes_a_plain_binding():
    g = graph(legal(*DIAMOND))
    node = named(g)["tir_exp"]
    g.replace_value(node, node.args[0], "a reason")
    assert (node.kernel, node.reason, node.args) == (None, "a reason", [])
    assert_consistent(g)


@pytest.mark.parametrize("passes", [[EliminateLayout], [FuseOperators], [EliminateLayout, FuseOperators]])
def test_the_index_stays_right_through_the_passes(passes):
    mod = legal(lambda x, w: op.nn.softmax(op.permute_dims(diamond(x, w)[0])), (5, 6), (6, 7))
    for each in passes:
        mod = each()(mod)
    assert_consistent(graph(mod))


def test_members_and_views_survive_the_module():
    """A later pass continues the record of an earlier one."""
    mod = EliminateLayout()(legal(lambda x, w: op.nn.relu(op.matmul(op.permute_dims(x), w)), (6, 5), (6, 7)))
    (node,) = nodes(FuseOperators()(mod))
    assert [m.split(" ")[0] for m in node.members] == ["matmul", "relu"]
    assert [v.split(" ")[0] for v in node.views] == ["transpose"]


def test_equal_kernels_are_one_function():
    def build(x):
        return op.exp(op.negative(op.exp(op.negative(x))))

    before = legal(build, (4, 6))
    after = write(before, graph(before), [])
    assert len(calls(after)) == 4
    assert len(set(calls(after))) == 2


def test_tuple_results_and_items():
    """Split is one PrimFunc with several results; its items are kernels of their own."""
    mod = legal(lambda x: op.add(*(op.split(x, 2, axis=1)[i] for i in range(2))), (4, 6))
    first, second, add = nodes(mod)
    assert [n.kernel is not None for n in (first, second, add)] == [True] * 3
    assert first.members[0].endswith("[0]")
    assert second.members[0].endswith("[1]")


def test_a_tuple_that_is_a_result_is_kept_as_it_is():
    """Batch norm's tuple is returned whole: one kernel with three results, and no items."""
    shapes = (2, 3, 4, 4), (3,), (3,), (3,), (3,)
    before = legal(lambda x, *p: op.nn.batch_norm(x, *p, axis=1), *shapes)
    (node, *_) = nodes(before)
    assert node.kernel is None
    assert node.reason == "one block writes several outputs"
    after = FuseOperators()(EliminateLayout()(before))
    positive = [abs(a) for a in random(*shapes)]
    assert_same_results(before, after, *positive)


def test_a_tuple_that_someone_reads_whole_is_kept():
    """The items are kernels of their own; the packed function still needs the tuple."""
    part = relax.TensorType((4, 3), "float32")

    def build(x):
        parts = relax.BlockBuilder.current().emit(op.split(x, 2, axis=1))
        return op.negative(parts[0]), relax.call_pure_packed("test.anything", parts, ty_args=[part])

    after = EliminateLayout()(legal(build, (4, 6)))
    (packed,) = (n for n in nodes(after) if n.value.op.name == "relax.call_pure_packed")
    (parts,) = packed.operands
    assert graph(after).producer(parts) is not None


def test_match_cast_is_kept():
    def build(x):
        y = op.exp(x)
        builder = relax.BlockBuilder.current()
        return op.negative(builder.match_cast(builder.emit(y), relax.TensorType((4, 6), "float32")))

    before = legal(build, (4, 6))
    after = FuseOperators()(EliminateLayout()(before))
    assert_same_results(before, after, *random((4, 6)))


def test_primitive_functions_are_no_graphs():
    mod = legal(*DIAMOND)
    mod["inner"] = mod["main"].with_attr("Primitive", 1).with_attr("global_symbol", "inner")
    assert [g.name for g in graphs(mod)] == ["main"]


def test_names_of_kernels():
    assert kernel_name(["matmul3 lv(4, 6)", "add1 lv2(4, 6)", "add2 lv3(4, 6)", "gelu lv4(4, 6)"]) == "matmul_add_gelu"
    assert len(kernel_name([f"operator{'x' * i} lv(4)" for i in range(30)])) <= 64


def test_the_log_is_appended_in_order():
    mod = legal(op.exp, (4,))
    assert read_log(mod) == []
    mod = append_log(append_log(mod, [{"a": 1}, {"b": [2]}]), [{"c": "3"}])
    assert read_log(mod) == [{"a": 1}, {"b": [2]}, {"c": "3"}]
    assert tvm_ffi.structural_equal(append_log(mod, []), mod)


def test_attributes_of_the_function_survive():
    before = legal(*DIAMOND)
    before["main"] = before["main"].with_attr("num_input", 2)
    after = write(before, graph(before), [])
    assert int(after["main"].attrs["num_input"]) == 2
    assert isinstance(after["main"].ret_ty, ir.Type)


def test_a_match_cast_is_written_back_as_one():
    """It checks a shape at run time; a plain binding would change the type and drop the check."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 6), "float32"))
    y = relax.Var("y", relax.TensorType(ndim=2, dtype="float32"))
    with builder.function("main", [x, y]):
        with builder.dataflow():
            known = builder.match_cast(y, relax.TensorType((4, 6), "float32"))
            result = builder.emit_output(relax.op.add(relax.op.nn.relu(x), known))
        builder.emit_func_output(result)
    after = FuseOperators()(EliminateLayout()(relax.transform.LegalizeOps()(builder.get())))
    casts = [b for block in after["main"].body.blocks for b in block.bindings if isinstance(b, relax.MatchCast)]
    assert [list(map(int, cast.ty.shape)) for cast in casts] == [[4, 6]]
    a, b = random((4, 6), (4, 6))
    np.testing.assert_allclose(run(after, a, b)[0], np.maximum(a, 0) + b, rtol=1e-6)


def test_private_calls_are_those_of_kernels_that_nothing_else_can_call_or_mentions():
    mod = legal(lambda x: op.negative(op.negative(op.exp(x))), (4,))
    found = {gvar.name_hint: len(calls) for gvar, calls in private_calls(mod).items()}
    assert found == {"tir_exp": 1, "tir_negative": 2} == {gvar.name_hint: n for gvar, n in launches(mod).items()}
    exp = mod.get_global_var("tir_exp")
    mod.update_func(exp, mod[exp].with_attr("global_symbol", "tir_exp"))
    assert [gvar.name_hint for gvar in private_calls(mod)] == ["tir_negative"]


def test_a_kernel_that_is_mentioned_otherwise_is_not_private():
    mod = legal(lambda x: op.exp(x), (4,))
    (gvar,) = private_calls(mod)
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    called = relax.call_dps_packed("apply", relax.Tuple([gvar, x]), out_ty=x.ty)
    mod["other"] = relax.Function([x], called, x.ty)
    assert private_calls(mod) == {} and len(launches(mod)) == 1


def test_what_no_pass_has_changed_is_parsed_once(monkeypatch):
    from smartmem_tvm.ir import graph as module

    parsed, parse = [], module.parse
    monkeypatch.setattr(module, "parse", lambda func: parsed.append(func) or parse(func))
    mod = legal(*DIAMOND)
    for _ in range(3):
        before, mod = mod, rewrite_graphs(mod, lambda _: [])
    assert 0 < len(parsed) == len(nodes(mod))
    assert_same_results(legal(*DIAMOND), mod, *random(*DIAMOND[1:]))
    assert tvm_ffi.structural_equal(before, mod)
