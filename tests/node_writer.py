# SPDX-License-Identifier: Apache-2.0
"""Nodes and constants of an ONNX graph, named as they are written."""

import numpy as np
from onnx import helper, numpy_helper


class NodeWriter:
    """What is written so far.

    Attributes
    ----------
    nodes, held : list
        Nodes, and tensors of constants.
    """

    def __init__(self):
        self.nodes, self.held = [], []

    def node(self, op, *inputs, name="", **attrs):
        """Write a node; return its result."""
        self.nodes.append(helper.make_node(op, list(inputs), [name or f"t{len(self.nodes)}"], **attrs))
        return self.nodes[-1].output[0]

    def constant(self, value, kind="int64"):
        """Write a constant; return its name."""
        self.held.append(numpy_helper.from_array(np.asarray(value, kind), f"c{len(self.held)}"))
        return self.held[-1].name
