# SPDX-License-Identifier: Apache-2.0
"""Measuring models: several systems on one model, each in a process of its own, their runs taken in turns.

Nothing here knows TVM or ONNX Runtime. A *system* is whatever a ``prepare`` function makes of a request in the child
process (see `child.System`); `cli.bench_systems` has those of ``smartmem bench``.
"""
