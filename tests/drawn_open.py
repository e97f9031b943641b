# SPDX-License-Identifier: Apache-2.0
"""Drawn graphs of `fuzz` with a dimension that stays open: results equal ONNX Runtime's at several sizes of it.

PYTHONPATH=tests:python python tests/drawn_open.py 0:200 units        # a line for each seed that is wrong or fails

A dimension of the inputs, everywhere or in one place, loses its number. What ONNX Runtime then runs at several sizes is
compiled once for a range of them. Results that are right, refusals and graphs that take one size only are counted.
"""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
import onnx

from fuzz import check, nested, reference
from fuzz.case import Case
from fuzz.draw import SMALL, UNITS, draw

Places = list[tuple[str, int]]
"""Inputs and axes."""
MOST = (3, 5, 8, 13, 20)
"""Bounds of a range: tiles and capacities, and numbers beside them."""


def opened(case: Case, random: np.random.Generator) -> tuple[onnx.ModelProto, Places] | None:
    """Return the model with a dimension called ``n``, and where it is; None if all sizes are 1."""
    sizes = sorted({size for value in case.inputs.values() for size in value.shape if size > 1})
    if not sizes:
        return None
    size = random.choice(sizes)
    places = [(name, axis) for name, value in case.inputs.items() for axis, d in enumerate(value.shape) if d == size]
    places = places if random.random() < 0.7 else places[:1]
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if (value.name, axis) in places:
                dim.ClearField("dim_value")
                dim.dim_param = "n"
    return model, places


def resized(case: Case, model: onnx.ModelProto, places: Places, size: int) -> Case:
    """Return the case at a size, whose numbers are among those that it had."""
    random, inputs = np.random.default_rng(size), dict(case.inputs)
    for name, axis in places:
        inputs[name] = inputs[name].take(random.integers(0, inputs[name].shape[axis], size), axis)
    return Case(model, inputs)


def verdict(seed: int, kind: str = UNITS) -> tuple[str, str]:
    """Return what became of a seed, ``ok``, ``wrong``, ``internal error``, ``refused`` or ``not drawn``, and why."""
    import smartmem_tvm as sm

    case, random = draw(seed, SMALL, kind), np.random.default_rng([seed, 7])
    made = opened(case, random)
    if made is None or len(list(nested.ways(case))) > 1:
        return check.NOT_DRAWN, ""
    (model, places), most = made, int(random.choice(MOST))
    least = int(random.integers(1, min(3, most)))
    sizes = sorted({least, most, *map(int, random.integers(least, most + 1, 3))})
    cases = [resized(case, model, places, size) for size in sizes]
    try:
        wanted = [reference.expected(each) for each in cases]
    except reference.Refused as error:
        return check.NOT_DRAWN, str(error)
    shapes = {
        name: tuple(f"{least}..{most}" if (name, axis) in places else dim for axis, dim in enumerate(value.shape))
        for name, value in case.inputs.items()
    }
    try:
        compiled = sm.compile(sm.from_onnx(model, shapes))
        found = [compiled.run(*(each.inputs[value.name] for value in model.graph.input)) for each in cases]
    except sm.UserError as error:
        return check.REFUSED, str(error)
    except Exception as error:
        return check.INTERNAL, f"{shapes}: {type(error).__name__}: {error}"
    for size, each, got, right in zip(sizes, cases, found, wanted, strict=True):
        if faults := check.faults(each, got, right):
            right = reference.expected(each, runs=40, scale=4.0, optimized=True)
            faults = check.faults(each, got, [one.where_finite() for one in right])
        if faults:
            return check.WRONG, f"{shapes}, {size}: {'; '.join(faults.values())}"
    return check.OK, ""


def main() -> int:
    """Go through seeds; the exit code is 1 if one is wrong or fails."""
    first, last = map(int, sys.argv[1].split(":"))
    kind, counts = sys.argv[2] if len(sys.argv) > 2 else UNITS, Counter()
    for seed in range(first, last):
        found, why = verdict(seed, kind)
        counts[found] += 1
        if found in check.FAULTS:
            print(f"{seed}: {found}: {why}", flush=True)
    print(f"{kind} {first}:{last}: {dict(counts)}")
    return int(any(counts[each] for each in check.FAULTS))


if __name__ == "__main__":
    sys.exit(main())
