# SPDX-License-Identifier: Apache-2.0
"""What one call of a command left behind."""

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """What one call of a command left behind."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> dict:
        """Of a call with ``--json``: the one JSON object on stdout (anything more or less fails)."""
        return json.loads(self.out)
