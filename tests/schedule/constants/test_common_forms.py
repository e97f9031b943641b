# SPDX-License-Identifier: Apache-2.0
"""Forms of weights that sizes choose in common: what they cost, what they save, and that results stay right."""

import random

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper

from smartmem_tvm import compile, from_onnx
from smartmem_tvm.deploy.build import lower, optimize
from smartmem_tvm.options import Options
from smartmem_tvm.schedule.constants import common_forms, pack_weights, transform_windows
from smartmem_tvm.schedule.constants.common_forms import FormReader, in_common
from smartmem_tvm.schedule.cpu import machine

AVX2 = {"kind": "llvm", "mcpu": "haswell", "num-cores": 2}


def model(kind, shape, weights, **attributes):
    """One operator with constant weights, and Relu behind it."""
    nodes = [helper.make_node(kind, ["x", "w"], ["c"], **attributes), helper.make_node("Relu", ["c"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in (("x", shape), ("y", None)))
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(weights, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def draw(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def stored(forms, readers):
    """Bytes of all weights in the forms that are read."""
    found = {(value, forms[name]): each.size(forms[name]) for name, each in readers.items() for value in each.constants}
    return sum(found.values())


@pytest.mark.parametrize("seed", range(30))
def test_no_size_gets_dearer_than_allowed_and_nothing_is_added(seed, monkeypatch):
    dice = random.Random(seed)
    names = [f"size{number}" for number in range(dice.randint(2, 5))]
    forms = [f"form{number}" for number in range(dice.randint(2, 4))]
    sizes = {form: dice.randint(1, 9) for form in forms}
    readers, calls = {}, {name: {} for name in names}
    for number in range(dice.randint(2, 12)):
        prices = {form: dice.uniform(100, 110) for form in forms if dice.random() < 0.9} or {forms[0]: 100.0}
        own, constants = dice.choice(sorted(prices)), frozenset(dice.sample(range(6), dice.randint(1, 2)))
        readers[number] = FormReader(own, constants, prices.get, sizes.get)
        for name in names:
            calls[name][number] = dice.randint(0, 2)
    monkeypatch.setattr(common_forms, "size_functions", lambda _: names)
    monkeypatch.setattr(common_forms, "launches", lambda _, without: calls[next(n for n in names if n not in without)])
    own = {name: each.own for name, each in readers.items()}
    chosen = own | in_common(None, readers)
    assert stored(chosen, readers) <= stored(own, readers)
    for name in names:
        before, after = (
            sum(count * readers[each].price(form[each]) for each, count in calls[name].items())
            for form in (own, chosen)
        )
        assert after <= 1.02 * before + 1e-9


def test_forms_that_cost_nothing_become_one(monkeypatch):
    monkeypatch.setattr(common_forms, "size_functions", lambda _: ["a", "b"])
    monkeypatch.setattr(
        common_forms, "launches", lambda _, without: {"k0": 1, "k1": 0} if "b" in without else {"k0": 0, "k1": 1}
    )
    prices = {"small": 100.0, "large": 101.0}
    readers = {
        f"k{n}": FormReader(own, frozenset({"w"}), prices.get, {"small": 1, "large": 4}.get)
        for n, own in enumerate(prices)
    }
    assert in_common(None, readers) == {"k1": "small"}
    prices["small"] = 104.0  # now the second size would take 3 % more, and the first one less
    assert in_common(None, readers) == {"k0": "large"}


def test_widths_of_panels_that_differ_without_need():
    """With AVX2, 8 rows want panels of 24 columns and 40 rows panels of 16, which are 1.4 % faster there."""
    weights, target = draw(120, 4096), tvm.target.Target(AVX2)
    mod = from_onnx(model("MatMul", ["n", 120], weights), shapes=[{"x": (rows, 120)} for rows in (8, 40)])
    with target:
        lowered = lower(optimize(mod, target), target, Options())
    decided = [plan["chosen"]["decisions"]["matmul"] for plan in lowered.facts["plans"].values()]
    assert [each["width"] for each in decided] == [24, 24]
    assert [weight.nbytes for weight in lowered.weights] == [4 * 120 * 24 * -(-4096 // 24)]


@pytest.mark.parametrize("vectors", [1, 2, 3])
@pytest.mark.parametrize("columns", [24, 53])
def test_products_with_panels_of_any_width(vectors, columns, monkeypatch):
    asked = []

    def impose(_, readers):
        asked.extend(readers)
        width = vectors * next(iter(readers.values())).own[0] // 2
        forms = {gvar: (width, *each.own[1:]) for gvar, each in readers.items()}
        return {gvar: form for gvar, form in forms.items() if readers[gvar].price(form) is not None}

    monkeypatch.setattr(pack_weights, "in_common", impose)
    weights = draw(30, columns)
    compiled = compile(from_onnx(model("MatMul", ["n", 30], weights), shapes=[{"x": (rows, 30)} for rows in (3, 17)]))
    assert asked, "otherwise this tests nothing"
    for rows in (3, 17):
        array = draw(rows, 30)
        np.testing.assert_allclose(compiled.run(array)[0], np.maximum(array @ weights, 0), atol=1e-4)


@pytest.mark.parametrize("result", [0, 2, 4])
def test_windows_with_weights_of_any_form(result, monkeypatch):
    def impose(_, readers):
        assert len(readers) == 2
        forms = [(result, panel) for panel in (4, 6, 8, 16, 24, 32)] if result else [()]
        form = next(form for form in forms if all(each.price(form) is not None for each in readers.values()))
        return {gvar: form for gvar, each in readers.items() if form != each.own}

    monkeypatch.setattr(transform_windows, "in_common", impose)
    weights, sizes = draw(32, 32, 3, 3), (7, 14)
    mod = from_onnx(
        model("Conv", [1, 32, "h", "h"], weights, pads=[1, 1, 1, 1]), shapes=[{"x": (1, 32, n, n)} for n in sizes]
    )
    compiled = compile(mod)
    plain = sum("Winograd" not in rule["name"] for rule in compiled.rules.values())
    assert plain == (0 if result else 2)
    for n in sizes:
        array = draw(1, 32, n, n)
        padded = np.pad(array[0], ((0, 0), (1, 1), (1, 1)))
        views = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
        wanted = np.maximum(np.einsum("cyxpq,fcpq->fyx", views, weights), 0)
        np.testing.assert_allclose(compiled.run(array)[0][0], wanted, atol=1e-4 * wanted.max())


@pytest.mark.parametrize(("last_level", "forms"), [(0, 1), (2**30, 2)])
def test_weights_from_memory_are_stored_once_for_a_token_and_a_prompt(last_level, forms, monkeypatch):
    """Panels of any width come from memory as fast: one row reads those of 64 rows. In a cache wide ones are faster."""
    monkeypatch.setattr(machine, "LAST_LEVEL_BYTES", last_level)
    weights, target = draw(256, 512), tvm.target.Target(AVX2)
    mod = from_onnx(model("MatMul", ["n", 256], weights), shapes=[{"x": (rows, 256)} for rows in (1, 64)])
    with target:
        lowered = lower(optimize(mod, target), target, Options())
    assert len(lowered.weights) == forms
    widths = {plan["chosen"]["decisions"]["matmul"]["width"] for plan in lowered.facts["plans"].values()}
    assert len(widths) == forms
