# SPDX-License-Identifier: Apache-2.0
"""RewriteAlgebra: every rule of the table over random tensors, what must be refused, and the greedy search."""

import itertools
import time

import numpy as np
import pytest
import tvm
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tvm import ir, relax
from tvm.script import ir as I
from tvm.script import relax as R

from helpers import assert_same_results, bindings, module, op, random
from helpers import operators as operators_of
from numpy_relax import evaluate
from smartmem_tvm.ir.graph import read_log
from smartmem_tvm.tables.operator_cost import FLOPS
from smartmem_tvm.tables.rewrite_rules import RULES, TABLE_4
from smartmem_tvm.transform import RewriteAlgebra
from smartmem_tvm.transform.rewrite.rewrite_algebra.rewrite_algebra import OPERATORS
from smartmem_tvm.transform.rewrite.rewrite_algebra.terms import REDUCTIONS, Reduce, Term, operators, parse_term

# How far a rewrite may move a float: so many units in the last place of the largest intermediate term.
UNITS = 256
by_name = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
ROW = {rule.name: rule for rule in RULES}


def names_in(term) -> list[str]:
    if isinstance(term, Term):
        return sorted(set().union(*map(names_in, term.args)))
    return [term] if isinstance(term, str) else []


def build(term, variables: dict, reduction: dict, dtype: str, made: list):
    """The Relax expression of a term; `reduction` holds axis and keepdims, `made` collects all parts."""
    if isinstance(term, str):
        return variables[term]
    if not isinstance(term, Term):
        return relax.const(np.asarray(term, dtype))
    args = [build(arg, variables, reduction, dtype, made) for arg in term.args]
    if term.op in REDUCTIONS:
        value = OPERATORS[term.op](args, Reduce((), tuple(reduction["axis"]), reduction["keepdims"]))
    else:
        value = OPERATORS[term.op](args, None)
    made.append(relax.BlockBuilder.current().emit(value))
    return made[-1]


def instance(text: str, shapes: dict, dtype: str, axis=(-1,), keepdims=True, positive=(), constants=(), every=False):
    """A module that computes a term.

    The variables in `positive` are absolute values, those in `constants` constants; `every` part of the term is a
    result.
    """
    names = list(shapes)

    def body(*params):
        variables = dict(zip(names, params))
        for name in constants:
            variables[name] = relax.const(sample(shapes[name], dtype, seed=9))
        for name in positive:
            variables[name] = relax.BlockBuilder.current().emit(op.abs(variables[name]))
        made: list = []
        result = build(parse_term(text), variables, {"axis": axis, "keepdims": keepdims}, dtype, made)
        return tuple(made) if every else result

    return module(body, *shapes.values(), dtype=dtype)


def sample(shape, dtype: str, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    if dtype.startswith("int"):
        return generator.integers(-7, 8, shape).astype(dtype)
    return (generator.uniform(0.3, 1.2, shape) * generator.choice([-1, 1], shape)).astype(dtype)


def arrays_for(mod, seed=0) -> list[np.ndarray]:
    types = [param.ty for param in mod["main"].params]
    shapes = [tuple(int(d) for d in ty.shape) for ty in types]
    return [sample(s, str(ty.dtype.dtype), seed + i) for i, (s, ty) in enumerate(zip(shapes, types))]


def assert_equal(before, after, dtype: str, seed=0) -> None:
    """Integers exactly, floats within `UNITS` of the largest intermediate; and shapes and dtypes of the results."""
    arrays = arrays_for(before, seed)
    (expected,), largest = evaluate(before, *arrays)
    (got,), _ = evaluate(after, *arrays)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    if dtype.startswith("int"):
        np.testing.assert_array_equal(got, expected)
    else:
        eps = np.finfo(dtype).eps * UNITS
        np.testing.assert_allclose(got, expected, rtol=eps, atol=eps * max(largest, 1), equal_nan=True)


def fired(mod) -> list[str]:
    return [entry["rule"] for entry in read_log(mod)]


def positive_in(rule) -> tuple[str, ...]:
    """Variables that must not be negative, for the rule or for the operator (a number of bits)."""
    bits = ("b",) if "<<" in rule.pattern else ()
    return bits + tuple(each.strip()[0] for each in rule.condition.split(";") if ">=" in each)


def needs_float(rule) -> bool:
    return "float" in rule.condition


def size_of(ty) -> int:
    return int(np.prod([int(dim) for dim in ty.shape], dtype=int))


def flops(mod) -> int:
    """Operations of a module, from the shapes."""
    total = 0
    for binding in bindings(mod):
        call = binding.value
        if isinstance(call, ir.Call):
            name = call.op.name.removeprefix("relax.")
            elements = size_of(call.args[0].ty if name in REDUCTIONS else call.ty)
            total += FLOPS[name] * elements * (int(call.args[0].ty.shape[-1]) if name == "matmul" else 1)
    return total


def bytes_moved(mod) -> int:
    """Bytes that operators taken alone read and write."""
    calls = [b.value for b in bindings(mod) if isinstance(b.value, ir.Call)]
    return sum(size_of(each.ty) * each.ty.dtype.dtype.bits // 8 for call in calls for each in (call, *call.args))


def cost(mod) -> tuple[int, int, int]:
    """What every rewrite makes smaller."""
    return flops(mod), bytes_moved(mod), len(operators_of(mod))


# --- each rule


@st.composite
def situations(draw, rule):
    """A context, shapes that broadcast to one base shape, a reduction, a dtype, and which variables are constants."""
    text = draw(st.sampled_from(contexts(rule)))
    pattern = parse_term(text)
    names = names_in(pattern)
    kinds = [] if "<<" in rule.pattern else ["float32", "float64"]
    dtype = draw(st.sampled_from(kinds if needs_float(rule) else [*kinds, "int32", "int8"]))
    sizes = st.sampled_from([1, 2, 3, 4, 5])
    if "matmul" in operators(pattern):
        m, k, n = draw(sizes), draw(sizes), draw(sizes)
        left, right = names_under_matmul(pattern)
        ends = {name: (m, k) if name in left else (k, n) if name in right else (m, n) for name in names}
        shapes = {name: (*draw(st.sampled_from([(), (1,), (2,)])), *ends[name]) for name in names}
    else:
        base = draw(st.lists(sizes, min_size=1, max_size=3))
        shapes = {name: draw(within(base)) for name in names}
    rank = max(map(len, shapes.values()))
    axis = draw(st.lists(st.integers(0, max(rank - 1, 0)), min_size=1, max_size=max(rank, 1), unique=True))
    free = [name for name in names if name not in positive_in(rule)]
    constants = draw(st.lists(st.sampled_from(free), unique=True, max_size=len(free) - 1)) if len(free) > 1 else []
    return text, shapes, dtype, {"axis": axis, "keepdims": draw(st.booleans()), "constants": constants}


@st.composite
def within(draw, base):
    """A shape that broadcasts to `base`, most often `base` itself."""
    if draw(st.booleans()):
        return tuple(base)
    cut = draw(st.integers(0, len(base)))
    return tuple(n if draw(st.booleans()) else 1 for n in base[cut:])


def names_under_matmul(term, sides=None) -> tuple[set, set]:
    sides = sides or (set(), set())
    if isinstance(term, Term):
        if term.op == "matmul":
            for side, arg in zip(sides, term.args):
                side.update(names_in(arg))
        for arg in term.args:
            names_under_matmul(arg, sides)
    return sides


@by_name
def test_a_rule_keeps_the_result(rule):
    """Random shapes (broadcast, unit, prime, square, scalars), dtypes, axes, constants and context; also whenever the
    intermediate results are read elsewhere, and never for more operations than before."""
    seen = []

    @settings(max_examples=12)
    @given(situations(rule))
    def check(situation):
        text, shapes, dtype, options = situation
        try:
            before = instance(text, shapes, dtype, positive=positive_in(rule), **options)
        except (ValueError, RuntimeError, TypeError, tvm.error.InternalError):
            assume(False)  # the reduction's axis is out of range for one of its operands, say
        after = RewriteAlgebra(rules=(rule,))(before)
        assert_equal(before, after, dtype)
        if fired(after):
            assert cost(after) < cost(before)
        seen.extend(fired(after))

    check()
    assert set(seen) == {rule.name}


def contexts(rule) -> list[str]:
    """The pattern alone, and as part of a longer sum or product."""
    root = parse_term(rule.pattern).op
    sign = {"add": "+", "multiply": "*"}.get(root)
    return [rule.pattern] if sign is None else [rule.pattern, f"z {sign} ({rule.pattern})", f"{rule.pattern} {sign} z"]


@by_name
def test_a_rule_fires(rule):
    """On its own pattern, for some way to broadcast it."""
    for text in contexts(rule)[:2]:
        names = names_in(parse_term(text))
        kinds = [(4, 4)] if "@" in rule.pattern else [(4, 5), (5,), (4, 1), ()]
        for shapes in itertools.product(kinds, repeat=len(names)):
            dtype = "float32" if "<<" not in rule.pattern else "int32"
            if not any(len(shape) == 2 and shape[1] > 1 for shape in shapes):
                continue
            mod = instance(text, dict(zip(names, shapes)), dtype, axis=(0,), positive=positive_in(rule))
            after = RewriteAlgebra(rules=(rule,))(mod)
            if fired(after):
                assert set(fired(after)) == {rule.name}
                assert_equal(mod, after, dtype)
                return
    pytest.fail(f"{rule} never pays")


@pytest.mark.parametrize("rule", [r for r in RULES if needs_float(r)], ids=lambda rule: rule.name)
def test_integers_are_refused(rule):
    """Where a law does not hold modulo 2**n."""
    shapes = dict.fromkeys(names_in(parse_term(rule.pattern)), (4, 4))
    try:
        mod = instance(rule.pattern, shapes, "int32", positive=positive_in(rule))
    except Exception:
        return  # TVM refuses it already
    assert fired(RewriteAlgebra(rules=(rule,))(mod)) == []


@pytest.mark.parametrize("rule", [r for r in RULES if ">=" in r.condition], ids=lambda rule: rule.name)
def test_what_may_be_negative_is_refused(rule):
    shapes = dict.fromkeys(names_in(parse_term(rule.pattern)), (4, 4))
    mod = instance(rule.pattern, shapes, "float32")
    assert fired(RewriteAlgebra(rules=(rule,))(mod)) == []


@by_name
def test_intermediate_results_that_are_read_elsewhere_are_not_saved(rule):
    """All of them are results of the function: no rewrite may cost more than it saves."""
    shapes = dict.fromkeys(names_in(parse_term(rule.pattern)), (4, 4))
    dtype = "int32" if "<<" in rule.pattern else "float32"
    before = instance(rule.pattern, shapes, dtype, positive=positive_in(rule), every=True)
    after = RewriteAlgebra(rules=(rule,))(before)
    assert flops(after) <= flops(before)
    arrays = arrays_for(before)
    expected, largest = evaluate(before, *arrays)
    got, _ = evaluate(after, *arrays)
    for mine, reference in zip(got, expected, strict=True):
        eps = 1e-5 * max(largest, 1)
        np.testing.assert_allclose(mine, reference, rtol=1e-5, atol=eps, equal_nan=True)


# --- the paper


@pytest.mark.parametrize("row", TABLE_4, ids=lambda row: row.before)
def test_table_4(row):
    """All rules together reach what the paper's row reaches, or better, and the same numbers."""
    dtype = "int32" if "<<" in row.before else "float32"
    shapes = dict.fromkeys(names_in(parse_term(row.before)), (4, 5))
    if "<<" in row.before:
        shapes["b"] = ()
    options = {"axis": (-1,), "positive": ("b",) if "b" in shapes else ()}
    before, paper = (instance(text, shapes, dtype, **options) for text in (row.before, row.after))
    after = RewriteAlgebra()(before)
    assert_equal(before, after, dtype)
    assert flops(after) <= flops(paper) <= flops(before)
    assert bytes_moved(after) <= bytes_moved(paper)


def test_figure_2_a():
    """Two reciprocals and two products of one tensor and a weight: one reciprocal, one square, one product."""
    mod = instance("recip(a) * recip(a * b)", {"a": (4, 5), "b": (5,)}, "float32", constants=("b",))
    after = RewriteAlgebra()(mod)
    assert operators_of(after) == ["square", "multiply", "divide"]
    assert_equal(mod, after, "float32")


def test_figure_2_b():
    mod = instance("a * b + a * c", {"a": (4, 5), "b": (4, 5), "c": (4, 5)}, "float32")
    assert operators_of(RewriteAlgebra()(mod)) == ["add", "multiply"]


def test_figure_2_c():
    mod = instance("sum(a << b)", {"a": (4, 5), "b": ()}, "int32", positive=("b",))
    assert operators_of(RewriteAlgebra()(mod)) == ["abs", "sum", "left_shift"]


# --- what must be refused


def refused(body, *shapes, dtype="float32") -> bool:
    return fired(RewriteAlgebra()(module(body, *shapes, dtype=dtype))) == []


def test_a_law_that_broadcasts_sooner_is_dearer():
    """The product of a column and a row has more elements than both."""
    one = relax.const(1.0)
    assert refused(lambda a, b: op.multiply(op.divide(one, a), op.divide(one, b)), (40, 1), (1, 50))


def test_a_shift_to_the_right_does_not_commute_with_a_sum():
    assert refused(lambda a: op.sum(op.right_shift(a, relax.const(1, "int32")), [0]), (4, 5), dtype="int32")


def test_a_factor_that_changes_along_the_sum_stays_inside():
    assert refused(lambda a, b: op.sum(op.multiply(a, b), [1], True), (4, 5), (5,))
    assert not refused(lambda a, b: op.sum(op.multiply(a, b), [1], True), (4, 5), (4, 1))


def test_square_shapes_do_not_hide_which_axis_is_gone():
    """Without keepdims a column would stand beside the result as if it were a row."""
    assert refused(lambda a, b: op.sum(op.multiply(a, b), [1]), (4, 4), (4, 1))
    assert not refused(lambda a, b: op.sum(op.multiply(a, b), [0]), (4, 4), (4,))


def test_sums_of_different_shapes_stay_apart():
    """Each element of the row would be counted four times."""
    assert refused(lambda a, b: op.add(op.sum(a, [0]), op.sum(b, [0])), (4, 5), (1, 5))


def test_a_product_of_unlike_roots_stays():
    """The root of a product overflows where the product of the roots does not."""
    assert refused(lambda a, b: op.multiply(op.sqrt(op.abs(a)), op.sqrt(op.abs(b))), (4, 5), (4, 5))


def test_a_one_that_broadcasts_is_no_neutral_element():
    ones = relax.const(np.ones((3, 1, 1), "float32"))
    assert refused(lambda a: op.multiply(a, ones), (4, 5))
    assert not refused(lambda a: op.multiply(a, ones), (3, 4, 5))


@pytest.mark.parametrize("dtype, changed", [("uint64", False), ("uint8", False), ("int64", True)])
def test_unsigned_numbers_have_no_negative(dtype, changed):
    zero = relax.const(np.zeros(3, dtype), dtype)
    assert refused(lambda x: op.subtract(zero, x), (3,), dtype=dtype) is not changed


@pytest.mark.parametrize("number, changed", [(np.inf, False), (np.nan, False), (3.0, True)])
def test_laws_are_of_numbers_only(number, changed):
    """`inf * b - inf` is none, and `inf * (b - 1)` infinite."""
    factor = relax.const(np.array([1, number], "f4"))
    assert refused(lambda x: op.subtract(op.multiply(factor, x), factor), (3, 2)) is not changed


def test_a_large_constant_is_not_made_of_small_ones():
    """The masks of all windows and the biases of all heads are smaller than their sum."""
    mask, bias = (relax.const(random(shape)[0]) for shape in ((64, 1, 16, 16), (1, 12, 16, 16)))
    assert refused(lambda a: op.add(op.add(a, mask), bias), (64, 12, 16, 16))


def test_several_dtypes_in_one_operator():
    mod = module(lambda a, b: op.multiply(op.astype(a, "float32"), b), ((4, 5), "int32"), ((4, 5), "float32"))
    assert fired(RewriteAlgebra()(mod)) == []


def test_symbolic_shapes_are_left_alone():
    @I.ir_module
    class Symbolic:
        @R.function
        def main(a: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
            with R.dataflow():
                b = R.multiply(a, R.const(1.0))
                R.output(b)
            return b

    tvm.ir.assert_structural_equal(RewriteAlgebra()(Symbolic), Symbolic)


def test_outside_of_dataflow_blocks_nothing_changes():
    @I.ir_module
    class Plain:
        @R.function
        def main(a: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            b = R.multiply(a, R.const(1.0))
            return b

    tvm.ir.assert_structural_equal(RewriteAlgebra()(Plain), Plain)


# --- the module around


def test_the_module_is_not_changed_in_place():
    mod = instance("a * b + a * c", dict.fromkeys("abc", (4, 5)), "float32")
    text = mod.script()
    RewriteAlgebra()(mod)
    assert mod.script() == text


def test_a_result_that_is_an_argument_or_a_constant():
    def body(a):
        product = op.multiply(a, relax.const(1.0))
        return product, op.nn.softmax(product), op.add(op.negative(op.negative(a)), relax.const(0.0))

    before = module(body, (4, 5))
    after = RewriteAlgebra()(before)
    assert operators_of(after) == ["nn.softmax"]
    assert_same_results(before, after, *random((4, 5)))


def test_operators_without_algebra_are_walls():
    """Between them each part is rewritten; they read the new results."""

    def body(a, b):
        inner = op.nn.softmax(op.add(op.multiply(a, b), op.multiply(a, a)))
        return op.add(op.multiply(inner, b), op.multiply(b, op.multiply(inner, relax.const(1.0))))

    before = module(body, (4, 5), (4, 5))
    after = RewriteAlgebra()(before)
    assert sorted(operators_of(after)) == ["add", "multiply", "multiply", "multiply", "nn.softmax"]
    assert_same_results(before, after, *random((4, 5), (4, 5)))


def test_match_cast_and_tuples_are_kept():
    @I.ir_module
    class Mixed:
        @R.function
        def main(a: R.Tensor((4, 6), "float32")) -> R.Tensor((4, 3), "float32"):
            with R.dataflow():
                parts = R.split(a, 2, axis=1)
                left = parts[0]
                cast = R.match_cast(left, R.Tensor((4, 3), "float32"))
                twice = R.add(R.multiply(cast, parts[1]), R.multiply(cast, left))
                R.output(twice)
            return twice

    mod = relax.transform.Normalize()(Mixed)
    after = RewriteAlgebra()(mod)
    assert fired(after) == ["factor"]
    assert_same_results(mod, after, *random((4, 6)))


def test_by_tvm_too():
    """One module with many patterns, compiled: numpy and TVM agree about what they mean."""
    names = (
        "recip_recip",
        "sqrt_sqrt",
        "factor",
        "sum_sum",
        "over_sqrt",
        "sigmoid",
        "matmul_left",
    )

    def body(a, b, c):
        variables = {"a": op.add(op.abs(a), relax.const(1.0)), "b": b, "c": c}
        variables = {name: relax.BlockBuilder.current().emit(value) for name, value in variables.items()}
        reduction = {"axis": (1,), "keepdims": True}
        return tuple(build(parse_term(ROW[name].pattern), variables, reduction, "float32", []) for name in names)

    before = module(body, (5, 5), (5, 5), (5, 5))
    after = RewriteAlgebra()(before)
    assert set(names) <= set(fired(after))
    assert_same_results(before, after, *random((5, 5), (5, 5), (5, 5)))


# --- the search


def test_the_match_that_saves_most_comes_first():
    """Of ``(x * x) * y + (x * x) * z`` the common factor goes before the square."""
    body = lambda x, y, z: op.add(op.multiply(op.multiply(x, x), y), op.multiply(op.multiply(x, x), z))  # noqa: E731
    after = RewriteAlgebra()(module(body, (4, 5), (4, 5), (4, 5)))
    assert fired(after)[0] == "factor"
    assert sorted(operators_of(after)) == ["add", "multiply", "square"]


def test_scalars_meet_before_the_tensor():
    """Commutative law: constants meet at compile time, small tensors before large ones."""
    body = lambda x, s: op.multiply(op.multiply(op.multiply(x, relax.const(3.0)), s), relax.const(0.5))  # noqa: E731
    before = module(body, (4, 5), (4, 1))
    after = RewriteAlgebra()(before)
    assert flops(after) == 4 + 20
    assert_same_results(before, after, *random((4, 5), (4, 1)))


def test_rewriting_again_changes_nothing():
    for row in TABLE_4:
        dtype = "int32" if "<<" in row.before else "float32"
        names = names_in(parse_term(row.before))
        mod = RewriteAlgebra()(instance(row.before, dict.fromkeys(names, (4, 5)), dtype, axis=(0,)))
        assert len(fired(RewriteAlgebra()(mod))) == len(fired(mod))


def test_the_log_says_what_was_done_and_why():
    mod = RewriteAlgebra()(instance("a * b + a * c", dict.fromkeys("abc", (4, 5)), "float32"))
    (entry,) = read_log(mod)
    assert entry["rule"] == "factor"
    assert entry["reason"] == "a * b + a * c => a * (b + c)"
    assert entry["flops_saved"] == 20


def sums_of_products(count: int):
    """`count` independent places where the distributive law applies, chained, all reading one tensor."""

    def body(x, y):
        for _ in range(count):
            block = relax.BlockBuilder.current()
            left, right = (block.emit(op.multiply(x, each)) for each in (y, op.nn.softmax(y)))
            y = block.emit(op.nn.relu(op.add(left, right)))
        return y

    return module(body, (2, 3), (2, 3))


def test_time_grows_with_the_module_and_not_faster():
    """Four times the operators take less than ten times as long, though all read one tensor."""
    small, large = (sums_of_products(count) for count in (75, 300))
    seconds = []
    for mod in (small, large):
        start = time.process_time()
        assert len(fired(RewriteAlgebra()(mod))) >= len(bindings(mod)) // 5
        seconds.append(time.process_time() - start)
    assert seconds[1] < 10 * seconds[0] + 0.5


def test_a_long_chain():
    """Longer than the window that is matched: constants still meet, and the search ends."""

    def body(x):
        for number in range(200):
            x = relax.BlockBuilder.current().emit(op.add(x, relax.const(float(number))))
        return x

    before = module(body, (2, 3))
    after = RewriteAlgebra()(before)
    assert operators_of(after) == ["add"]
    np.testing.assert_allclose(*(evaluate(mod, *random((2, 3)))[0][0] for mod in (after, before)), rtol=1e-5)
