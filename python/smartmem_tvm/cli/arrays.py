# SPDX-License-Identifier: Apache-2.0
"""Write arrays by name to files."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def save_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Save arrays like ``numpy.savez``, under any name: an output named "file" would clash with its argument."""
    import numpy as np

    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
