# SPDX-License-Identifier: Apache-2.0
"""What a damaged or hostile file may look like: bytes, JSON and ONNX models with some things changed."""

import copy
import json
import random
from collections.abc import Callable

import onnx
from google.protobuf.message import Message
from onnx import AttributeProto, TensorProto, helper

from smartmem_tvm.frontend.walk_graph import graphs

NUMBERS = (0, 1, -1, 2, 3, 7, 127, 2**31 - 1, 2**31, 2**32, -(2**31), 2**63 - 1, -(2**63), 10**12, 10**15)
FLOATS = (0.0, -0.0, 1e-300, 1e308, float("nan"), float("inf"), float("-inf"))
TEXTS = ("", "\0", "a\nb", "x" * 100_000, "../../x", "/etc/passwd", "ünï", "%s{}", "\ud800", "main", "0", "a/b", "'\"")


def changed_bytes(data: bytes, random: random.Random) -> bytes:
    """A file of which a few bytes are others, are gone, or come twice."""
    data = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        at = random.randrange(len(data) + 1)
        size = random.choice((1, 1, 2, 4, 8, 64))
        how = random.randrange(5)
        if how == 0:
            data[at : at + size] = random.randbytes(size)
        elif how == 1:
            del data[at : at + size]
        elif how == 2:
            data[at:at] = data[at : at + size] or random.randbytes(size)
        elif how == 3:
            del data[at:]
        elif at < len(data):
            data[at] ^= 1 << random.randrange(8)
    return bytes(data)


def _odd_value(random: random.Random) -> object:
    deep: object = []
    for _ in range(random.choice((1, 10, 200))):
        deep = random.choice(([deep], {"a": deep}))
    return random.choice(
        (None, True, deep, {}, [], random.choice(NUMBERS), random.choice(FLOATS), random.choice(TEXTS))
    )


def changed_json(value: object, random: random.Random) -> object:
    """A value of JSON of which a few parts are others, are gone, or are in the place of others."""
    root = [copy.deepcopy(value)]
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        places = [(root, 0)]
        for holder, key in places:
            if isinstance(holder[key], dict | list):
                keys = holder[key] if isinstance(holder[key], dict) else range(len(holder[key]))
                places += [(holder[key], each) for each in keys]
        holder, key = random.choice(places)
        how = random.randrange(4)
        if how == 0 and holder is not root:
            del holder[key]
        elif how == 1:
            other, where = random.choice(places)
            holder[key] = copy.deepcopy(other[where])
        elif how == 2 and isinstance(holder, list) and holder is not root:
            holder.insert(key, copy.deepcopy(holder[key]))
        else:
            holder[key] = _odd_value(random)
    return root[0]


def changed_json_text(data: bytes, random: random.Random) -> bytes:
    """Lines of JSON, some of which are changed; now and then as bytes."""
    if random.random() < 0.2:
        return changed_bytes(data, random)
    lines = data.decode().splitlines()
    number = random.randrange(len(lines))
    lines[number] = json.dumps(changed_json(json.loads(lines[number]), random))
    return "\n".join([*lines, ""]).encode("utf-8", "surrogatepass")


def changed_model(model: onnx.ModelProto, random: random.Random) -> onnx.ModelProto:
    """A model with a few changes, each of which leaves a message that protobuf can read."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        try:
            random.choice(_CHANGES)(changed, random)
        except (ValueError, IndexError, TypeError):  # what is to be changed is not there any more, or cannot hold it
            continue
    return changed


def _graph(model: onnx.ModelProto, random: random.Random) -> onnx.GraphProto:
    """The graph of a model, or one within."""
    return random.choice(list(graphs(model.graph)))


def _names(model: onnx.ModelProto) -> list[str]:
    graph = model.graph
    found = [each.name for each in (*graph.input, *graph.output, *graph.initializer)]
    return found + [name for node in graph.node for name in (*node.input, *node.output)]


def _rename_an_edge(model: onnx.ModelProto, random: random.Random) -> None:
    node = random.choice(_graph(model, random).node)
    side = random.choice((node.input, node.output))
    side[random.randrange(len(side))] = random.choice((*TEXTS[:8], *_names(model)))


def _rename_everywhere(model: onnx.ModelProto, random: random.Random) -> None:
    old, new = random.choice(_names(model)), random.choice(TEXTS)
    for node in model.graph.node:
        for side in (node.input, node.output):
            side[:] = [new if name == old else name for name in side]
    for each in (*model.graph.input, *model.graph.output, *model.graph.initializer, *model.graph.value_info):
        each.name = new if each.name == old else each.name


def _change_operator(model: onnx.ModelProto, random: random.Random) -> None:
    node = random.choice(_graph(model, random).node)
    node.op_type = random.choice((*_OPERATORS, *TEXTS[:4]))
    if random.random() < 0.1:
        node.domain = random.choice(("com.microsoft", "ai.onnx", "x", "\0"))


_OPERATORS = sorted({schema.name for schema in onnx.defs.get_all_schemas()})


def _change_attribute(model: onnx.ModelProto, random: random.Random) -> None:
    node = random.choice(_graph(model, random).node)
    schemas = [each for each in onnx.defs.get_all_schemas() if each.name == node.op_type]
    name = random.choice(sorted(schemas[0].attributes) if schemas and schemas[0].attributes else ["x"])
    kept = [each for each in node.attribute if each.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
    value = random.choice(
        (
            random.choice(NUMBERS),
            random.choice(FLOATS),
            random.choice(TEXTS[:8]),
            [random.choice(NUMBERS) for _ in range(random.choice((1, 2, 4, 8)))],
            helper.make_tensor("t", TensorProto.FLOAT, [1], [1.0]),
        )
    )
    node.attribute.append(helper.make_attribute(name, value))


def _change_node(model: onnx.ModelProto, random: random.Random) -> None:
    nodes = _graph(model, random).node
    at, how = random.randrange(len(nodes)), random.randrange(4)
    if how == 0:
        del nodes[at]
    elif how == 1:
        nodes.append(nodes[at])
    elif how == 2:
        nodes[at].input.append(random.choice(_names(model)))
    else:
        side = random.choice((nodes[at].input, nodes[at].output))
        del side[random.randrange(len(side))]


def _change_dims(model: onnx.ModelProto, random: random.Random) -> None:
    graph = model.graph
    tensor = random.choice((*graph.initializer, *graph.input, *graph.output, *graph.value_info))
    if isinstance(tensor, TensorProto):
        tensor.dims[random.randrange(len(tensor.dims))] = random.choice(NUMBERS)
    else:
        dim = random.choice(tensor.type.tensor_type.shape.dim)
        dim.dim_value = random.choice(NUMBERS)


def _change_initializer(model: onnx.ModelProto, random: random.Random) -> None:
    tensor = random.choice(model.graph.initializer)
    how = random.randrange(5)
    if how == 0:
        tensor.data_type = random.randrange(-1, 30)
    elif how == 1:
        tensor.raw_data = changed_bytes(tensor.raw_data, random)
    elif how == 2:
        values = [random.choice(NUMBERS) for _ in range(max(1, len(tensor.raw_data) // 8))]
        tensor.CopyFrom(helper.make_tensor(tensor.name, TensorProto.INT64, [len(values)], values))
    elif how == 3:
        tensor.data_location = TensorProto.EXTERNAL
        for key in ("location", "offset", "length"):
            value = str(random.choice((*NUMBERS, *TEXTS[:5], "m.onnx")))
            tensor.external_data.add(key=key, value=value)
    else:
        tensor.ClearField("raw_data")


def _change_any_field(model: onnx.ModelProto, random: random.Random) -> None:
    """Any field of any message within: a number, a text or a list becomes another, or is gone."""
    messages: list[Message] = [model]
    for each in messages:
        for field, value in each.ListFields():
            if field.message_type is not None:
                messages += value if hasattr(value, "append") or hasattr(value, "add") else [value]
    message = random.choice(messages)
    field, value = random.choice(message.ListFields())
    if random.random() < 0.2 or field.message_type is not None:
        message.ClearField(field.name)
        return
    new: Callable[[], object] = {str: lambda: random.choice(TEXTS), bytes: lambda: random.randbytes(5)}.get(
        type(value[0] if hasattr(value, "append") else value), lambda: random.choice(NUMBERS)
    )
    if hasattr(value, "append"):
        value[random.randrange(len(value))] = new()
    else:
        setattr(message, field.name, new())


def _change_type(model: onnx.ModelProto, random: random.Random) -> None:
    value = random.choice((*model.graph.input, *model.graph.output))
    value.type.tensor_type.elem_type = random.randrange(-1, 30)


def _make_sequence(model: onnx.ModelProto, random: random.Random) -> None:
    value = random.choice((*model.graph.input, *model.graph.output))
    value.type.sequence_type.elem_type.tensor_type.elem_type = 1


def _nest(model: onnx.ModelProto, random: random.Random) -> None:
    """The graph in an attribute of one of its nodes."""
    attribute = AttributeProto(name=random.choice(("then_branch", "body", "x")), type=AttributeProto.GRAPH)
    attribute.g.CopyFrom(model.graph)
    random.choice(_graph(model, random).node).attribute.append(attribute)


def _add_function(model: onnx.ModelProto, random: random.Random) -> None:
    """One that calls itself, perhaps."""
    node = random.choice(_graph(model, random).node)
    function = model.functions.add(name=random.choice(("f", node.op_type)), domain=random.choice(("", "own")))
    function.input.extend(node.input)
    function.output.extend(node.output)
    function.node.append(node)
    function.opset_import.extend(model.opset_import)
    if function.domain:
        model.opset_import.add(domain="own", version=1)
    node.op_type, node.domain = function.name, function.domain
    if random.random() < 0.5:
        function.node[0].op_type, function.node[0].domain = function.name, function.domain


def _change_opset(model: onnx.ModelProto, random: random.Random) -> None:
    random.choice(model.opset_import).version = random.choice((*range(25), *NUMBERS))


_CHANGES = (
    *(_rename_an_edge, _rename_everywhere, _change_operator, _change_attribute, _change_node, _change_dims),
    *(_change_initializer, _change_any_field, _change_type, _make_sequence, _nest, _add_function, _change_opset),
)


def changed_model_bytes(data: bytes, random: random.Random) -> bytes:
    """The file of a changed model, names that are no text included; now and then with other bytes."""
    try:
        changed = changed_model(onnx.ModelProto.FromString(data), random).SerializeToString()
    except ValueError:  # a text that is none cannot be written
        changed = data
    if random.random() < 0.1:  # a byte that is in no text of UTF-8
        at = random.randrange(len(changed))
        changed = changed[:at] + b"\xff" + changed[at + 1 :]
    return changed_bytes(changed, random) if random.random() < 0.1 else changed
