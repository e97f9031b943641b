# SPDX-License-Identifier: Apache-2.0
"""The matrices of Winograd's transforms, what they compute and how exactly."""

import numpy as np
import pytest

from smartmem_tvm.schedule.cpu.winograd.transforms import RESULTS, by_columns, by_rows, error_of, transforms


@pytest.mark.parametrize("m", RESULTS)
def test_a_tile_is_a_convolution(m):
    draw, found = np.random.default_rng(m), transforms(m)
    tile, window = draw.standard_normal((m + 2, m + 2)), draw.standard_normal((3, 3))
    sums = found.of_windows(window[None, None]).reshape(m + 2, m + 2) * (found.data @ tile @ found.data.T)
    seen = np.lib.stride_tricks.sliding_window_view(tile, (3, 3))
    np.testing.assert_allclose(found.result @ sums @ found.result.T, (seen * window).sum((2, 3)), atol=1e-13)


@pytest.mark.parametrize("m", RESULTS)
def test_shared_sums_are_the_same_product(m):
    found, values = transforms(m), list(np.random.default_rng(m).standard_normal((m + 2, 5)))
    np.testing.assert_allclose(by_rows(found.data, values), found.data @ values, atol=1e-13)
    np.testing.assert_allclose(by_columns(found.result, values), found.result @ values, atol=1e-13)


class Counted:
    """A number that counts what is done with it."""

    done = 0

    def _operation(self, _):
        Counted.done += 1
        return Counted()

    __add__ = __sub__ = __mul__ = _operation


@pytest.mark.parametrize("m, into, back", [(2, 4, 4), (4, 20, 16)])
def test_opposite_points_share_their_sums(m, into, back):
    for share, matrix, most in ((by_rows, transforms(m).data, into), (by_columns, transforms(m).result, back)):
        Counted.done = 0
        share(np.float64(np.float32(matrix)), [Counted() for _ in range(m + 2)])
        assert Counted.done == most


@pytest.mark.parametrize("m, most", [(2, 2e-6), (4, 1e-5)])
def test_errors_are_small_with_any_scale(m, most):
    windows = np.random.default_rng(0).standard_normal((32, 64, 3, 3))
    assert 0 < error_of(m, windows.astype("float32")) < most
    assert error_of(m, (windows * 1e-20).astype("float32")) < most
    uneven = windows * 10.0 ** np.random.default_rng(1).uniform(-6, 6, (32, 64, 1, 1))
    assert error_of(m, uneven.astype("float32")) < most
    assert error_of(m, np.zeros((4, 4, 3, 3), "float32")) == 0


def test_windows_that_cancel_are_less_exact():
    """Differences of large numbers: what is left is small beside what is rounded."""
    smooth = np.full((4, 8, 3, 3), 1.0) + 1e-4 * np.random.default_rng(0).standard_normal((4, 8, 3, 3))
    smooth[:, 1::2] = -smooth[:, ::2]
    assert error_of(4, smooth.astype("float32")) < 1e-5
