# SPDX-License-Identifier: Apache-2.0
"""The least time of a kernel, from figures that are easy to add up."""

import pytest

from smartmem_tvm.analysis.roofline import Bound, Speed, at, bound
from smartmem_tvm.analysis.work import Work
from smartmem_tvm.tables.targets import TARGETS

CURVE = ((1000, 100.0), (4000, 50.0), (16000, 10.0))
SPEED = Speed("a machine", 1, {"float32": 1000.0, "int8": 4000.0}, {"exp": 10.0}, CURVE, ((1000, 20.0),), 0.5)


def test_the_longer_of_arithmetic_and_memory_counts_after_the_launch():
    found = bound(Work({"float32": {"multiplications": 2000, "additions": 1000}}, {}, 90, 10), SPEED)
    assert found == Bound(2.0, 1.0, 0.5) and found.seconds == 2.5 and found.by == "arithmetic"
    found = bound(Work({"float32": {"additions": 100}}, {}, 900, 100), SPEED)
    assert found == Bound(0.1, 10.0, 0.5) and found.seconds == 10.5 and found.by == "memory"
    assert bound(Work({}, {}, 4, 4), SPEED).by == "launch"


def test_what_is_only_written_goes_as_fast_as_stores():
    assert bound(Work({}, {}, 0, 100), SPEED).memory == 5.0


def test_types_and_functions_take_their_own_time():
    arithmetic = {"int8": {"multiplications": 4000, "additions": 4000}, "float32": {"others": 1000}}
    assert bound(Work(arithmetic, {"exp": 20}, 0, 0), SPEED).arithmetic == pytest.approx(1 + 1 + 2)
    # Of a function that was not measured eight multiply-adds; of a type those of float32, of a wide one half of them.
    assert bound(Work({}, {"tan": 1000}, 0, 0), SPEED).arithmetic == pytest.approx(8)
    assert (SPEED.rate("uint8"), SPEED.rate("float16"), SPEED.rate("float64")) == (4000, 1000, 500)


PRODUCTS, SUMS = {"multiplications": 1000}, {"additions": 1000}


@pytest.mark.parametrize(
    ("arithmetic", "instructions"),
    [
        ({"float16": PRODUCTS, "float32": SUMS}, {"float16": 1000, "float32": 0}),
        ({"bfloat16": PRODUCTS, "float32": SUMS}, {"bfloat16": 1000, "float32": 0}),
        ({"float16": PRODUCTS | SUMS, "float32": SUMS}, {"float16": 1000, "float32": 1000}),  # fused already
        ({"float16": PRODUCTS, "float32": PRODUCTS | SUMS}, {"float16": 1000, "float32": 1000}),
        ({"float16": PRODUCTS, "float32": {"additions": 1500}}, {"float16": 1000, "float32": 500}),
        ({"float16": SUMS, "float32": PRODUCTS}, {"float16": 1000, "float32": 1000}),  # sums of halves, then products
        ({"int8": PRODUCTS, "float32": SUMS}, {"int8": 1000, "float32": 1000}),  # other instructions
        ({"float16": PRODUCTS, "float32": SUMS | {"others": 7}}, {"float16": 1000, "float32": 7}),
    ],
)
def test_sums_of_narrower_products_take_the_instructions_of_the_products(arithmetic, instructions):
    found = Work(arithmetic)
    assert found.instructions == instructions
    seconds = sum(times / SPEED.rate(dtype) for dtype, times in instructions.items())
    assert bound(found, SPEED).arithmetic == pytest.approx(seconds)


@pytest.mark.parametrize("name", TARGETS)
def test_products_of_halves_are_never_bound_higher_than_those_of_floats(name):
    """With their sums in float32: a device that multiplies halves at twice the rate takes half the time."""
    speed = Speed.of_row(TARGETS[name])
    floats = bound(Work({"float32": PRODUCTS | SUMS}), speed).arithmetic
    halves = bound(Work({"float16": PRODUCTS, "float32": SUMS}), speed).arithmetic
    assert halves == pytest.approx(floats * speed.rate("float32") / speed.rate("float16")) and halves <= floats


def test_a_set_that_fits_a_cache_is_bound_by_its_bandwidth():
    assert [at(CURVE, size) for size in (1, 1000, 4000, 16000, 10**9)] == pytest.approx([100, 100, 50, 10, 10])
    assert at(CURVE, 2000) == pytest.approx((100 * 50) ** 0.5)


def test_a_smaller_set_is_never_slower():
    assert at(((1000, 30.0), (4000, 50.0), (16000, 10.0)), 1000) == pytest.approx(50)


def test_speeds_become_plain_data_and_come_back():
    assert Speed.from_dict(SPEED.as_dict()) == SPEED


@pytest.mark.parametrize("name", TARGETS)
def test_every_device_of_the_tables_has_a_roofline(name):
    speed = Speed.of_row(TARGETS[name])
    assert not speed.measured and speed.launch == 0
    found = bound(Work({"float32": {"multiplications": 10**9, "additions": 10**9}}, {"exp": 10}, 10**9, 10**9), speed)
    assert found.arithmetic > 10**9 / speed.rate("float32") * 0.99
    assert found.memory == pytest.approx(2e9 / TARGETS[name].bandwidth)
    assert speed.rate("float16") >= speed.rate("float32")
