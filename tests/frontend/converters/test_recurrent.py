# SPDX-License-Identifier: Apache-2.0
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from recurrent_layer import GATES
from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import from_onnx

STEPS, BATCH, WIDTH, HIDDEN = 4, 3, 5, 6


def _layer(build, op, optional=(), lengths=None, outputs=None, **attributes):
    """A layer whose weights are constants; `optional` are inputs of "bias", "initial" and "peepholes"."""
    random = np.random.default_rng(1)
    ways = 2 if attributes.get("direction") == "bidirectional" else 1
    gates = GATES[op] * HIDDEN

    def some(*shape):
        return random.standard_normal(shape).astype("float32")

    constants = {"w": some(ways, gates, WIDTH), "r": some(ways, gates, HIDDEN)}
    if "bias" in optional:
        constants["b"] = some(ways, 2 * gates)
    if lengths is not None:
        constants["lengths"] = np.array(lengths, "int32")
    states = {"LSTM": ["h", "c"]}.get(op, ["h"]) if "initial" in optional else []
    constants |= {name: some(ways, BATCH, HIDDEN) for name in states}
    if "peepholes" in optional:
        constants["p"] = some(ways, 3 * HIDDEN)
    order = ["w", "r", "b", "lengths", "h", "c", "p"][: 7 if op == "LSTM" else 5]
    state = ((ways, BATCH, HIDDEN), "float32")
    results = {"y": ((STEPS, ways, BATCH, HIDDEN), "float32"), "y_h": state} | ({"y_c": state} if op == "LSTM" else {})
    names = [name if outputs is None or name in outputs else "" for name in results]
    inputs = ["x", *(name if name in constants else "" for name in order)]
    node = helper.make_node(op, inputs, names, hidden_size=HIDDEN, **attributes)
    kept = {name: results[name] for name in names if name}
    return build([node], {"x": ((STEPS, BATCH, WIDTH), "float32")}, kept, constants, opset=14)


@pytest.mark.parametrize(
    ("op", "optional", "attributes"),
    [
        pytest.param("RNN", (), {}, id="rnn"),
        pytest.param("RNN", ("bias", "initial"), {"direction": "reverse", "activations": ["Relu"]}, id="rnn relu"),
        pytest.param("RNN", (), {"activations": ["Tanh", "Tanh"]}, id="rnn, the default as its schema has it"),
        pytest.param("GRU", ("bias", "initial"), {"direction": "bidirectional"}, id="gru"),
        pytest.param("GRU", ("bias", "initial"), {"linear_before_reset": 1}, id="gru, reset after the product"),
        pytest.param("GRU", (), {"linear_before_reset": 1, "direction": "reverse"}, id="gru without a bias"),
        pytest.param("LSTM", (), {}, id="lstm"),
        pytest.param("LSTM", ("bias", "initial", "peepholes"), {"direction": "bidirectional"}, id="lstm with all"),
        pytest.param("LSTM", ("bias",), {"input_forget": 1}, id="lstm, coupled gates"),
        pytest.param("LSTM", ("bias",), {"clip": 0.5}, id="lstm, clip"),
        pytest.param(
            "LSTM",
            ("bias",),
            {
                "direction": "bidirectional",
                "activations": ["HardSigmoid", "Tanh", "Softsign", "Sigmoid", "ScaledTanh", "Elu"],
                "activation_alpha": [0.3, 0.7, 0.9],
                "activation_beta": [0.4, 0.8],
            },
            id="lstm, other activations in each direction",
        ),
    ],
)
def test_all_attributes_mean_what_they_mean_to_onnxruntime(build, assert_same, op, optional, attributes):
    model = _layer(build, op, optional, **attributes)
    assert_same(model, from_onnx(model), tolerance=2e-6)


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_sequences_of_several_lengths_end_where_they_end_in_both_directions(build, assert_same, op):
    model = _layer(build, op, ("bias", "initial"), lengths=[4, 1, 2], direction="bidirectional")
    assert_same(model, from_onnx(model), tolerance=2e-6)


@pytest.mark.each_value
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_the_last_states_of_a_sequence_without_steps_are_zero(build, assert_same, op, direction):
    model = _layer(build, op, ("bias", "initial"), lengths=[0, 3, 0], direction=direction)
    assert_same(model, from_onnx(model), tolerance=2e-6)


def test_a_layer_of_which_only_the_last_state_is_asked(build, assert_same):
    model = _layer(build, "LSTM", outputs=["y_c"])
    assert_same(model, from_onnx(model), tolerance=2e-6)


def test_the_length_of_a_sequence_makes_no_further_kernels(build, operators):
    assert operators(from_onnx(_layer(build, "LSTM"))).count("call_tir") == 1


def test_an_activation_that_onnx_lacks_is_refused(build):
    with pytest.raises(UserError, match=r"LSTM.*activation Swish is none of ONNX's"):
        from_onnx(_layer(build, "LSTM", activations=["Sigmoid", "Swish", "Tanh"]))


def test_half_precision_is_computed_in_single_precision(build, run_tvm, random_inputs):
    single = _layer(build, "GRU", ("bias", "initial"), direction="bidirectional")
    half = onnx.ModelProto()
    half.CopyFrom(single)
    for value in (*half.graph.input, *half.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    for tensor in half.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype("float16"), tensor.name))
    mods = [from_onnx(each) for each in (single, half)]
    arrays = random_inputs(mods[0])
    want, got = (
        run_tvm(mods[0], arrays),
        run_tvm(mods[1], {name: each.astype("float16") for name, each in arrays.items()}),
    )
    for mine, right in zip(got, want, strict=True):
        assert mine.dtype == np.float16
        np.testing.assert_allclose(mine, right, atol=4e-3)
