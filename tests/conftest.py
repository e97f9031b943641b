# SPDX-License-Identifier: Apache-2.0
"""Make `helpers` importable from every test file, wherever pytest is started."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
