# SPDX-License-Identifier: Apache-2.0
"""Operators with forms of our own beside torch: searches, histograms, sorts, bits, the fast path of layers, experts."""

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

import smartmem_tvm as sm
from smartmem_tvm import torch_backend
from smartmem_tvm.frontend import torch_experts, torch_operators

INF, NAN = float("inf"), float("nan")
X = torch.tensor([[-2.0, -1.0, 0.5, 1.0], [INF, -INF, NAN, 0.0]])
BOUNDS = torch.tensor([-1.0, 0.0, 0.0, 1.0])


def as_array(tensor):
    return (
        tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16) if tensor.dtype == torch.bfloat16 else tensor.numpy()
    )


class Program(nn.Module):
    """A function, or a module, whose results are a tuple."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *given):
        found = self.function(*given)
        return tuple(found) if isinstance(found, tuple | list) else (found,)


class Masked(nn.Module):
    def __init__(self, layer, **masks):
        super().__init__()
        self.layer, self.masks = layer, masks

    def forward(self, x):
        return self.layer(x, **self.masks)


def agrees(function, *given, rtol=2e-5, strict=False):
    whole = Program(function).eval()
    with torch.no_grad():
        wanted, program = whole(*given), torch.export.export(whole, given, strict=strict)
    found = sm.compile(sm.from_torch(program)).run(*map(as_array, given))
    for got, want in zip(found, map(as_array, wanted), strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got.astype("float64"), want.astype("float64"), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("out_int32", [False, True])
def test_searches(right, out_int32):
    options = {"right": right, "out_int32": out_int32}
    torch.manual_seed(0)
    rows = torch.randn(2, 3, 7).sort()[0]

    def function(x, rows, values, integers):
        return (
            torch.bucketize(x, BOUNDS, **options),
            torch.bucketize(x, torch.tensor([-INF, 0.0, INF]), **options),
            torch.bucketize(x, torch.tensor([]), **options),
            torch.bucketize(integers, torch.tensor([1, 3, 3, 5]), **options),
            torch.bucketize(integers, torch.tensor([1.5, 3, 3, 5]), **options),
            torch.searchsorted(rows, values, **options),
            torch.searchsorted(rows[0, 0], 0.3, **options),
            torch.searchsorted(values, values, sorter=values.argsort(), out_int32=out_int32, side="right"),
        )

    agrees(function, X, rows, torch.randn(2, 3, 4), torch.arange(8).reshape(2, 4))


def test_a_search_among_many():
    agrees(lambda x: torch.bucketize(x, torch.linspace(-3, 3, 1000)), torch.randn(50))


def test_histograms():
    def function(x, edges, same):
        return (
            torch.histc(x, 7, -1, 1),
            torch.histc(x),
            torch.histc(x.double(), 9, -2, 2),
            torch.histc(edges, 4, 0, 3),
            torch.histc(same, 4),
        )

    edges = torch.tensor([0.0, 1, 2, 3, 3, 2, 2, 7, NAN, -1])
    agrees(function, torch.randn(60).clamp(-2, 2), edges, torch.tensor([2.0, 2.0]))


@pytest.mark.parametrize("descending", [False, True])
def test_sorts(descending):
    torch.manual_seed(0)
    draw = (torch.randn(3, 9) * 2).round()
    floats = draw.clone()
    floats[0, 3], floats[1, 2], floats[1, 1], floats[2, :3] = NAN, INF, -INF, -0.0
    given = [floats, floats.double(), floats.half(), floats.bfloat16()]
    given += [draw.long(), draw.to(torch.int8), draw.abs().to(torch.uint8), draw > 0]

    def function(*given):
        found = [torch.sort(x, stable=True, dim=1, descending=descending) for x in given]
        more = [torch.argsort(x, stable=True, dim=0, descending=descending) for x in given]
        return [part for each in found for part in each] + more

    agrees(function, *given)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize("length", [1, 7, 8])
def test_running_extremes(name, length):
    torch.manual_seed(0)
    draw = (torch.randn(3, length, 5) * 2).round()  # with equal numbers
    floats = draw.clone()
    floats[0, length // 2, 1], floats[1, 0, 2], floats[2, :, 3] = NAN, INF, NAN
    given = [floats, floats.double(), floats.half(), floats.bfloat16(), draw.long(), draw.to(torch.int8), draw > 0]

    def function(*given):
        found = [getattr(torch, name)(x, dim) for x in given for dim in (1, -1)]
        return [part for each in found for part in each]

    agrees(function, *given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_angles_of_any_two_numbers(dtype):
    each = torch.tensor([0.0, -0.0, 1, -1, INF, -INF, NAN, 2.5, -1e-30]).to(dtype)
    agrees(torch.atan2, *torch.meshgrid(each, each, indexing="ij"), rtol=1e-2 if dtype.itemsize == 2 else 1e-6)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8])
def test_angles_of_whole_numbers(dtype):
    y, x = torch.meshgrid(torch.arange(-3, 4), torch.arange(-3, 4), indexing="ij")
    agrees(lambda y, x: (torch.atan2(y, x), torch.arctan2(y, x[:1].float())), y.to(dtype), x.to(dtype))


@pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "nearest", "midpoint"])
@pytest.mark.parametrize("quantile", [torch.quantile, torch.nanquantile])
def test_quantiles(quantile, interpolation):
    torch.manual_seed(0)
    x, several, options = torch.randn(3, 8), torch.tensor([0.0, 0.25, 0.77, 1.0]), {"interpolation": interpolation}
    x[0, 3], x[1], x[2, 2] = NAN, NAN, INF

    def function(x):
        return (
            quantile(x, 0.3, dim=1, **options),
            quantile(x, several, dim=0, **options),
            quantile(x, 0.6, keepdim=True, **options),
            quantile(x, several, dim=-1, keepdim=True, **options),
            quantile(x.double(), several.double(), keepdim=True, **options),
        )

    agrees(function, x)


BITS = ["float32", "int32", "uint8", "float64", "int16", "int64", "float16", "bfloat16", "int8"]


@pytest.mark.parametrize("name", BITS)
def test_bits(name):
    torch.manual_seed(0)
    x = (torch.randn(3, 8) * 50).to(getattr(torch, name))
    others = [getattr(torch, each) for each in BITS]
    finite = [each for each in others if not each.is_floating_point or each.itemsize == x.itemsize]
    agrees(lambda x: [x.view(each) for each in finite], x, rtol=0)


def test_flags_are_bytes():
    flags, of_bytes = torch.tensor([[True, False]]), torch.tensor([[0, 1]], dtype=torch.uint8)
    agrees(lambda x, y: (x.view(torch.uint8), y.view(torch.bool)), flags, of_bytes)


@pytest.mark.parametrize("mask", ["none", "pairs", "keys", "both"])
@pytest.mark.parametrize("norm_first, activation", [(False, "relu"), (True, "gelu")])
def test_the_fast_path_of_a_layer(mask, norm_first, activation):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, activation, batch_first=True, norm_first=norm_first).eval()
    pairs = torch.ones(5, 5).triu(1).bool() if mask in ("pairs", "both") else None
    keys = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]) if mask in ("keys", "both") else None

    masked, x = Masked(layer, src_mask=pairs, src_key_padding_mask=keys), torch.randn(2, 5, 16)
    with torch.no_grad():
        program = torch.export.export(Program(masked).eval(), (x,), strict=True)
        assert any("encoder_layer_fwd" in str(node.target) for node in program.graph.nodes)
    agrees(masked, x, rtol=1e-4, strict=True)


def test_an_encoder_with_padding():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True).eval()
    padding = torch.tensor([[False] * 5, [False] * 5])
    agrees(Masked(encoder, src_key_padding_mask=padding), torch.randn(2, 5, 16), rtol=1e-4)


ENDS = torch.tensor([2, 2, 7, 9], dtype=torch.int32)


def bfloat16(*shape):
    return torch.randn(*shape).bfloat16()


GROUPED = {
    "rows": (lambda: (bfloat16(9, 16), bfloat16(4, 16, 8)), ENDS),
    "columns": (lambda: (bfloat16(4, 8, 16), bfloat16(16, 16)), torch.tensor([4, 4, 8, 16], dtype=torch.int32)),
    "terms": (lambda: (bfloat16(8, 16), bfloat16(16, 8)), torch.tensor([4, 4, 8, 16], dtype=torch.int32)),
}


@pytest.mark.parametrize("name", GROUPED)
def test_products_of_groups(name):
    torch.manual_seed(0)
    make, ends = GROUPED[name]
    agrees(lambda a, b, ends: torch._grouped_mm(a, b, offs=ends), *make(), ends, rtol=3e-2)


def test_rows_after_the_last_group_are_nothing():
    a, b = torch.randn(12, 5), torch.randn(4, 5, 3)
    found = torch_experts.grouped_mm(a, b, ENDS)
    wanted = torch.cat([a[:2] @ b[0], a[2:7] @ b[2], a[7:9] @ b[3], torch.zeros(3, 3)])
    torch.testing.assert_close(found, wanted)


def test_a_program_without_such_operators_is_left_alone():
    program = torch.export.export(Program(torch.relu), (X,))
    assert torch_operators.with_simple_operators(program) is program


class Experts(nn.Module):
    """A mixture of experts as transformers writes them: sorted by expert, histc, a product for each group."""

    def __init__(self):
        super().__init__()
        self.router, self.up, self.down = (
            nn.Parameter(torch.randn(*shape) / 4) for shape in ((8, 16), (8, 16, 32), (8, 32, 16))
        )

    def forward(self, x):
        weights, experts = (x @ self.router.T).softmax(-1).topk(2)
        experts, order = torch.sort(experts.reshape(-1))
        ends = torch.histc(experts.float(), bins=8, min=0, max=7).cumsum(0, dtype=torch.int32)
        rows = x[order // 2].bfloat16()
        found = torch._grouped_mm(rows, self.up.bfloat16(), offs=ends)
        found = torch._grouped_mm(torch.relu(found), self.down.bfloat16(), offs=ends).float()
        found = found * weights.reshape(-1)[order].unsqueeze(-1)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return found[back].view(len(x), 2, -1).sum(1)


def test_a_mixture_of_experts():
    torch.manual_seed(0)
    agrees(Experts().eval().requires_grad_(False), torch.randn(5, 16), rtol=3e-2)


def test_a_mixture_of_experts_through_the_backend():
    torch.manual_seed(0)
    experts, x = Experts().eval().requires_grad_(False), torch.randn(5, 16)
    torch_backend.reset_counts()
    found = torch.compile(experts, backend="smartmem")(x)
    torch.testing.assert_close(found, experts(x), rtol=3e-2, atol=3e-2)
    assert torch_backend.counts().calls == 1 and torch_backend.counts().eager == 0
