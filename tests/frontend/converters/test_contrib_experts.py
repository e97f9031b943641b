# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from onnx import helper

import smartmem_tvm as sm
from against_onnxruntime import RUNTIME, check_contrib, integers, model_of

F = "float32"
EXPERTS, WIDTH, INNER = 4, 16, 24
SWIGLU = {"swiglu_fusion": 1, "activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 0.9}
SHAPES = {"all see all": (2, 3, WIDTH), "one of its own": (1, 1, WIDTH), "rows": (5, WIDTH)}


def _floats(random, *shape):
    return random.standard_normal(shape).astype(F)


@pytest.mark.each_value
@pytest.mark.parametrize("name", ["relu", "gelu", "silu", "identity", "swiglu"])
@pytest.mark.parametrize("normalized", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_experts(name, normalized, shape):
    random, shape = np.random.default_rng(0), SHAPES[shape]
    tokens, rows = int(np.prod(shape[:-1])), INNER * (2 if name == "swiglu" else 1)
    given = {"w1": _floats(random, EXPERTS, rows, WIDTH) / 3, "w2": _floats(random, EXPERTS, WIDTH, INNER) / 3}
    names = "x r w1 _ w2"
    if normalized:
        given |= {"b1": _floats(random, EXPERTS, rows), "b2": _floats(random, EXPERTS, WIDTH)}
        names = "x r w1 b1 w2 b2"
    arrays = {"x": _floats(random, *shape), "r": _floats(random, tokens, EXPERTS)}
    options = {"k": 1 if tokens == 1 else 2, "activation_type": name, "normalize_routing_weights": normalized}
    options |= SWIGLU if name == "swiglu" else {}
    check_contrib("MoE", arrays, {"y": F}, given, names, 5e-6, **options)


@pytest.mark.parametrize("tokens", [1, 6])
@pytest.mark.parametrize("fusion", [0, 2])
def test_gates_apart_and_one_after_the_other(tokens, fusion):
    """By their written definition: ONNX Runtime's kernel on a CPU has neither."""
    random = np.random.default_rng(0)
    x, router = _floats(random, tokens, WIDTH), _floats(random, tokens, EXPERTS)
    gate, up = (_floats(random, EXPERTS, INNER, WIDTH) / 3 for _ in range(2))
    second = _floats(random, EXPERTS, WIDTH, INNER) / 3
    wanted = np.zeros_like(x)
    for token, (row, logits) in enumerate(zip(x, router)):
        expert = logits.argmax()
        share = np.exp(logits[expert]) / np.exp(logits).sum()
        g, u = gate[expert] @ row, up[expert] @ row
        wanted[token] = share * (second[expert] @ (g / (1 + np.exp(-g)) * u))
    given = {"w1": np.concatenate([gate, up], 1) if fusion else gate, "w2": second}
    given |= {} if fusion else {"w3": up}
    names = "x r w1 _ w2" + ("" if fusion else " _ w3")
    options = {"k": 1, "activation_type": "swiglu", "swiglu_fusion": fusion}
    check_contrib("MoE", {"x": x, "r": router}, {"y": F}, given, names, 5e-6, [wanted], **options)


def _packed(random, rows, width, bits, block):
    each, blocks = 8 // bits, width // block if block else 1
    weights = integers(random, "uint8", (EXPERTS, rows, width // each))
    scales = (random.random((EXPERTS, rows, blocks) if block else (EXPERTS, rows)) * 0.05 + 0.01).astype(F)
    zeros = integers(random, "uint8", (EXPERTS, rows, -(-blocks // each)) if block else (EXPERTS, -(-rows // each)))
    return weights, scales, zeros


@pytest.mark.each_value
@pytest.mark.parametrize(("bits", "block"), [(2, 0), (2, 16), (4, 0), (4, 16), (8, 0)])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("name", ["silu", "swiglu"])
@pytest.mark.parametrize("shares", [None, 0, 1])
def test_experts_of_few_bits(bits, block, zeros, name, shares):
    """In blocks of 16 numbers of 8 bits ONNX Runtime rounds what it multiplies by to 8 bits too."""
    random, inner = np.random.default_rng(0), 48
    rows = inner * (2 if name == "swiglu" else 1)
    w1, s1, z1 = _packed(random, rows, 32, bits, block)
    w2, s2, z2 = _packed(random, 32, inner, bits, block)
    given = {
        "w1": w1,
        "s1": s1,
        "b1": _floats(random, EXPERTS, rows),
        "w2": w2,
        "s2": s2,
        "b2": _floats(random, EXPERTS, 32),
    }
    given |= {"z1": z1, "z2": z2} if zeros else {}
    arrays = {"x": _floats(random, 6, 32), "r": _floats(random, 6, EXPERTS)}
    if shares is not None:
        arrays["shares"] = random.random((6, EXPERTS)).astype(F)
    names = (
        "x r w1 s1 b1 w2 s2 b2 _ _ _ " + ("z1 z2" if zeros else "_ _") + " _" + ("" if shares is None else " shares")
    )
    options = {
        "k": 2,
        "activation_type": name,
        "expert_weight_bits": bits,
        "weights_prepacked": 0,
        **(SWIGLU if name == "swiglu" else {}),
    }
    options |= {"block_size": block} if block else {}
    options |= {"normalize_routing_weights": shares} if shares is not None else {}
    check_contrib("QMoE", arrays, {"y": F}, given, names, 2e-5, **options)


@pytest.mark.parametrize(
    ("op", "attributes", "reason"),
    [
        ("MoE", {"activation_type": "geglu"}, "activation is 'geglu'"),
        ("MoE", {"use_sparse_mixer": 1}, "use_sparse_mixer is 1"),
        ("MoE", {"activation_type": "swiglu"}, "no second layer"),
    ],
)
def test_what_is_refused(op, attributes, reason):
    random = np.random.default_rng(0)
    given = {"w1": _floats(random, EXPERTS, INNER, WIDTH), "w2": _floats(random, EXPERTS, WIDTH, INNER)}
    node = helper.make_node(op, ["x", "r", "w1", "", "w2"], ["y"], "mix", domain=RUNTIME, **attributes)
    arrays = {"x": _floats(random, 3, WIDTH), "r": _floats(random, 3, EXPERTS)}
    with pytest.raises(sm.UserError, match=rf"{op}.*mix.*{reason}"):
        sm.from_onnx(model_of([node], arrays, {"y": (F, (3, WIDTH))}, given))
