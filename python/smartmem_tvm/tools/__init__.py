# SPDX-License-Identifier: Apache-2.0
"""What stands around the compiler: benchmarks, the page of ``smartmem report``, ``smartmem reduce``, networks of torch.

Only the command line imports it. Importing the compiler loads nothing of it (``tests/test_architecture.py``).
"""
