# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from smartmem_tvm.frontend.size_names import derived, example, is_made_up, says_nothing


@pytest.mark.parametrize("name", ["", "?", " ? ", "-1", "*", "None", "unk", "unknown", "..."])
def test_names_that_say_nothing(name):
    assert says_nothing(name)


@pytest.mark.parametrize("name", ["n", "batch", "unk__0", "32*h", "DynamicDimension.0", "sequence length"])
def test_names_that_say_something(name):
    assert not says_nothing(name)


def test_names_that_a_program_made_up():
    assert is_made_up("unk__12") and not is_made_up("unk__h") and not is_made_up("batch")


@pytest.mark.parametrize(
    ("names", "known", "found"),
    [
        (["32*h", "h"], {"h": 7}, {"h": 7, "32*h": 224}),
        (["32*h", "h"], {"32*h": 224}, {"32*h": 224, "h": 7}),
        (["32*h", "h"], {"32*h": 225}, {"32*h": 225}),  # not a multiple
        (["past + 1", "past + n", "n"], {"past + 1": 9, "n": 3}, {"past + 1": 9, "n": 3, "past": 8, "past + n": 11}),
        (["a//b"], {"a": 4, "b": 0}, {"a": 4, "b": 0}),
        (["n", "m - 5"], {"m": 3}, {"m": 3}),  # no size
        (["f(n)", "n.m", "n**9**9", "__import__"], {"n": 2}, {"n": 2}),
    ],
)
def test_what_follows_from_others(names, known, found):
    assert derived(names, known) == found


@pytest.mark.parametrize(
    ("names", "known", "found"),
    [
        (["n", "32*h", "32*w"], {}, {"n": 1, "32*h": 32, "32*w": 32}),
        (["h"], {"32*h": 64, "h": 2}, {"h": 2}),
        (["n - 5", "n"], {}, {"n - 5": 3, "n": 8}),
        (["a - a"], {}, {"a - a": 1}),
        (["sequence length"], {}, {"sequence length": 1}),
    ],
)
def test_examples_go_together(names, known, found):
    assert example(names, known) == found


def test_expressions_drawn_at_random_are_solved():
    random = np.random.default_rng(0)
    for _ in range(200):
        factor, more, size = (int(each) for each in random.integers(1, 40, 3))
        name = [f"{factor}*n + {more}", f"{more} + n*{factor}", f"{factor}*(n + {more})"][random.integers(3)]
        value = derived([name], {"n": size})[name]
        assert derived([name, "n"], {name: value})["n"] == size
