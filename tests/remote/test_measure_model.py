# SPDX-License-Identifier: Apache-2.0
"""What is said of measurements that do not add up."""

import pytest

from smartmem_tvm.remote.measure_model import exceeds, percentiles


@pytest.mark.parametrize(
    ("kernels_ms", "seconds", "said"),
    [
        (1.5, [1e-3] * 9, True),
        (1.09, [1e-3] * 9, False),  # a tenth is nothing
        (0.5, [1e-3] * 9, False),
        (1.5, [1e-3] * 8 + [2e-3] * 2, False),  # an inference that takes as long is not rare
    ],
)
def test_kernels_take_longer_than_the_network_or_it_varies_so_much(kernels_ms, seconds, said):
    assert exceeds(kernels_ms, percentiles(seconds)) is said
