# SPDX-License-Identifier: Apache-2.0
"""What every test needs: `helpers` importable wherever pytest is started, and property tests that repeat."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

# The same examples in every run, and no time limit for one of them: a busy machine must not fail the suite.
settings.register_profile("suite", deadline=None, derandomize=True, database=None)
settings.load_profile("suite")
