# SPDX-License-Identifier: Apache-2.0
"""Random ONNX graphs, compiled and compared with ONNX Runtime: ``python -m fuzz --help`` with ``tests`` on the path.

The modules, each of which knows those above it only::

    case        a model with its inputs and options, and the file that holds all of it
    drawing     the graph that is being drawn: tensors with their values, and nodes that ONNX Runtime has taken
    operators   how each operator is drawn, in one table
    single      how single operators on windows are drawn, every attribute of them free
    chains      how recurrences are drawn whose steps are written out
    draw        a seed -> a case
    reference   what ONNX Runtime computes, and how far rounding may move it
    nested      branches and loops written out, and each way of the branches
    check       a case -> a verdict
    pool        many cases, in processes that may crash and hang
    shrink      a case that fails -> a smaller one that fails in the same way
    report      verdicts -> tables
"""
