# SPDX-License-Identifier: Apache-2.0
"""Programs of torch that are no functions of their inputs."""

from types import SimpleNamespace

import pytest

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import from_torch, read_model
from smartmem_tvm.frontend.torch_inference import check_inference
from torch_stand_in import SAVED, Program, install, operator

DROPOUT = operator("aten.dropout.default", "input", "p", "train", tags=["nondeterministic_seeded"])
ATTENTION = operator("aten.attention", "query", dropout_p=0.0, tags=["other", "nondeterministic_seeded"])
LSTM = operator("aten.lstm.input", "input", "dropout", "train", tags=["nondeterministic_seeded"])
NORM = operator("aten.batch_norm.default", "input", "running_mean", "training")
INSTANCE_NORM = operator("aten.instance_norm.default", "input", "running_mean", "use_input_stats")
RANDOM = operator("aten.rand_like.default", "self", tags=["nondeterministic_seeded"])

TRAINING = r"m is in training mode, where 'it' \({}\) {}; call model.eval\(\) before torch.export.export"
DRAWS = "draws random numbers"
REFUSED = {
    "dropout": (DROPOUT, ("x", 0.5, True), {}, TRAINING.format("aten.dropout.default", DRAWS)),
    "attention": (ATTENTION, ("q",), {"dropout_p": 0.1}, TRAINING.format("aten.attention", DRAWS)),
    "lstm": (LSTM, ("x", 0.5, True), {}, TRAINING.format("aten.lstm.input", DRAWS)),
    "norm": (NORM, ("x", "mean", True), {}, TRAINING.format("aten.batch_norm.default", "moves its statistics")),
    "instance norm": (INSTANCE_NORM, ("x", "mean", True), {}, "call model"),
    "random": (RANDOM, ("x",), {}, r"m draws random numbers \('it', aten.rand_like.default\), .* make them an input"),
}
TAKEN = {
    "dropout": (DROPOUT, ("x", 0.5, False)),
    "no dropout": (DROPOUT, ("x", 0.0, True)),
    "attention": (ATTENTION, ("q",)),
    "lstm": (LSTM, ("x", 0.0, True)),
    "norm": (NORM, ("x", "mean", False)),
    "norm without statistics": (NORM, ("x", None, True)),
}


def program_of(target, args, kwargs=None, users=("output",)):
    program = Program()
    node = SimpleNamespace(op="call_function", name="it", target=target, args=args, kwargs=kwargs or {}, users=users)
    modules = [SimpleNamespace(graph=program.graph), SimpleNamespace(graph=SimpleNamespace(nodes=[node]))]
    program.graph_module = SimpleNamespace(modules=lambda: modules)  # a branch of a condition
    return program


@pytest.mark.parametrize("kind", REFUSED)
def test_training_and_random_numbers_are_refused(kind):
    target, args, kwargs, message = REFUSED[kind]
    with pytest.raises(UserError, match=message):
        check_inference(program_of(target, args, kwargs), "m")


@pytest.mark.parametrize("kind", TAKEN)
def test_what_does_the_same_in_each_call_is_taken(kind):
    check_inference(program_of(*TAKEN[kind]), "m")


def test_random_numbers_matter_where_somebody_reads_them():
    check_inference(program_of(RANDOM, ("x",), users=()), "m")
    written = operator("aten.normal_", "self", tags=["nondeterministic_seeded"])
    with pytest.raises(UserError, match=DRAWS):
        check_inference(program_of(written, ("x",), users=()), "m")


@pytest.fixture
def translate(monkeypatch, relu_model):
    return install(monkeypatch, relu_model)


@pytest.mark.parametrize("missing", [None, "onnxscript"])
def test_neither_way_takes_training(translate, missing):
    translate.missing = missing
    with pytest.raises(UserError, match="call model"):
        from_torch(program_of(NORM, ("x", "mean", True)))
    assert translate.exports == translate.calls == []


@pytest.mark.parametrize("missing", [None, "onnxscript"])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("USER_INPUT_MUTATION", r"writes into its input 'n', .* copy of it \(clone\(\)\)"),
        ("BUFFER_MUTATION", "writes into its own tensor 'n', .* keeps nothing from one call to the next"),
    ],
)
def test_neither_way_takes_what_writes(translate, missing, kind, message):
    translate.missing, program = missing, Program()
    program.graph_signature.output_specs = [
        SimpleNamespace(kind=SimpleNamespace(name=each), target="n") for each in ("USER_OUTPUT", kind)
    ]
    with pytest.raises(UserError, match=message):
        from_torch(program)
    assert not translate.calls and len(translate.exports) == (missing is None)


def test_a_file_is_refused_with_its_name(translate, tmp_path):
    (tmp_path / "m.pt2").write_bytes(SAVED)
    translate.program = program_of(NORM, ("x", "mean", True))
    with pytest.raises(UserError, match=r"m\.pt2 is in training mode"):
        read_model(tmp_path / "m.pt2")
