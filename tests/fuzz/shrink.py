# SPDX-License-Identifier: Apache-2.0
"""A case that fails -> a smaller one that fails in the same way, step by step as long as there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import numpy_helper

from . import check, reference
from .case import Case
from .check import Job
from .cut import cut, info, values_of

_TRIES = 600


def shrink(case: Case, target: str, pool, tries: int = _TRIES) -> tuple[Case, dict]:
    """A smaller case with the same verdict, and that verdict.

    Parameters
    ----------
    pool : fuzz.pool.Pool
        Where cases are checked: they may crash.
    tries : int
        How many smaller cases are looked at.
    """
    verdict = _verdict(case, target, pool)
    if verdict["kind"] not in check.FAULTS:
        return case, verdict
    steps: list[Callable] = [
        _fewer_options,
        _fewer_outputs,
        _earlier_end,
        _later_start,
        _without_node,
        _as_input,
        _smaller,
        _plainer,
    ]
    going = True
    while going:
        going = False
        for step in steps:
            found = True
            while found and tries > 0:
                found = False
                for smaller in step(case):
                    tries -= 1
                    theirs = _verdict(smaller, target, pool)
                    if _same(theirs, verdict):
                        case, found, going = smaller, True, True
                        break
                    if tries <= 0:
                        break
    return case, _verdict(case, target, pool)


def _verdict(case: Case, target: str, pool) -> dict:
    return next(verdict for _, verdict in pool.verdicts([Job(target, case=case)]))


def _same(one: dict, other: dict) -> bool:
    """Whether two verdicts are about the same fault; the operators of wrong results become fewer."""
    return one["kind"] == other["kind"] and (one["kind"] != check.INTERNAL or one["cause"] == other["cause"])


def _fewer_options(case: Case) -> Iterator[Case]:
    for name in case.options:
        yield Case(case.model, case.inputs, {key: value for key, value in case.options.items() if key != name})


def _fewer_outputs(case: Case) -> Iterator[Case]:
    names = [value.name for value in case.model.graph.output]
    if len(names) > 1:
        yield from (cut(case, [name]) for name in names)
        yield from (cut(case, [other for other in names if other != name]) for name in names)


def _earlier_end(case: Case) -> Iterator[Case]:
    """Each tensor of the graph as its only result, the first ones first."""
    now = [value.name for value in case.model.graph.output]
    names = [name for node in case.model.graph.node for name in node.output if name and node.op_type != "Constant"]
    yield from (cut(case, [name]) for name in names if [name] != now)


def _later_start(case: Case) -> Iterator[Case]:
    """Tensors of the graph as inputs, the last ones first."""
    outputs = {value.name for value in case.model.graph.output}
    nodes = [node for node in case.model.graph.node if node.op_type != "Constant"]
    for node in reversed(nodes):
        if not outputs & set(node.output):
            yield cut(case, list(outputs), list(node.output))
    for node in reversed(nodes):
        names = [name for name in node.input if name in {n for each in nodes for n in each.output}]
        if names:
            yield cut(case, [v.name for v in case.model.graph.output], names)


def _without_node(case: Case) -> Iterator[Case]:
    """A node away, and what it reads in place of what it makes, where the two are alike."""
    values = values_of(case)
    for i, node in enumerate(case.model.graph.node):
        if len(node.output) != 1 or node.op_type == "Constant":
            continue
        made = values[node.output[0]]
        for name in node.input:
            if name and name in values and values[name].shape == made.shape and values[name].dtype == made.dtype:
                model = _copy(case.model)
                del model.graph.node[i]
                for other in model.graph.node:
                    for k, read in enumerate(other.input):
                        if read == node.output[0]:
                            other.input[k] = name
                outputs = [name if v.name == node.output[0] else v.name for v in model.graph.output]
                inside = {n for other in model.graph.node for n in other.output}
                if set(outputs) <= inside and len(set(outputs)) == len(outputs):
                    yield cut(Case(model, case.inputs, case.options), outputs, values=values)


def _as_input(case: Case) -> Iterator[Case]:
    """A constant of floating point as an input, which is one thing less to look at; and nodes as initializers."""
    for node in case.model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            model = _copy(case.model)
            tensor = _copy_of(node.attribute[0].t)
            tensor.name = node.output[0]
            kept = [_copy_of(each) for each in model.graph.node if each.output[0] != node.output[0]]
            del model.graph.node[:]
            model.graph.node.extend(kept)
            model.graph.initializer.append(tensor)
            yield Case(model, case.inputs, case.options)


def _smaller(case: Case) -> Iterator[Case]:
    """A dimension smaller wherever its size is stated: in inputs, in constants and as a number in shapes."""
    sizes = {n for v in case.inputs.values() for n in v.shape}
    sizes |= {n for tensor in case.model.graph.initializer for n in tensor.dims}
    for size in sorted(sizes, reverse=True):
        for other in [n for n in (1, 2, 3, size // 2, size - 1) if 0 < n < size]:
            yield from _resized(case, size, other)


def _resized(case: Case, size: int, other: int) -> Iterator[Case]:
    model = _copy(case.model)
    less = lambda value: value[tuple(slice(other) if n == size else slice(None) for n in value.shape)]  # noqa: E731
    for i, tensor in enumerate(model.graph.initializer):
        value = less(numpy_helper.to_array(tensor))
        if value.dtype in ("int64", "int32"):
            value = np.where(value == size, other, value).astype(value.dtype)
        model.graph.initializer[i].CopyFrom(numpy_helper.from_array(value, tensor.name))
    inputs = {name: less(value) for name, value in case.inputs.items()}
    found = Case(model, inputs, case.options)
    try:
        _state_types(found)
    except reference.Refused:
        return
    yield found


def _plainer(case: Case) -> Iterator[Case]:
    """Numbers that are easy to read."""
    for name, value in case.inputs.items():
        if value.dtype.kind != "f" or not value.size:
            continue
        plain = (np.arange(value.size) % 64).reshape(value.shape).astype(value.dtype)
        if not np.array_equal(plain, value):
            yield Case(case.model, {**case.inputs, name: plain}, case.options)


def _state_types(case: Case) -> None:
    """Let inputs and outputs of a model be stated as its numbers are."""
    graph = case.model.graph
    del graph.input[:]
    graph.input.extend(info(*item) for item in case.inputs.items())
    names = [value.name for value in graph.output]
    values = reference.every(case)
    del graph.output[:]
    graph.output.extend(info(name, values[name]) for name in names)


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    return _copy_of(model)


def _copy_of(message):
    return type(message).FromString(message.SerializeToString())
