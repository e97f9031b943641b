# SPDX-License-Identifier: Apache-2.0
"""Work-arounds for faults and refusals of this TVM version, mostly passes, one per file.

``docs/tvm-issues.md`` has the fault and its smallest program for each; ``tests/test_tvm_issues.py`` fails when a newer
TVM has mended one.
"""

from .._lazy import lazy

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "BindChoices": "bind_choices",
        "CheckImages": "check_images",
        "ClampIndices": "clamp_indices",
        "DropEmpty": "drop_empty",
        "FitStorages": "fit_storages",
        "GuardDivisions": "guard_divisions",
        "KeepFloats": "keep_floats",
        "KeepNan": "keep_nan",
        "MendExtremes": "mend_extremes",
        "MendVectors": "mend_vectors",
        "OwnStorages": "own_storages",
        "StageTexels": "stage_texels",
        "StoreBound": "store_bound",
        "WidenBfloat16": "widen_bfloat16",
        "WrapCasts": "wrap_casts",
        "WrapIntegers": "wrap_integers",
        "fold_constant": "keep_codes",
    },
)
