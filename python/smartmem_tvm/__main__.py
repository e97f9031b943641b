# SPDX-License-Identifier: Apache-2.0
"""``python -m smartmem_tvm``: the same as the ``smartmem`` command."""

import sys

from smartmem_tvm.cli import main

if __name__ == "__main__":
    sys.exit(main())
