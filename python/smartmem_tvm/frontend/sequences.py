# SPDX-License-Identifier: Apache-2.0
"""Resolve the sequences and optionals of a graph into the tensors that they hold."""

from __future__ import annotations

import numpy as np
import onnx

from smartmem_tvm.frontend.flatten import Flattening, Refused


def construct(at: Flattening, node: onnx.NodeProto) -> None:
    """SequenceConstruct and SequenceEmpty."""
    at.sequences[node.output[0]] = list(node.input)


def insert(at: Flattening, node: onnx.NodeProto) -> None:
    """SequenceInsert: at the end, or before the element of a position."""
    tensors = list(_sequence(at, node))
    tensors.insert(_position(at, node, 2, len(tensors), len(tensors), 1), node.input[1])
    at.sequences[node.output[0]] = tensors


def erase(at: Flattening, node: onnx.NodeProto) -> None:
    """SequenceErase: the last element, or that of a position."""
    tensors = list(_sequence(at, node))
    del tensors[_position(at, node, 1, len(tensors) - 1, len(tensors))]
    at.sequences[node.output[0]] = tensors


def element(at: Flattening, node: onnx.NodeProto) -> None:
    """SequenceAt."""
    tensors = _sequence(at, node)
    at.then([at.identity(tensors[_position(at, node, 1, 0, len(tensors))], node.output[0])])


def length(at: Flattening, node: onnx.NodeProto) -> None:
    """SequenceLength."""
    count = at.constant(np.array(len(_sequence(at, node)), "int64"))
    at.then([at.identity(count, node.output[0])])


def concatenate(at: Flattening, node: onnx.NodeProto) -> None:
    """ConcatFromSequence, along an axis that the tensors have or a new one."""
    tensors, axis = _sequence(at, node), _attribute(node, "axis", 0)
    if not tensors:
        raise Refused("its sequence is empty")
    made = []
    if _attribute(node, "new_axis", 0):
        single = [at.unsqueezed(each, axis) for each in tensors]
        made, tensors = [each for each, _ in single], [name for _, name in single]
    at.then([*made, at.node("Concat", tensors, node.output[0], axis=axis)[0]])


def split(at: Flattening, node: onnx.NodeProto) -> None:
    """SplitToSequence: parts of a size, of several sizes, or single elements with or without their axis."""
    source = node.input[0]
    shape = at.shape(source, "input")
    axis = at.axis(_attribute(node, "axis", 0), shape)
    parted = len(node.input) > 1 and bool(node.input[1])
    sizes = _sizes(at, at.value(node.input[1], "split") if parted else np.array(1), shape[axis])
    ends = np.cumsum(sizes)
    drops = not parted and not _attribute(node, "keepdims", 1)
    made = []
    for end, size in zip(ends, sizes, strict=True):
        if drops:
            made.append(at.node("Gather", [source, at.constant(np.array(end - 1, "int64"))], axis=axis))
        else:
            bounds = [at.constant(np.array([each], "int64")) for each in (end - size, end, axis)]
            made.append(at.node("Slice", [source, *bounds]))
    at.sequences[node.output[0]] = [name for _, name in made]
    at.then(each for each, _ in made)


def _sizes(at: Flattening, split: np.ndarray, length: int) -> list[int]:
    """Return the sizes of the parts of a length; `split` is one size or all of them."""
    given = split.tolist() if split.dtype.kind in "iu" else None
    if isinstance(given, int) and given > 0:
        starts = range(0, length, given)
        at.spend(len(starts))
        return [min(given, length - start) for start in starts]
    if split.ndim == 1 and given is not None and min(given, default=0) >= 0 and sum(given) == length:
        return given
    raise Refused(f"its split, of shape {list(split.shape)}, does not part {length} elements; export the model again")


def optional(at: Flattening, node: onnx.NodeProto) -> None:
    """Optional: a second name of its content, or an empty optional."""
    if any(node.input):
        at.then([at.identity(node.input[0], node.output[0])])
    else:
        at.sequences[node.output[0]] = None


def get_element(at: Flattening, node: onnx.NodeProto) -> None:
    """OptionalGetElement."""
    if node.input[0] in at.sequences and at.sequences[node.input[0]] is None:
        raise Refused("its optional is empty")
    at.then([at.identity(node.input[0], node.output[0])])


def has_element(at: Flattening, node: onnx.NodeProto) -> None:
    """OptionalHasElement: false only for an empty optional."""
    given = any(node.input) and at.sequences.get(node.input[0], ()) is not None
    at.then([at.identity(at.constant(np.array(given)), node.output[0])])


def _sequence(at: Flattening, node: onnx.NodeProto) -> list[str]:
    found = at.sequences.get(node.input[0])
    if found is None:
        raise Refused(f"its sequence {node.input[0]} is not made in the graph; make it from tensors there")
    return found


def _position(at: Flattening, node: onnx.NodeProto, number: int, default: int, size: int, more: int = 0) -> int:
    """Return a position among `size` elements and `more` after them; a negative one counts from the end."""
    if len(node.input) <= number or not node.input[number]:
        place = default
    else:
        place = at.number(node.input[number], "position")
    if not -size <= place < size + more:
        raise Refused(f"its position {place} is none of a sequence of {size}")
    return place if place >= 0 else place + size


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((each.i for each in node.attribute if each.name == name), default)


SEQUENCES = {
    "ConcatFromSequence": concatenate,
    "Optional": optional,
    "OptionalGetElement": get_element,
    "OptionalHasElement": has_element,
    "SequenceAt": element,
    "SequenceConstruct": construct,
    "SequenceEmpty": construct,
    "SequenceErase": erase,
    "SequenceInsert": insert,
    "SequenceLength": length,
    "SplitToSequence": split,
}
