# SPDX-License-Identifier: Apache-2.0
"""Ifs of which a model has both branches, as the one taken is not known, and what a user can do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

import onnx

from smartmem_tvm.frontend import graph as walk

_KEY = "smartmem.undecided/"  # before the label of an If, among what a model says of itself; inputs after it, in lines
_MOST = 16  # numbers of an input that somebody gives a value


def deciding_inputs(
    model: onnx.ModelProto, producers: Mapping[str, tuple[int, onnx.NodeProto]], condition: str
) -> list[str]:
    """The small inputs that a condition depends on; none if it depends on others, too."""
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
    """Keep in a model, in place, of which Ifs it has both branches; see `remedy`."""
    for label, inputs in undecided.items():
        model.metadata_props.add(key=_KEY + label, value="\n".join(inputs))


def remedy(model: onnx.ModelProto, label: str, usual: str) -> str:
    """What can be done about a node that is refused.

    Parameters
    ----------
    model : onnx.ModelProto
        Without control flow; it says itself of which Ifs it has both branches.
    label : str
        Of the node.
    usual : str
        What is done about one that is in no branch.
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
