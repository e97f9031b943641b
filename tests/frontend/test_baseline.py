# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

import onnx
from onnx import helper


def test_what_tvm_refuses_is_refused_without_a_line(build, tmp_path):
    """TVM's importer knows no such operator; its C++ would warn of what the importer leaves behind."""
    tensor = ((2, 3), "float32")
    nodes = [helper.make_node("Relu", ["x"], ["t"]), helper.make_node("Hardmax", ["t"], ["y"])]
    nodes.append(helper.make_node("Strange", ["t"], ["z"], domain="com.example"))
    onnx.save(build(nodes, {"x": tensor}, {"y": tensor}, domains=["com.example"]), tmp_path / "m.onnx")
    code = (
        "from smartmem_tvm.frontend.baseline import import_as_tvm\n"
        "from smartmem_tvm.frontend import read_model\n"
        f"assert import_as_tvm(read_model({str(tmp_path / 'm.onnx')!r})) is None\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
