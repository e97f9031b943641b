# SPDX-License-Identifier: Apache-2.0
"""How much of everything: the sizes of the promises, or a share of them for a quick look."""

import os

SHARE = float(os.environ.get("SMARTMEM_LOAD_SHARE", "1"))
SECONDS = 600 * SHARE
INFERENCES = int(10_000 * SHARE)
CYCLES = int(1_000 * SHARE)
KILLS = int(200 * SHARE)
PROCESSES = 8
