# SPDX-License-Identifier: Apache-2.0
"""Systems of other projects: how they are set up, what they say when they are missing, MNN's process of its own."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from smartmem_tvm.errors import UserError
from smartmem_tvm.peak_memory import peak_mb
from smartmem_tvm.tools.bench import systems
from smartmem_tvm.tools.bench.child import _Calls
from smartmem_tvm.tools.bench.names import BASELINES, ON_TARGETS, TORCH_MODES, is_defined
from smartmem_tvm.tools.bench.peers import mnn
from smartmem_tvm.tools.bench.peers.iree import Iree
from smartmem_tvm.tools.bench.peers.mnn import Mnn
from smartmem_tvm.tools.bench.peers.openvino import OpenVino
from smartmem_tvm.tools.bench.peers.torch import build_network
from smartmem_tvm.tools.bench.peers.torch_weights import _floats_in_order_of_use, _take
from smartmem_tvm.tools.bench.systems import prepare
from smartmem_tvm.tools.timm_networks import DEFINED_HERE, NAMES, definition


def request_for(path, **changes) -> dict:
    return {"system": "peer", "path": str(path), "shapes": {}, "threads": 3, "seed": 0, **changes}


def test_every_system_is_described_and_made():
    assert set(systems._MAKERS) == set(BASELINES) >= ON_TARGETS > set(TORCH_MODES)
    assert systems._MAKERS["openvino"] is OpenVino and systems._MAKERS["iree"] is Iree


@pytest.mark.parametrize(
    ("system", "module"), [("openvino", "openvino"), ("iree", "iree.compiler.tools"), ("torch-compile", "torch")]
)
def test_what_is_not_installed_is_named_with_its_extra(monkeypatch, model_path, system, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf'{system.split("-")[0]} is not installed .*"smartmem-tvm\[peers\]"'):
        prepare(request_for(model_path, system=system, kind=system))


def test_torch_says_which_models_it_can_run(model_path):
    with pytest.raises(UserError, match=r"no definition of attention\.onnx; it can run swin_t"):
        build_network(model_path)
    assert {"swin_t", "vit_s16", "convnext_t", "resnext50"} <= set(NAMES)


def test_torch_runs_networks_that_the_repository_defines(model_path):
    models = Path(__file__).resolve().parents[3] / "models"
    assert all(definition(models / f"{name}.onnx").is_file() for name in DEFINED_HERE)
    assert is_defined("torch-eager", models / "autoformer_s.onnx") and is_defined("tvm", model_path)
    assert not is_defined("torch-eager", models / "bert_base.onnx") and not is_defined("torch-eager", model_path)


def test_openvino_computes_in_float32_on_as_many_threads(monkeypatch, model_path):
    asked = {}

    class Core:
        def read_model(self, content):
            return onnx.load_from_string(content)

        def compile_model(self, model, device, settings):
            asked.update(settings, device=device, weights=[t.name for t in model.graph.initializer if t.raw_data])
            return SimpleNamespace(outputs=["y"], create_infer_request=lambda: None)

    fake = ModuleType("openvino")
    fake.Core, fake.AsyncInferQueue, fake.__version__ = Core, Queue, "1.2.3-45"
    monkeypatch.setitem(sys.modules, "openvino", fake)
    assert OpenVino(request_for(model_path)).facts["version"] == "openvino 1.2.3"
    assert (asked["INFERENCE_PRECISION_HINT"], asked["INFERENCE_NUM_THREADS"], asked["device"]) == ("f32", 3, "CPU")
    assert (asked["PERFORMANCE_HINT"], asked["NUM_STREAMS"]) == ("LATENCY", 1)
    assert "weight" in asked["weights"]
    served = OpenVino(request_for(model_path, streams=2)).serve(5)
    assert (asked["PERFORMANCE_HINT"], asked["NUM_STREAMS"], Queue.size) == ("THROUGHPUT", 2, 2)
    assert served[0] > 0 and served[1] == [0.25] * 5, "OpenVINO counts in milliseconds"


class Queue:
    """Stands in for OpenVINO's queue of requests."""

    def __init__(self, _compiled, size):
        type(self).size = size

    def set_callback(self, callback):
        self.callback = callback

    def start_async(self, userdata):
        self.callback(SimpleNamespace(latency=250.0), userdata)

    def wait_all(self):
        pass


# Stands in for MNN: what its worker calls, on a "model" that adds the number of threads to its input.
FAKE_TOOLS = """
import pathlib
def mnnconvert(arguments):
    print("chatter on stdout")
    named = dict(zip(arguments, arguments[1:]))
    pathlib.Path(named["--MNNModel"]).write_bytes(pathlib.Path(named["--modelFile"]).read_bytes())
"""
FAKE_MNN = """
import numpy as np
Halide_Type_Float, Halide_Type_Int, Tensor_DimensionType_Caffe = "float", "int", "caffe"
class Tensor:
    def __init__(self, shape, kind, data, order):
        self.data = data
    def copyFrom(self, host):
        self.data = host.data
    def copyToHostTensor(self, host):
        host.data = self.data
    def getShape(self):
        return self.data.shape
    def getData(self):
        return self.data
class Interpreter:
    def __init__(self, path):
        self.x, self.y = Tensor(0, 0, None, 0), Tensor(0, 0, None, 0)
    def createSession(self, settings):
        assert (settings["backend"], settings["precision"]) == ("CPU", "high")
        return settings
    def getSessionInput(self, session, name):
        assert name == "x"
        return self.x
    def getSessionOutputAll(self, session):
        return {"z": self.x, "y": self.y}
    def runSession(self, session):
        if self.x.data[0, 0, 0] > 5:
            raise ValueError("too large")
        self.y.data = self.x.data + session["numThread"]
def version():
    return "9.9"
"""


@pytest.fixture
def fake_mnn(monkeypatch, tmp_path):
    (tmp_path / "_tools.py").write_text(FAKE_TOOLS)
    (tmp_path / "MNN.py").write_text(FAKE_MNN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path) + os.pathsep + os.environ.get("PYTHONPATH", ""))
    monkeypatch.setattr(mnn, "make_environment", lambda: sys.executable)


def test_mnn_runs_in_a_process_of_its_own(fake_mnn, model_path):
    system = Mnn(request_for(model_path))
    assert system.facts["version"] == "MNN 9.9"
    x = np.arange(64, dtype="float32").reshape(2, 4, 8) / 64
    (got,) = system.feed({"x": x})
    np.testing.assert_array_equal(got, x + 3)
    calls = _Calls(system, peak_mb())
    assert calls.run() < 5
    assert 1 < calls.finish()["peak_mb"]["run"] < 200, "the worker's, without TVM in it"
    with pytest.raises(UserError, match=r"mnn failed with ValueError \(too large\)"):
        system.feed({"x": x + 6})
    system.process.wait(10)


def test_an_end_of_mnn_is_told(fake_mnn, tmp_path, model_path):
    (tmp_path / "_tools.py").write_text("import os\ndef mnnconvert(arguments):\n    os._exit(7)\n")
    with pytest.raises(UserError, match="mnn ended with exit code 7"):
        Mnn(request_for(model_path))


def test_the_environment_of_mnn_is_made_once(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    commands = []

    def run(command, **_):
        commands.append(command)
        failed = fail and "pip" in command
        mnn.environment().mkdir(exist_ok=True)
        return subprocess.CompletedProcess(command, int(failed), "", "log\nNo matching distribution." if failed else "")

    monkeypatch.setattr(mnn.subprocess, "run", run)
    fail = True
    with pytest.raises(UserError, match=r"environment of its own in .*No matching distribution\)\.$"):
        mnn.make_environment()
    fail = False
    python = mnn.make_environment()
    assert python.is_relative_to(tmp_path) and f"MNN=={mnn.VERSION}" in commands[-1]
    made = len(commands)
    assert mnn.make_environment() == python and len(commands) == made == 4


def test_constants_come_back_in_the_shape_of_their_parameter():
    shapes = {"a": (3, 5), "b": (1, 7, 1, 1), "c": (1, 2, 4, 4), "d": (16, 2), "e": (3, 5)}
    arrays = {name: np.arange(np.prod(shape), dtype="float32").reshape(shape) for name, shape in shapes.items()}
    nodes = [helper.make_node("Max", list("aebcd"), ["y"])]
    constants = [numpy_helper.from_array(arrays[name], name) for name in shapes]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    found = _floats_in_order_of_use(helper.make_model(helper.make_graph(nodes, "g", [], [y], constants)))
    assert list(found) == list("aebcd"), "as the graph uses them"
    np.testing.assert_array_equal(_take(found, (5, 3), "linear.weight"), arrays["a"].T)
    np.testing.assert_array_equal(_take(found, (7,), "gamma"), arrays["b"].ravel())
    table = _take(found, (16, 2), "bias_table")
    assert table[6, 1] == arrays["c"][0, 1, 1, 2], "row 6 of the table is position 1, 2"
    np.testing.assert_array_equal(_take(found, (16, 2), "bias_table"), arrays["d"])
    assert list(found) == ["e"]
    with pytest.raises(UserError, match=r"nothing of shape \[9\] for torch's 'lost'"):
        _take(found, (9,), "lost")
