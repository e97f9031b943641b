# SPDX-License-Identifier: Apache-2.0
"""Tools around the compiler: benchmarks, the page of ``smartmem report``, ``smartmem reduce``, networks of torch.

Only the command line imports them. Importing the compiler loads none of them (``tests/test_architecture.py``).
"""
