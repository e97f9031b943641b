# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np

from smartmem_tvm.json_data import plain


def test_plain_data():
    data = {"a": np.float32(0.5), "b": [np.int64(3), math.nan], 1: (math.inf, None, True, "x")}
    assert plain(data) == {"a": 0.5, "b": [3, None], "1": [None, None, True, "x"]}
