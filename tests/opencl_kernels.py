# SPDX-License-Identifier: Apache-2.0
"""Small OpenCL modules for children of `fake_driver.run_child`; their names tell the fake driver what to do."""

import numpy as np
from tvm import relax, tirx
from tvm.script import tirx as T

from opencl_child import load
from smartmem_tvm.tvm_mends.lowering import texture_tir_pipeline

WORK_GROUP = 64
TEXTURE = "global.texture"


def target():
    """Return an OpenCL target for kernels that a test writes itself."""
    return load().target.Target("opencl", host="llvm")


def elementwise(name: str, size: int, group: int = WORK_GROUP, addend: float = 1.0):
    """Return ``dst[i] = src[i] + addend``; the fake driver reads the addend from the kernel's name."""

    @T.prim_func(s_tir=True)
    def kernel(src: T.Buffer((size,), "float32"), dst: T.Buffer((size,), "float32")):
        for b in T.thread_binding(size // group, thread="blockIdx.x"):
            for i in T.thread_binding(group, thread="threadIdx.x"):
                with T.sblock("element"):
                    v = T.axis.spatial(size, b * group + i)
                    dst[v] = src[v] + T.float32(addend)

    return kernel.with_attr("global_symbol", name)


def compile_kernel(kernel):
    """The module with this one kernel."""
    name = str(kernel.attrs["global_symbol"])
    return load().compile(load().IRModule({name: kernel}), target=target())


def add_one(size: int = 1024, group: int = WORK_GROUP):
    """A callable that launches one kernel; the module is its attribute ``module``."""
    return compile_kernel(elementwise("add_one", size, group))


def numbers(size: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + size, dtype="float32")


def check_add_one(run, device, size: int = 1024) -> bool:
    """Whether a launch on the device gives the right results."""
    tensor = load().runtime.tensor
    source, result = tensor(numbers(size), device), tensor(np.zeros(size, "float32"), device)
    run(source, result)
    return bool(np.array_equal(result.numpy(), numbers(size, 1)))


def texture_round_trip(height: int, width: int):
    """`texture_round_trips` of one matrix."""
    return texture_round_trips((height, width))


def texture_round_trips(*shapes: tuple[int, int]):
    """A Relax function that copies each of its matrices into a texture and out of it; a callable on a device.

    The virtual machine's memory plan makes the textures views of storages, which they share one after the other.
    """
    tvm = load()
    textured = tvm.target.Target("qcom/adreno-opencl-texture").with_host("llvm")
    where = {scope: relax.VDevice(textured, 0, scope) for scope in ("global", TEXTURE)}
    types = [
        {scope: relax.TensorType((*shape, 4), "float32", vdevice=place) for scope, place in where.items()}
        for shape in shapes
    ]
    block = relax.BlockBuilder()
    inputs = [relax.Var(f"x{number}", each["global"]) for number, each in enumerate(types)]
    with block.function("main", inputs):
        kernels = [
            [block.add_func(texel_copy(*shape, *way), "copy") for way in (("global", TEXTURE), (TEXTURE, "global"))]
            for shape in shapes
        ]
        with block.dataflow():
            results = []
            for x, each, (copy_in, copy_out) in zip(inputs, types, kernels, strict=True):
                inside = block.emit(relax.op.call_tir(copy_in, x, out_ty=each[TEXTURE]))
                results.append(block.emit_output(relax.op.call_tir(copy_out, inside, out_ty=each["global"])))
        block.emit_func_output(results[0] if len(results) == 1 else relax.Tuple(results))
    module = block.finalize()
    module.update_global_info("vdevice", list(where.values()))
    tirx.compilation_pipeline.register_tir_pipeline("textures for tests", texture_tir_pipeline)
    with textured:
        built = relax.build(lowered(module), textured, relax_pipeline=None, tir_pipeline="textures for tests")
    return lambda device: relax.VirtualMachine(built, [device] * 2)["main"]


def texel_copy(height: int, width: int, source: str, target_scope: str):
    """Return a kernel with one work-item for each texel."""

    @T.prim_func(s_tir=True)
    def kernel(
        src: T.Buffer((height, width, 4), "float32", scope=source),
        dst: T.Buffer((height, width, 4), "float32", scope=target_scope),
    ):
        T.func_attr({"tirx.noalias": True})
        for i in T.thread_binding(height, thread="blockIdx.x"):
            for j in T.thread_binding(width, thread="threadIdx.x"):
                for lane in T.vectorized(4):
                    with T.sblock("texel"):
                        y, x, k = T.axis.remap("SSS", [i, j, lane])
                        dst[y, x, k] = src[y, x, k]

    return kernel.without_attr("global_symbol")


def lowered(module):
    """Lower Relax to code of the virtual machine, with its memory plan."""
    t = relax.transform
    passes = [
        *(t.ToNonDataflow(), t.RemovePurityChecking(), t.CallTIRRewrite(), t.Normalize(), t.StaticPlanBlockMemory()),
        *(t.LowerAllocTensor(), t.KillAfterLastUse(), t.LowerRuntimeBuiltin(), t.VMShapeLower()),
        t.AttachGlobalSymbol(),
    ]
    return load().transform.Sequential(passes)(module)
