# SPDX-License-Identifier: Apache-2.0
"""Networks defined in scripts/models/ have the structure that their papers describe, as the graphs in models/ show."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

MODELS = Path(__file__).resolve().parent.parent / "models"


class Graph:
    """The nodes of one light file, with the shapes and values of its stored tensors."""

    def __init__(self, name: str) -> None:
        graph = onnx.load(MODELS / f"{name}.onnx").graph
        self.nodes = graph.node
        self.shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        self.values = {t.name: numpy_helper.to_array(t) for t in graph.initializer if t.raw_data}
        self.values |= {n.output[0]: numpy_helper.to_array(n.attribute[0].t) for n in self.of("Constant")}
        self.producer = {name: node for node in graph.node for name in node.output}

    def of(self, kind: str) -> list[onnx.NodeProto]:
        return [node for node in self.nodes if node.op_type == kind]

    def origin(self, name: str) -> onnx.NodeProto:
        """Return the first node up the chain of first inputs that does not only change the shape."""
        node = self.producer[name]
        return self.origin(node.input[0]) if node.op_type in ("Unsqueeze", "Reshape", "Cast") else node


def test_autoformer_looks_up_clipped_distances_of_rows_and_columns():
    """Chen et al. 2021, section 3.1: 14 x 14 patches; distance 0 of both tables is that to the class token."""
    graph = Graph("autoformer_s")
    patch = np.arange(14 * 14)
    row, column = patch // 14, patch % 14
    expected = [np.pad(np.clip(at[None] - at[:, None], -14, 14) + 15, [(1, 0), (1, 0)]) for at in (row, column)]
    tables = [value.reshape(197, 197) for value in graph.values.values() if value.size == 197 * 197]
    assert len(tables) == 2
    assert all(any(np.array_equal(table, each) for table in tables) for each in expected)
    # Rows and columns, on keys and values, in each of 13 blocks; only from stored tables, so that they fold away.
    looked_up = Counter(graph.shapes.get(node.input[0]) for node in graph.of("GatherND"))
    assert looked_up == {(30, 64): 2 * 2 * 13}


def test_biformer_gathers_the_regions_with_the_best_scores():
    """Zhu et al. 2023, table 1: the best 1, 4 and 16 of 49 regions in 4, 4 and 18 blocks, then full attention."""
    graph = Graph("biformer_s")
    picks = [int(graph.values[node.input[1]].item()) for node in graph.of("TopK")]
    assert picks == [1] * 4 + [4] * 4 + [16] * 18
    gathers = [graph.origin(node.input[1]) for node in graph.of("GatherND")]
    assert [node.op_type for node in gathers] == ["TopK"] * 26, "a gather per routed block, of what was picked"
    assert len(graph.of("Softmax")) == 30


def test_smt_mixes_four_sizes_of_convolution_in_sixteen_blocks_and_attends_in_eleven():
    """Lin et al. 2023, figure 3: three, four and every other of eighteen blocks modulate."""
    graph = Graph("smt_s")
    depthwise = Counter()
    for node in graph.of("Conv"):
        filters, channels, height, width = graph.shapes[node.input[1]]
        groups = next((each.i for each in node.attribute if each.name == "group"), 1)
        if groups == filters and channels == 1:
            depthwise[height, width] += 1
    blocks, attending = 27, 11
    # One of size 3 also lies in each MLP and beside each attention.
    assert depthwise == {(3, 3): 16 + blocks + attending, (5, 5): 16, (7, 7): 16, (9, 9): 16}
    assert len(graph.of("Softmax")) == attending
