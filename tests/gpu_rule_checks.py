# SPDX-License-Identifier: Apache-2.0
"""Run a tensor expression through one rule for GPUs on an OpenCL device and compare it with numpy."""

from collections.abc import Callable

import numpy as np
import tvm
from tvm import te

from smartmem_tvm.schedule.core.rule import Rule
from smartmem_tvm.schedule.gpu.launch import GpuParams
from smartmem_tvm.target import device_of, parse_target

TARGET = parse_target("opencl")


def scheduled(rule: Rule, inputs, output):
    """Return the function that `rule` makes, or None."""
    func = te.create_prim_func([*inputs, output]).with_attr("global_symbol", "main")
    found = rule.apply(func, TARGET)
    return None if found is None else found.mod["main"].with_attr("tirx.is_scheduled", True)


def check(
    rule: Callable[[GpuParams | None], Rule], inputs, output, reference, params: GpuParams | None = None, most: int = 9
) -> str:
    """Schedule, run and compare; return the OpenCL source. Integers are drawn below `most`.

    `output` may be several tensors; `reference` then returns as many arrays.
    """
    outputs = output if isinstance(output, list) else [output]
    func = scheduled(rule(params), [*inputs, *outputs[:-1]], outputs[-1])
    assert func is not None, f"{rule.__name__} does not take this kernel"
    built = tvm.compile(tvm.IRModule({"main": func}), TARGET)
    device, random = device_of(TARGET), np.random.default_rng(0)

    def draw(tensor):
        shape = [int(d) for d in tensor.shape]
        values = random.integers(0, most, shape) if "int" in str(tensor.dtype) else random.standard_normal(shape)
        return values.astype(str(tensor.dtype))

    arrays = [draw(tensor) for tensor in inputs]
    blank = [np.full([int(d) for d in each.shape], 7, str(each.dtype)) for each in outputs]  # unwritten elements stay 7
    results = [tvm.runtime.tensor(array, device) for array in blank]
    built["main"](*(tvm.runtime.tensor(a, device) for a in arrays), *results)
    wanted = reference(*arrays)
    for result, want in zip(results, wanted if isinstance(output, list) else [wanted], strict=True):
        want = np.asarray(want).reshape(result.shape)
        np.testing.assert_allclose(result.numpy(), want, rtol=2e-5, atol=2e-5 * max(1, np.abs(want).max()))
    (kernels,) = built.mod.imports
    return kernels.inspect_source()


def kernels(source: str) -> int:
    """Count the kernels in a source."""
    return source.count("// Function: ")


def threads(source: str) -> int:
    """Return the number of threads of the first kernel."""
    sizes = source.split("// Work group ")[1].split()
    group = sizes[:3]
    grid = sizes[sizes.index("grid") + 1 :][:3]
    return int(np.prod([int(n.strip(",")) for n in (*group, *grid)]))
