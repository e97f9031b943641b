# SPDX-License-Identifier: Apache-2.0
"""Small networks with caches that hide the rows behind a token, and some that do not."""

import numpy as np
import onnx

ROWS, WORDS = 12, 7
HIDDEN, SEEN, LAST = "hidden", "seen", "hidden from the last token on"


def network(form: str, batch: int, scores: str = "all") -> onnx.ModelProto:
    """Two layers that add the rows that are alike, of which a mask leaves some, or none is left out."""
    masks = {
        HIDDEN: "seen = LessOrEqual(numbers, places)",
        SEEN: "seen = GreaterOrEqual(numbers, nothing)",
        LAST: "last = ReduceMax<keepdims = 1>(places, one)\n seen = LessOrEqual(numbers, last)",
    }
    layer = """
      present_{0} = TensorScatter<axis = 1>(past_{0}, {1}, at)
      turned_{0} = Transpose<perm = [0, 2, 1]>(present_{0})
      alike_{0} = MatMul({1}, turned_{0})
      kept_{0} = Mul(alike_{0}, weights)
      mixed_{0} = MatMul(kept_{0}, present_{0})
      added_{0} = Add(mixed_{0}, {1})
      bounded_{0} = Tanh(added_{0})
    """
    result = "logits = MatMul(bounded_1, back)"
    if scores == "last":
        result = "tail = Slice(bounded_1, minus, end, one)\n logits = MatMul(tail, back)"
    text = f"""<ir_version: 10, opset_import: ["": 24]>
    decoder (int64[{batch}, n] input_ids, int64[{batch}, n] position_ids, float[{batch}, {ROWS}, 3] past_0,
             float[{batch}, {ROWS}, 3] past_1)
      => (float[{batch}, m, {WORDS}] logits, float[{batch}, {ROWS}, 3] present_0, float[{batch}, {ROWS}, 3] present_1)
    <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] minus = {{-1}}, int64[1] end = {{99}},
     int64 nothing = {{0}}, int64[{ROWS}] numbers = {{{", ".join(map(str, range(ROWS)))}}}> {{
      first = Slice(position_ids, zero, one, one)
      at = Squeeze(first, one)
      rows = Gather(table, input_ids)
      places = Unsqueeze(position_ids, two)
      {masks[form]}
      weights = Cast<to = 1>(seen)
      {layer.format(0, "rows")} {layer.format(1, "bounded_0")} {result}
    }}"""
    model = onnx.parser.parse_model(text)
    table = (np.random.default_rng(0).standard_normal((WORDS, 3)) / 3).astype("float32")  # tanh of more is 1
    back = np.random.default_rng(1).standard_normal((3, WORDS)).astype("float32")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(*each) for each in ((table, "table"), (back, "back")))
    return model
