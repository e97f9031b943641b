# SPDX-License-Identifier: Apache-2.0
"""The outcome of one call of a command."""

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """Exit code and output of one call of a command."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> dict:
        """Return the one JSON object on stdout of a call with ``--json`` (anything more or less fails)."""
        return json.loads(self.out)
