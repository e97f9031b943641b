# SPDX-License-Identifier: Apache-2.0
"""Random functions with branches in branches: both ways of each, with planned memory, beside numpy."""

import itertools
import random
import re
from math import prod

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import from_source

import numpy_relax
from smartmem_tvm.pipeline import Options, phases_of, run_phases

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2})
CONDITIONS = 3
HEADER = "@I.ir_module\nclass Module:\n    @R.function\n    def main({}):\n"


class Drawn:
    """The text of a function, line by line, and the tensors that a line may read."""

    def __init__(self, seed, computes=True):
        self.random, self.lines, self.names = random.Random(seed), [], itertools.count()
        self.computes = computes
        self.left = self.random.randint(4, 18)

    def add(self, depth, value, shape, pool):
        name = f"v{next(self.names)}"
        self.lines.append("    " * depth + f"{name} = {value}")
        pool.append((name, shape))
        return name, shape

    def moved(self, depth, pool):
        """A tensor with its numbers in other places."""
        name, shape = self.random.choice(pool)
        axis = self.random.randrange(len(shape))
        rest = lambda n: (*shape[:axis], n, *shape[axis + 1 :])  # noqa: E731
        which = self.random.choice(["reshape", "reshape", "permute", "slice", "concat", "flip"])
        if which == "reshape":
            rows = self.random.choice([d for d in range(1, prod(shape) + 1) if prod(shape) % d == 0])
            new = self.random.choice([(prod(shape),), (rows, prod(shape) // rows), (1, rows, prod(shape) // rows)])
            return self.add(depth, f"R.reshape({name}, {new})", new, pool)
        if which == "permute":
            axes = self.random.sample(range(len(shape)), len(shape))
            return self.add(depth, f"R.permute_dims({name}, {axes})", tuple(shape[i] for i in axes), pool)
        if which == "slice":
            first = self.random.randrange(shape[axis])
            last = self.random.randint(first + 1, shape[axis])
            return self.add(depth, f"R.strided_slice({name}, [{axis}], [{first}], [{last}])", rest(last - first), pool)
        if which == "concat" and prod(shape) < 200:
            return self.add(depth, f"R.concat(({name}, {name}), {axis})", rest(2 * shape[axis]), pool)
        return self.add(depth, f"R.flip({name}, {axis})", shape, pool)

    def computed(self, depth, pool):
        name, shape = self.random.choice(pool)
        same = [each for each, other in pool if other == shape]
        which = self.random.choice(["R.nn.relu({})", "R.negative({})", "R.nn.softmax({}, -1)", "sum", "two", "two"])
        if which == "sum" and len(shape) > 1:
            return self.add(depth, f"R.sum({name}, -1)", shape[:-1], pool)
        if which in ("two", "sum"):
            function = self.random.choice(["add", "subtract", "maximum"])
            return self.add(depth, f"R.{function}({name}, {self.random.choice(same)})", shape, pool)
        return self.add(depth, which.format(name), shape, pool)

    def as_large(self, depth, pool, shape):
        """A tensor of a shape, made of another one by moving its numbers."""
        name, found = self.random.choice(pool)
        if found == shape and self.random.random() < 0.5:
            return name
        copies = -(-prod(shape) // prod(found))
        name, flat = self.add(depth, f"R.reshape({name}, {(prod(found),)})", (prod(found),), pool)
        if copies > 1:
            name, flat = self.add(depth, f"R.concat(({', '.join([name] * copies)}), 0)", (prod(found) * copies,), pool)
        if flat != (prod(shape),):
            name, _ = self.add(depth, f"R.strided_slice({name}, [0], [0], [{prod(shape)}])", (prod(shape),), pool)
        return self.add(depth, f"R.reshape({name}, {shape})", shape, pool)[0]

    def condition(self, depth, pool):
        given = f"c{self.random.randrange(CONDITIONS)}"
        if self.random.random() < 0.7:
            return given
        name = f"v{next(self.names)}"
        self.lines.append("    " * depth + f"{name} = R.logical_not({given})")
        return name

    def choice(self, depth, pool):
        """An If whose branches give one or several tensors."""
        shapes = [self.random.choice(pool)[1] for _ in range(self.random.choice([1, 1, 2, 3]))]
        condition, result = self.condition(depth, pool), f"v{next(self.names)}"
        for word in (f"if {condition}", "else"):
            self.lines.append("    " * depth + f"{word}:")
            inner = list(pool)
            self.block(depth + 1, inner, self.random.randint(0, 4))
            names = [self.as_large(depth + 1, inner, shape) for shape in shapes]
            value = names[0] if len(names) == 1 else f"({', '.join(names)})"
            self.lines.append("    " * (depth + 1) + f"{result} = {value}")
        if len(shapes) == 1:
            pool.append((result, shapes[0]))
        else:
            for number, shape in enumerate(shapes):
                self.add(depth, f"{result}[{number}]", shape, pool)

    def block(self, depth, pool, steps):
        for _ in range(steps):
            if self.left > 0 and depth < 6 and self.random.random() < 0.3:
                self.left -= 1
                self.choice(depth, pool)
            elif self.computes and self.random.random() < 0.5:
                self.computed(depth, pool)
            else:
                self.moved(depth, pool)

    def text(self):
        """A whole module."""
        shapes = {
            "x": self.random.choice([(2, 9), (4, 6), (1, 7), (3, 2, 2)]),
            "y": self.random.choice([(3, 3), (4, 6)]),
        }
        pool = list(shapes.items())
        self.block(2, pool, self.random.randint(1, 4))
        self.choice(2, pool)
        self.block(2, pool, self.random.randint(0, 3))
        results = [name for name, _ in [pool[-1], *self.random.sample(pool[2:], min(2, len(pool) - 2))]]
        tensors = [f'{name}: R.Tensor({shape}, "float32")' for name, shape in shapes.items()]
        params = [*tensors, *(f'c{number}: R.Tensor((), "bool")' for number in range(CONDITIONS))]
        end = f"        return ({', '.join(dict.fromkeys(results))},)\n"
        return HEADER.format(", ".join(params)) + "\n".join(self.lines) + "\n" + end, list(shapes.values())


def compiled(mod, **options):
    with TARGET:
        lowered = run_phases(mod, phases_of(None), Options(**options))
    return relax.VirtualMachine(relax.build(lowered, TARGET, relax_pipeline=None), tvm.cpu())["main"]


def wrong_ways(seed, computes, **options):
    """The values of the conditions for which a drawn function comes out wrong."""
    text, shapes = Drawn(seed, computes).text()
    mod = from_source(text)
    main, numbers, found = compiled(mod, **options), np.random.RandomState(seed), []
    arrays = [numbers.randn(*shape).astype("float32") for shape in shapes]
    for way in itertools.product((False, True), repeat=CONDITIONS):
        given = [*arrays, *map(np.array, way)]
        got = [each.numpy() for each in main(*map(tvm.runtime.tensor, given))]
        expected, _ = numpy_relax.evaluate(mod, *given)
        same = [m.shape == e.shape and np.allclose(m, e, rtol=1e-4, atol=1e-4) for m, e in zip(got, expected)]
        found += [] if len(got) == len(expected) and all(same) else [way]
    return found


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("computes", [False, True])
def test_random_branches(seed, computes):
    assert not wrong_ways(seed, computes)


def test_without_an_arena():
    assert not wrong_ways(8, True, arena=False)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_many_random_branches(part):
    seeds = range(100 + 20 * part, 120 + 20 * part)
    wrong = {seed: wrong_ways(seed, seed % 2 == 0, arena=seed % 3 > 0) for seed in seeds}
    assert not any(wrong.values()), wrong


def test_what_is_drawn():
    """Branches in branches, without an operator, with several results, with what surrounds them."""
    texts = [Drawn(seed, seed % 2 == 0).text()[0] for seed in range(50)]
    assert any("            if c" in text for text in texts) and any("                if c" in text for text in texts)
    assert any(re.search(r"else:\n +v\d+ = [vxy]\d*\n", text) for text in texts)
    assert any(re.search(r"if c\d:\n +(v\d+ = R.reshape.*\n +)+v\d+ = v\d+\n", text) for text in texts)
