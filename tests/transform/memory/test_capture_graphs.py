# SPDX-License-Identifier: Apache-2.0
"""Which kernels become one CUDA graph."""

import pytest
import tvm
from tvm import relax, tirx

from helpers import constant, module, op
from smartmem_tvm.pipeline import Options, graph_phases, lower_phases, run_phases
from smartmem_tvm.transform import CaptureGraphs
from smartmem_tvm.transform.memory.capture_graphs import kernels_per_graph

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2})
CUDA = tvm.target.Target("cuda")
_PHASES = graph_phases(None)
# One kernel per operator.
UNFUSED = _PHASES[: 1 + next(number for number, phase in enumerate(_PHASES) if phase.name == "legalize")]


def planned(build, *shapes) -> tvm.IRModule:
    """Kernels with their memory planned, ready for the pass."""
    with TARGET:
        mod = run_phases(module(build, *shapes), UNFUSED, Options())
        return run_phases(mod, lower_phases(CUDA)[1:2], Options())


def chain(length: int):
    def build(x):
        for _ in range(length):
            x = op.tanh(x)
        return x

    return build


def test_all_but_what_touches_inputs_and_outputs_is_one_graph():
    mod = CaptureGraphs()(planned(chain(5), (4, 6)))
    assert kernels_per_graph(mod) == [3]
    assert "cuda_graph_alloc" in {gvar.name_hint for gvar in mod.functions}


def test_an_input_that_is_read_later_ends_a_graph():
    def build(x):
        return op.tanh(op.tanh(op.tanh(op.add(op.tanh(op.tanh(op.tanh(x))), x))))

    assert kernels_per_graph(CaptureGraphs()(planned(build, (4, 6)))) == [2, 2]


def test_nothing_to_capture():
    mod = planned(chain(1), (4, 6))
    assert kernels_per_graph(CaptureGraphs()(mod)) == []


def test_weights_may_be_parameters():
    """As parameters beyond the inputs, and as constants."""
    mod = planned(lambda x: op.tanh(op.matmul(op.tanh(x), constant(6, 6))), (4, 6))
    assert kernels_per_graph(CaptureGraphs()(mod)) == [1]
    two = planned(lambda x, w: op.tanh(op.matmul(op.tanh(x), w)), (4, 6), (6, 6))
    assert kernels_per_graph(CaptureGraphs()(two)) == []
    two["main"] = two["main"].with_attr("num_input", 1)
    assert kernels_per_graph(CaptureGraphs()(two)) == [1]


def test_symbolic_shapes_are_not_captured():
    n = tirx.Var("n", "int64")
    assert kernels_per_graph(CaptureGraphs()(planned(chain(5), (n, 6)))) == []


def test_memory_of_a_kernels_own_forbids_it():
    with TARGET:
        mod = run_phases(module(lambda x: op.tanh(op.nn.softmax(op.tanh(x))), (4, 6)), UNFUSED, Options())
        mod = run_phases(mod, lower_phases(CUDA)[1:2], Options())
    assert "softmax" in mod.script()
    assert kernels_per_graph(CaptureGraphs()(mod)) == []


def test_a_library_forbids_it():
    mod = planned(chain(5), (4, 6))
    main = mod["main"]
    builder = relax.BlockBuilder(mod)
    with builder.function(
        "other", [x := relax.Var("x", relax.TensorType((4, 6), "float32"))], attrs={"relax.force_pure": True}
    ):
        builder.emit_func_output(builder.emit(relax.call_pure_packed("library.f", x, ty_args=x.ty)))
    mod = relax.transform.RemovePurityChecking()(builder.get())
    mod["main"] = main
    assert kernels_per_graph(CaptureGraphs()(mod)) == []


def test_the_permission_ends_with_the_pass():
    CaptureGraphs()(planned(chain(5), (4, 6)))
    assert "relax.backend.use_cuda_graph" not in tvm.transform.PassContext.current().config


@pytest.mark.parametrize(("option", "phases"), [(True, 4), (False, 3)])
def test_it_can_be_switched_off(option, phases):
    names: list[str] = []
    with TARGET:
        graph = run_phases(module(chain(2), (4, 6)), graph_phases(None), Options())
        run_phases(graph, lower_phases(CUDA), Options(cuda_graph=option), lambda name, _: names.append(name))
    assert len(names) == phases and ("cuda_graph" in names) == option
