# SPDX-License-Identifier: Apache-2.0
"""A compiled folder with an open dimension on a device: a call runs the tiles, or the capacity, of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..deploy.arguments import parameter_of_file
from ..deploy.export import read_manifest
from ..deploy.tiles import Tiles, length_of
from .deployed import Deployed
from .session import Session


class DeployedTiles:
    """A compiled model with an open dimension on a device, with what `deployed.Deployed` has for one function.

    Parameters
    ----------
    session : Session
    folder : Path
        A folder of `deploy.export.save`, of a model with an open dimension.

    Attributes
    ----------
    manifest : dict

    Raises
    ------
    UserError
        As `deployed.Deployed`.
    """

    def __init__(self, session: Session, folder: Path):
        self.manifest = read_manifest(folder, elsewhere=True, several=True)
        groups, functions = self.manifest["open"], {}
        for each in self.manifest["sizes"]:
            inputs = [parameter_of_file(one["name"], one["shape"], one["dtype"]) for one in each["inputs"]]
            functions[each["function"]] = [*inputs, *length_of(groups, each["function"])]
        self._any, self._tiles = Deployed(session, folder, next(iter(functions))), Tiles(groups, functions)
        self._calls: list[tuple[Deployed, list]] = []  # of the last run: each function, and what it was given

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs of one inference."""
        calls: list[tuple[Deployed, list]] = []

        def run(*given: np.ndarray, function: str) -> list[np.ndarray]:
            calls.append((self._any.at(function), list(given)))
            return calls[-1][0].run(given)

        outputs = self._tiles.run(run, arrays, {})
        self._calls = calls
        return outputs

    @property
    def launched(self) -> list[dict]:
        """The kernels that all tiles of the last run launched together."""
        found: dict[str, dict] = {}
        for kernel in (kernel for tile, _ in self._calls for kernel in tile.launched):
            before = found.get(kernel["kernel"], {"launches": 0})["launches"]
            found[kernel["kernel"]] = {**kernel, "launches": before + kernel["launches"]}
        return list(found.values())

    def seconds(self, arrays: Sequence[np.ndarray], warm_up: int, runs: int) -> list[float]:
        """Return the seconds of some inferences: of several tiles, which are timed one by one, their sums."""
        return [sum(each) for each in zip(*(tile.seconds(given, warm_up, runs) for tile, given in self._of(arrays)))]

    def host_seconds(self, arrays: Sequence[np.ndarray], runs: int) -> float:
        """Return the median seconds until the calls of an inference return there."""
        return sum(tile.host_seconds(given, runs) for tile, given in self._of(arrays))

    def kernel_seconds(self) -> dict[str, float]:
        """Return kernel -> median seconds of a single launch on random data, of the tiles of the last run."""
        return {name: value for tile, _ in self._calls for name, value in tile.kernel_seconds().items()}

    def _of(self, arrays: Sequence[np.ndarray]) -> list[tuple[Deployed, list]]:
        self.run(arrays)
        return self._calls
