# SPDX-License-Identifier: Apache-2.0
"""`from_torch` beside torch: `make test-torch` runs this, in an environment with torch."""

import pytest
import torch
from torch import nn

from smartmem_tvm import UserError, compile, from_torch
from smartmem_tvm.frontend.torch_exporter import export


class Function(nn.Module):
    """A function of one tensor, with a buffer of its own."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.register_buffer("sum", torch.zeros(8))

    def forward(self, x):
        return self.function(self, x)


def _filled(x):
    x[0].normal_()
    return x


def exported(module, decomposed):
    program = torch.export.export(module, (torch.rand(4, 3, 8, 8),))
    return program.run_decompositions() if decomposed else program


IN_TRAINING = {
    "batch norm": nn.BatchNorm2d(3),
    "instance norm": nn.InstanceNorm2d(3, track_running_stats=True),
    "dropout": nn.Dropout(0.3),
    "attention": Function(lambda _, x: nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)),
    "rrelu": nn.RReLU(),
}
REFUSED = {
    "random": (lambda _, x: x + torch.randn_like(x), "draws random numbers .* make them an input"),
    "random, in place": (lambda _, x: _filled(x * 2), "draws random numbers"),
    "buffer": (lambda self, x: x + self.sum.add_(1), "writes into its own tensor 'sum'"),
    "view of a buffer": (lambda self, x: x + self.sum[2:4].add_(1).sum(), "writes into its own tensor 'sum'"),
    "input": (lambda _, x: x.add_(1) * 2, "writes into its input 'x'"),
}


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("kind", IN_TRAINING)
def test_training_is_refused(kind, decomposed):
    with pytest.raises(UserError, match=r"is in training mode, .* call model\.eval\(\)"):
        from_torch(exported(IN_TRAINING[kind].train(), decomposed))


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_function_of_its_inputs_is_refused(kind, decomposed):
    function, message = REFUSED[kind]
    with pytest.raises(UserError, match=message):
        from_torch(exported(Function(function), decomposed))


TAKEN = {
    "of the batch alone": nn.BatchNorm2d(3, track_running_stats=False).train(),
    "inference": nn.Sequential(nn.BatchNorm2d(3), nn.InstanceNorm2d(3, track_running_stats=True), nn.Dropout()).eval(),
    "random and unread": Function(lambda _, x: (torch.rand([]), x * 2)[1]),
    "written inside": Function(lambda _, x: (x * 2).add_(1).relu_()),
}


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("kind", TAKEN)
def test_the_others_are_right(kind, decomposed):
    x = torch.rand(4, 3, 8, 8)
    (found,) = compile(from_torch(exported(TAKEN[kind], decomposed)), "llvm").run(x.numpy())
    torch.testing.assert_close(torch.from_numpy(found), TAKEN[kind](x), rtol=1e-4, atol=1e-5)


def test_this_torch_keeps_its_table_where_it_is_looked_for(monkeypatch):
    def unexpected(*_, **__):
        raise AssertionError("torch makes its table of operators anew")

    monkeypatch.setattr(torch.onnx, "export", unexpected)
    for _ in range(2):
        model = export(exported(TAKEN["inference"], False)).model
    assert model.opset_imports[""] == torch.onnx._constants.ONNX_DEFAULT_OPSET
