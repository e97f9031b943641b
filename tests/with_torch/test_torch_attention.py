# SPDX-License-Identifier: Apache-2.0
"""Attention beside torch, also of other than four dimensions, which torch's exporter does not know."""

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as attention

import smartmem_tvm as sm

FIRST_ROW_MASKED = torch.ones(7, 7).tril().bool().logical_and(torch.arange(7)[:, None] > 0)
SOME_MASKED = torch.ones(7, 7).tril().bool()
CASES = {
    "plain": ({}, 3),
    "scale": ({"scale": 0.5}, 3),
    "added mask": ({"attn_mask": torch.linspace(-3, 3, 49).reshape(7, 7)}, 3),
    "causal": ({"is_causal": True}, None),
    "a row of which nothing is left": ({"attn_mask": FIRST_ROW_MASKED}, None),
}


class Attention(torch.nn.Module):
    def __init__(self, options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v):
        return attention(q, k, v, **self.options)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("batch", [(2,), (2, 3), (2, 3, 2)])
def test_attention(name, batch):
    options, kernels = CASES[name]
    if len(batch) == 2 and options.get("attn_mask") is FIRST_ROW_MASKED:
        options = {"attn_mask": SOME_MASKED}  # docs/frontend.md: torch's exporter does not make that row 0
    torch.manual_seed(0)
    given = tuple(torch.randn(*batch, 7, 16) for _ in range(3))
    mod = sm.from_torch(torch.export.export(Attention(options), given))
    (got,) = sm.compile(mod).run(*(each.numpy() for each in given))
    np.testing.assert_allclose(got, attention(*given, **options), rtol=1e-4, atol=1e-5)
    assert kernels is None or sm.graph_cost(sm.optimize(mod)).kernels == kernels
