# SPDX-License-Identifier: Apache-2.0
"""Relax modules with textures, made kernel by kernel, and their OpenCL source."""

import math

import numpy as np
import tvm
from tvm import relax, te, tirx

import _smartmem_opencl
from smartmem_tvm.transform.layout.check_textures import SCOPES

TARGET = tvm.target.Target("qcom/adreno-opencl-texture").with_host("llvm")
VDEVICES = {scope: relax.VDevice(TARGET, 0, scope) for scope in ("global", *SCOPES)}
THREADS = 64


def opencl():
    """Return the first OpenCL device; on a machine without one, the test fails with the reason."""
    device = tvm.opencl(0)
    if not device.exist:
        say = tvm.get_global_func("smartmem.opencl.problem", allow_missing=True)
        raise RuntimeError(say() if say else f"the OpenCL library is not loaded: {_smartmem_opencl.problem()}")
    return device


class Program:
    """A Relax function of kernels: `input` and `kernel` return its variables, `module` ends it."""

    def __init__(self):
        self.block = relax.BlockBuilder()
        self.params = []
        self.calls = []

    def input(self, shape, dtype="float32", scope="global"):
        param = relax.Var(f"x{len(self.params)}", tensor(shape, dtype, scope))
        self.params.append(param)
        return param

    def kernel(self, compute, *args, scope="global", schedule=None):
        """Add a kernel that writes the tensor which `compute` makes from TE tensors."""
        tensors = [te.placeholder(long(a.ty.shape), str(a.ty.dtype), name=f"a{i}") for i, a in enumerate(args)]
        out = compute(*tensors)
        func = (schedule or scheduled)(te.create_prim_func([*tensors, out])).without_attr("global_symbol")
        var = relax.Var(f"t{len(self.calls)}", tensor(out.shape, out.dtype, scope))
        self.calls.append((var, func, args))
        return var

    def module(self, *outputs):
        with self.block.function("main", self.params):
            known = {}
            with self.block.dataflow():
                for var, func, args in self.calls:
                    # The builder merges equal functions, but their parameters will get different scopes.
                    kernel = self.block.add_func(func.with_attr("writes", var.name), f"kernel_{var.name}")
                    call = relax.op.call_tir(kernel, relax.Tuple([known.get(a, a) for a in args]), out_ty=var.ty)
                    known[var] = self.block.emit(call) if var not in outputs else self.block.emit_output(call)
            results = [known.get(var, var) for var in outputs]
            self.block.emit_func_output(results[0] if len(results) == 1 else relax.Tuple(results))
        mod = self.block.finalize()
        mod.update_global_info("vdevice", list(VDEVICES.values()))
        # This pass writes the scopes of the tensors into the parameters of the kernels.
        return relax.transform.SpecializePrimFuncBasedOnCallSite()(mod)


def tensor(shape, dtype, scope="global"):
    return relax.TensorType([int(n) for n in shape], str(dtype), vdevice=VDEVICES[scope])


def scheduled(func, vectors=True):
    """Schedule one thread for each texel, or each number if `vectors` is off or the innermost dimension is not 4."""
    sch = tvm.s_tir.Schedule(func)
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        *outer, last = sch.get_loops(block)
        if vectors and outer and int(sch.get(last).extent) == 4:
            sch.vectorize(last)
        else:
            outer.append(last)
        grid, threads = sch.split(sch.fuse(*outer), [None, THREADS])
        sch.bind(grid, "blockIdx.x")
        sch.bind(threads, "threadIdx.x")
    return sch.mod["main"]


def single_numbers(func):
    """Schedule one thread for each number, whatever the innermost dimension is."""
    return scheduled(func, vectors=False)


def long(shape):
    """Return extents in Relax's type: it finds no kernel for a call whose extents have other types."""
    return [tirx.const(int(n), "int64") for n in shape]


def to_texels(shape, dtype=None):
    """Return a TE function: a tensor as texels of a texture of the given shape, 4 last; zeros beyond its end."""

    def compute(a):
        count = math.prod(map(int, a.shape))

        def element(*index):
            flat = flatten(index, shape)
            value = a(*unflatten(flat, a.shape)).astype(dtype or str(a.dtype))
            if count == math.prod(shape):
                return value
            return tirx.if_then_else(flat < count, value, tirx.const(0, dtype or str(a.dtype)))

        return te.compute(long(shape), element, name="texels")

    return compute


def from_texels(shape, dtype=None, value=lambda x: x):
    """Return a TE function: the first elements of a texture, mapped by `value`, in a tensor of the given shape."""

    def compute(a):
        def element(*index):
            return value(a(*unflatten(flatten(index, shape), a.shape)).astype(dtype or str(a.dtype)))

        return te.compute(long(shape), element, name="numbers")

    return compute


def flatten(index, shape):
    flat = 0
    for i, extent in zip(index, shape):
        flat = flat * int(extent) + i
    return flat


def unflatten(flat, shape):
    index = []
    for extent in reversed([int(n) for n in shape]):
        index.insert(0, flat % extent)
        flat = flat // extent
    return index


def sources(module):
    """Return the OpenCL source of each kernel of a module, by name, without declarations and preprocessor lines."""
    if isinstance(module, relax.VMExecutable):
        module = module.mod
    found = {}
    if module.kind == "opencl":
        for part in module.inspect_source().split("// Function: ")[1:]:
            name, _, code = part.partition("\n")
            found[name.removesuffix("_kernel")] = code
    for imported in module.imports:
        found |= sources(imported)
    return found


def body(code):
    """Return the source of a kernel after the declarations of all kernels of its module."""
    return code[code.rindex("__kernel void") :]


def rounded_alike(found: np.ndarray, nearest: np.ndarray) -> bool:
    """Whether two arrays are equal except for the last bit of halves.

    OpenCL lets the device round values written to an image of halves to nearest or towards zero; PoCL does the former
    and NVIDIA the latter.
    """
    if found.dtype != nearest.dtype or found.shape != nearest.shape:
        return False
    if nearest.dtype != np.float16:
        return bool(np.array_equal(found, nearest))
    gap = np.abs(found.astype("float32") - nearest.astype("float32"))
    return bool((gap <= np.spacing(np.abs(nearest)).astype("float32")).all())


def emitted(function, shapes) -> tvm.IRModule:
    """Return a module of ``function(emit, x0, x1 ...)``, with one variable for each operator that it emits."""
    block = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(shape, "float32")) for i, shape in enumerate(shapes)]
    with block.function("main", params):
        with block.dataflow():
            out = block.emit_output(function(block.emit, *params))
        block.emit_func_output(out)
    return block.finalize()
