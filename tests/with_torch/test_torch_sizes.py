# SPDX-License-Identifier: Apache-2.0
"""Sizes that a program of torch leaves open, and that others follow from: 2*n, 8*h."""

import pytest
import torch
from torch.export import Dim

from smartmem_tvm import UserError, compile, from_torch

N, H = Dim("n", min=2, max=40), Dim("h", min=1, max=40)


class Program(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, y):
        return self.function(x, y)


def pairs(x, y):
    return x.reshape(-1, 2).sum(1) + y


def pairs_by_tvm(x, y):
    return torch.nn.functional.mse_loss(x.reshape(-1, 2).sum(1), y) + y  # torch's exporter does not know it


def patches(x, y):
    return torch.nn.functional.avg_pool2d(x, 8) + y


PAIRS = {"x": {0: 2 * N}, "y": {0: N}}
PATCHES = {"x": {2: 8 * H}, "y": None}


def exported(function):
    if function is patches:
        given, dims = (torch.rand(1, 3, 16, 24), torch.rand(1)), PATCHES
    else:
        given, dims = (torch.rand(8), torch.rand(4)), PAIRS
    return torch.export.export(Program(function), given, dynamic_shapes=dims)


@pytest.mark.parametrize("function", [pairs, pairs_by_tvm])
@pytest.mark.parametrize("shapes", [{"x": (12,)}, {"y": (6,)}, {"x": (12,), "y": (6,)}])
def test_one_size_gives_the_others(function, shapes):
    given = torch.rand(12), torch.rand(6)
    (found,) = compile(from_torch(exported(function), shapes)).run(*(each.numpy() for each in given))
    torch.testing.assert_close(torch.from_numpy(found), function(*given))


@pytest.mark.parametrize("function", [pairs, pairs_by_tvm])
def test_several_sizes(function):
    compiled = compile(from_torch(exported(function), [{"x": (12,)}, {"y": (11,)}]))
    for size in (6, 11):
        given = torch.rand(2 * size), torch.rand(size)
        (found,) = compiled.run(*(each.numpy() for each in given))
        torch.testing.assert_close(torch.from_numpy(found), function(*given))


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm = torch.nn.Embedding(11, 8), torch.nn.LayerNorm(8)
        self.heads = torch.nn.Linear(8, 24)

    def forward(self, ids, mask):
        x = self.table(ids)
        q, k, v = self.heads(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])
        return self.norm(x + mixed.transpose(1, 2).flatten(2)).mean(1)


def test_bounds_of_the_program_stay_open():
    model, batch, length = Encoder().eval(), Dim("batch", min=1, max=3), Dim("length", min=2, max=9)
    given = torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2, 5)
    dims = {0: batch, 1: length}
    program = torch.export.export(model, given, dynamic_shapes={"ids": dims, "mask": dims})
    compiled = compile(from_torch(program))
    assert compiled.open[0]["length"] and compiled.open[0]["around"]["most"] == 3
    for shape in ((1, 2), (3, 9), (2, 7)):
        given = torch.randint(0, 11, shape), torch.where(torch.rand(shape) < 0.3, -1e4, 0.0)
        with torch.no_grad():
            (found,) = compiled.run(*(each.numpy() for each in given))
            torch.testing.assert_close(torch.from_numpy(found), model(*given), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shapes", [None, {"y": ("3..7",)}])
def test_a_multiple_of_an_open_size(shapes):
    compiled = compile(from_torch(exported(pairs), shapes))
    for size in (3, 7, 5):
        given = torch.rand(2 * size), torch.rand(size)
        (found,) = compiled.run(*(each.numpy() for each in given))
        torch.testing.assert_close(torch.from_numpy(found), pairs(*given))


def test_a_multiple_alone():
    given = torch.rand(1, 3, 32, 24), torch.rand(1)
    (found,) = compile(from_torch(exported(patches), {"x": (1, 3, 32, 24)})).run(*(each.numpy() for each in given))
    torch.testing.assert_close(torch.from_numpy(found), patches(*given))


REFUSED = {
    "no multiple": (patches, {"x": (1, 3, 33, 24)}, r"dimension 2 of 'x' is 33, and must be 8\*s\d+"),
    "too large": (patches, {"x": (1, 3, 800, 24)}, "exported for 8 to 320"),
    "not twice": (pairs, {"x": (12,), "y": (5,)}, r"is 12, and must be 2\*s\d+"),
    "not twice, by TVM": (pairs_by_tvm, {"x": (12,), "y": (5,)}, r"is 12, and must be 2\*s\d+"),
    "a wider range": (pairs, {"y": ("2..41",)}, "and the program was exported for"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_sizes_that_do_not_go_together_are_refused(case):
    function, shapes, message = REFUSED[case]
    with pytest.raises(UserError, match=message):
        from_torch(exported(function), shapes)


def test_what_torchs_exporter_does_not_know_has_no_open_size():
    given = torch.rand(8), torch.rand(8)
    program = torch.export.export(Program(lambda x, y: torch.special.i1(x) + y), given, dynamic_shapes=({0: N}, {0: N}))
    with pytest.raises(UserError, match="leaves a size open, which needs torch's exporter"):
        from_torch(program, {"x": ("2..9",)})


def test_sizes_that_depend_on_numbers_are_no_matter_of_dynamic_shapes():
    program = torch.export.export(Program(lambda x, y: torch.special.i1(x[x > 0])), (torch.rand(4), torch.rand(1)))
    with pytest.raises(UserError, match=r"depend on the numbers that it computes \(u0\)"):
        from_torch(program)
