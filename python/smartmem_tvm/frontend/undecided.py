# SPDX-License-Identifier: Apache-2.0
"""Record the Ifs of which a model keeps both branches, as their conditions are unknown, and suggest remedies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

import onnx

from smartmem_tvm.frontend import walk_graph as walk

_KEY = "smartmem.undecided/"  # metadata key: prefix of an If's label; the value holds its deciding inputs, one a line
_MOST = 16  # elements of an input that a user can give a value, at most


def deciding_inputs(
    model: onnx.ModelProto, producers: Mapping[str, tuple[int, onnx.NodeProto]], condition: str
) -> list[str]:
    """Return the small inputs that a condition depends on; none if it also depends on larger ones."""
    found, left, seen = [], [condition], set()
    while left:
        each = left.pop()
        if each in seen:
            continue
        seen.add(each)
        if each in producers:
            left += [name for name in walk.reads(producers[each][1]) if name]
        else:
            found.append(each)
    inputs = {value.name: value for value in model.graph.input}
    deciding = [name for name in found if name in inputs]
    return sorted(deciding) if all(_is_small(inputs[name]) for name in deciding) else []


def _is_small(value: onnx.ValueInfoProto) -> bool:
    return prod(dim.dim_value for dim in value.type.tensor_type.shape.dim) <= _MOST


def write(model: onnx.ModelProto, undecided: Mapping[str, Iterable[str]]) -> None:
    """Record in a model, in place, the Ifs of which it has both branches; see `remedy`."""
    for label, inputs in undecided.items():
        model.metadata_props.add(key=_KEY + label, value="\n".join(inputs))


def remedy(model: onnx.ModelProto, label: str, usual: str) -> str:
    """Return the remedy for a node that is refused.

    Parameters
    ----------
    model : onnx.ModelProto
        A model without control flow, with the record that `write` made.
    label : str
        The label of the node.
    usual : str
        The remedy for a node outside of any branch.
    """
    ifs = {each.key.removeprefix(_KEY): each.value for each in model.metadata_props if each.key.startswith(_KEY)}
    around = [name for name in ifs if label == name or label.startswith(f"{name}/")]
    if not around:
        return usual
    name = min(around, key=len)  # the outermost
    inputs = ifs[name].splitlines()
    if not inputs:
        return (
            f"it belongs to the If {name}, of which both branches are compiled, as numbers of the input decide; {usual}"
        )
    given = " ".join(f"--value {each}=NUMBER" for each in inputs)
    return (
        f"it belongs to the If {name}, of which both branches are compiled, as input "
        f"{' and '.join(map(repr, inputs))} decides: fix its value with {given}"
    )
