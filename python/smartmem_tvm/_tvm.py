# SPDX-License-Identifier: Apache-2.0
"""The one place that knows which TVM this is; the version check comes before anything of TVM is used.

Here is also what this TVM gets wrong for textures on OpenCL, each work-around with its reason. Of TVM only
the pipelines that ``deploy/tvm_adreno.py`` puts under their names are replaced, `_seq_scope`, `_take` and `_elements`;
`texture_tir_pipeline` composes TVM's own passes with ours. ``tests/test_tvm_workarounds.py`` fails when a
newer TVM makes one of them unnecessary.
"""

# ruff: noqa: E402  (the check is before the imports)
from smartmem_tvm._version import version_problem

_problem = version_problem()
if _problem is not None:
    raise ImportError(_problem)

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import tvm
import tvm_ffi
from tvm import ir, relax, te, tirx
from tvm.relax import vm_build
from tvm.runtime import _ffi_api as module_api
from tvm.s_tir.backend import adreno
from tvm.s_tir.backend.adreno import pipeline as adreno_pipeline
from tvm.script.ir_builder import tirx as ir_builder
from tvm.script.parser import tirx as parsed_tirx
from tvm.tirx import compilation_pipeline
from tvm.tirx.script import builder as script_builder
from tvm.tirx.script import parser as script_parser
from tvm.tirx.script.builder import utils as builder_utils
from tvm_ffi import _ffi_api as _array_api
from tvm_ffi.structural import WalkOrder, _callback_type_to_type_index, _ffi_api

import _smartmem_opencl
from smartmem_tvm._tvm_kernels import (
    TEXTURE_LOAD,
    FixByteBroadcasts,
    FixConstants,
    FixFallingTexels,
    FixHalfRemainders,
    FixNarrowIntegers,
    in_single,
)
from smartmem_tvm.errors import CheckError, UserError
from smartmem_tvm.thread_pool import use_own_threads

# What is opened or compiled from here on runs its loops on them.
use_own_threads()

# A module that is generated for OpenCL while TVM has no device can never run.
_smartmem_opencl.load()

# What a pass raises comes back from TVM as the same type, and not as a RuntimeError.
tvm_ffi.register_error("UserError", UserError)
tvm_ffi.register_error("CheckError", CheckError)
# Else Ctrl-C in a callback comes out as a RuntimeError without a message, which looks like that of a kernel.
tvm_ffi.register_error("KeyboardInterrupt", KeyboardInterrupt)


def _seq_scope() -> ir_builder.frame.AttrFrame:
    """What holds several statements of a kernel of TVM's operators together, as scatters have them.

    Work-around: TVM's is an attribute called like a pragma, and its code generator for CPUs prints a warning of each
    that it does not know. Constants are folded by kernels that no pass of ours sees, so that it has to be here.
    """
    return ir_builder.attr(0, "smartmem_scope", builder_utils.StringImm("seq"))


SEQ_SCOPE = builder_utils.seq_scope
for _module in (builder_utils, script_builder, script_parser, parsed_tirx):  # what has the name
    _module.seq_scope = _seq_scope


_legalize_take = ir.Op.get("relax.take").get_attr("FLegalize")


def _take(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """The kernel of a ``take`` that does not look at its indices.

    Work-around: TVM's makes the same one, and prints a warning of each, also where all indices are known and inside.
    """
    data, indices = call.args
    if call.attrs.mode != "fast" or call.attrs.axis is None or not isinstance(indices.ty, relax.TensorType):
        return _legalize_take(builder, call)
    return builder.call_te(_taken, data, indices, int(call.attrs.axis), primfunc_name_hint="take")


def _taken(data: te.Tensor, indices: te.Tensor, axis: int) -> te.Tensor:
    """Elements of an axis, by indices of any rank that take its place."""
    axis, last = axis % data.ndim, axis % data.ndim + indices.ndim
    shape = [*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]]
    return te.compute(
        shape, lambda *at: data(*at[:axis], indices(*at[axis:last]), *at[last:]), name="T_take", tag="injective"
    )


ir.register_op_attr("relax.take", "FLegalize", _take, level=11)  # TVM's own is of level 10

_LINE = re.compile(rb"^\[[\d:]+\] /\S+: Warning: ")


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Leave out what TVM's C++ warns of on stderr meanwhile, and nothing else that is written there.

    For TVM's own graph of a model, of which it says how it could be written better (powers), once for each
    kernel: nobody here can.
    """
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            written.seek(0)
            for line in written:
                if not _LINE.match(line):
                    os.write(2, line)


def end_blocks(builder: relax.BlockBuilder) -> None:
    """End the blocks that an error has left open: TVM prints a warning when it deletes a builder that has some."""
    with contextlib.suppress(Exception):  # there is none any more
        while True:
            builder._end_block()


# Functions of which LLVM has no half form, and for which TVM's rules know no other: they are computed in float32. Else
# code generation ends in "unknown intrinsic", also where TVM only folds a constant. Of two it has no vectors either.
SINGLE_FUNCTIONS = (
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "copysign",
    "cosh",
    "erf",
    "hypot",
    "log1p",
    "sinh",
)
SCALAR_FUNCTIONS = ("cosh", "sinh")


def _of_each_lane(call: ir.Call, make: Callable[[str, ir.Expr], ir.Expr]) -> ir.Expr:
    """A function of a vector as functions of its elements; `make` takes the type and the argument of one."""
    dtype, _, lanes = str(call.ty.dtype).partition("x")
    if not lanes:
        return make(dtype, call.args[0])
    each = [make(dtype, tirx.Shuffle([call.args[0]], [i])) for i in range(int(lanes))]
    return tirx.Shuffle(each, list(range(int(lanes))))


def _lane_by_lane(call: ir.Call) -> ir.Expr:
    """Work-around: on a CPU these functions of a vector are functions of its elements, for the same reason."""
    if "x" not in str(call.ty.dtype):
        return in_single(call)
    return _of_each_lane(call, lambda dtype, x: tirx.call_intrin(dtype, call.op, x))


for _name in SINGLE_FUNCTIONS:
    _rule = _lane_by_lane if _name in SCALAR_FUNCTIONS else in_single
    tirx.register_intrin_lowering(f"tirx.{_name}", "llvm", f=_rule, level=99)

# TVM makes these of exponentials and logarithms, which lose the digits of small numbers. In float32 the error is
# that of ONNX Runtime; for doubles there are those of C.
EXACT_DOUBLES = ("atanh", "tanh")


def _as_in_c(call: ir.Call, otherwise: Callable[[ir.Call], ir.Expr] | None) -> ir.Expr:
    if not str(call.ty.dtype).startswith("float64"):
        return otherwise(call) if otherwise is not None else call
    name = call.op.name.removeprefix("tirx.")
    return _of_each_lane(call, lambda dtype, x: tirx.call_pure_extern(dtype, name, x))


for _name in EXACT_DOUBLES:
    _before = ir.Op.get(f"tirx.{_name}").get_attr("llvm.FLowerIntrinsic")
    tirx.register_intrin_lowering(
        f"tirx.{_name}", "llvm", f=lambda call, before=_before: _as_in_c(call, before), level=100
    )

TEXTURE_STORE = ir.Op.get("tirx.texture2d_store")


def _elements(array: tvm_ffi.Array) -> Iterator:
    """The elements of an array, one after the other.

    Work-around: TVM's looks at the length and at the kind of the index for each of them, twice the time of all. The
    elements of an array never change.
    """
    return iter([_array_api.ArrayGetItem(array, number) for number in range(_array_api.ArraySize(array))])


ELEMENTS, tvm_ffi.Array.__iter__ = tvm_ffi.Array.__iter__, _elements

_ORDERS = {"pre": int(WalkOrder.PREORDER), "post": int(WalkOrder.POSTORDER)}


@lru_cache(maxsize=256)
def _type_indexes(kind: type | tuple[type, ...]) -> tuple[int, ...]:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return tuple(_callback_type_to_type_index(each, api_name="structural_walk") for each in kinds)


def walk(root, *callbacks: tuple, order: str = "post") -> None:
    """``tvm_ffi.structural_walk``, with pairs of a kind and a callback.

    Work-around: it looks the kinds up anew in each call, which takes longer than a walk over an index.
    """
    _ffi_api.StructuralWalk(root, _entries(callbacks), [], _ORDERS[order])


def mapped(root, *callbacks: tuple, order: str = "post"):
    """``tvm_ffi.structural_map``, with pairs of a kind and a callback, for the same reason."""
    return _ffi_api.StructuralMap(root, _entries(callbacks), [], _ORDERS[order])


def _entries(callbacks: tuple) -> list[tuple[int, Callable]]:
    return [(index, callback) for kind, callback in callbacks for index in _type_indexes(kind)]


def executable(
    mod: tvm.IRModule, target: tvm.target.Target, build_kernels: Callable[[tvm.IRModule], tvm.runtime.Module]
) -> relax.VMExecutable:
    """What ``relax.build`` makes of a lowered module, with a choice of how its kernels are built.

    Parameters
    ----------
    build_kernels : callable
        Makes a module for the host from all PrimFuncs, as ``tirx.build`` does.
    """
    builder = relax.ExecBuilder()
    kernels = vm_build._filter_tir(vm_build._vmcodegen(builder, mod))
    library = build_kernels(kernels) if kernels is not None else None
    return relax.VMExecutable(vm_build._ffi_api.VMLink(builder, target, library, [], {}))


def write_library(
    code: relax.VMExecutable | tvm.runtime.Module, path: str, link: Callable[[str, list[str]], None], threads: int
) -> None:
    """What ``export_library`` does with LLVM's modules and those of devices.

    Work-around: it makes the machine code of one module after the other, which takes as long as making the modules.

    Parameters
    ----------
    link : callable
        Makes a library of a name from objects, as ``fcompile`` of ``export_library`` does.
    """
    root = code if isinstance(code, tvm.runtime.Module) else code.mod
    modules = root._collect_dso_modules()
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(threads) as pool:
        objects = [f"{place}/lib{number}.o" for number in range(len(modules))]
        list(pool.map(lambda mod, file: mod.write_to_file(file), modules, objects))
        if root.imports:
            target = modules[0].get_function("_get_target_string")()
            packed = module_api.ModulePackImportsToLLVM(root, False, target, "")
            objects.append(f"{place}/devc.o")
            packed.write_to_file(objects[-1])
        link(path, objects)


def texture_tir_pipeline(
    before: Sequence[tvm.transform.Pass] = (), on_device: Sequence[tvm.transform.Pass] = ()
) -> tuple[tvm.transform.Pass, Callable, Callable]:
    """What a TIR pipeline with textures consists of, for ``tirx.compilation_pipeline.register_tir_pipeline``.

    Work-around: the factory that TVM registers as "adreno" returns one pass, where ``tirx.build`` unpacks three values.
    And the plain pipeline, which ``tvm.compile`` takes, declares images and indexes them like buffers.

    Parameters
    ----------
    before : sequence of tvm.transform.Pass
        Passes of PrimFuncs as they were scheduled, before anything is lowered.
    on_device : sequence of tvm.transform.Pass
        Passes of kernels, after the host's code was split off.

    Returns
    -------
    tuple
        The lowering pass, a factory of the host's last passes, and one of the device's.
    """
    # TVM's pipeline begins with TextureFlatten too; it finds nothing left to do.
    flatten = [adreno.transform.TextureFlatten(), FixTextureStore()]
    lower = [FixVectorizedNests(), *before, *flatten, adreno_pipeline.default_tir_pipeline()]
    finish = compilation_pipeline.finalize_device_passes()
    device = [*on_device, finish, FixIntegerTextures(), FixFallingTexels(), *_last()]
    return (
        tvm.transform.Sequential(lower),
        compilation_pipeline.finalize_host_passes,
        lambda: tvm.transform.Sequential(device),
    )


def opencl_tir_pipeline(
    on_device: Sequence[tvm.transform.Pass] = (),
) -> tuple[tvm.transform.Pass, Callable, Callable]:
    """TVM's own pipeline with what it gets wrong for OpenCL; parameter and result as of `texture_tir_pipeline`."""
    lower, finish_host, finish_device = tirx.get_tir_pipeline("default")
    return lower, finish_host, lambda: tvm.transform.Sequential([*on_device, finish_device(), *_last()])


def cuda_tir_pipeline(
    on_device: Sequence[tvm.transform.Pass] = (),
) -> tuple[tvm.transform.Pass, Callable, Callable]:
    """The same for CUDA."""
    lower, finish_host, finish_device = tirx.get_tir_pipeline("default")
    device = [
        *on_device,
        finish_device(),
        FixHalfRemainders(),
        FixByteBroadcasts(),
        FixNarrowIntegers(),
        FixConstants(),
    ]
    return lower, finish_host, lambda: tvm.transform.Sequential(device)


def _last() -> list[tvm.transform.Pass]:
    return [FixVectorBooleans(), FixNarrowIntegers(), FixConstants()]


@tirx.transform.prim_func_pass(opt_level=0, name="smartmem.FixVectorizedNests")
class FixVectorizedNests:
    """Work-around: make vectorized loops innermost.

    Before::

        for v in T.vectorized(4):
            for r in range(n): local[v] = T.max(local[v], A[r, v])
            B[v] = local[v]

    After::

        for r in range(n):
            for v in T.vectorized(4): local[v] = T.max(local[v], A[r, v])
        for v in T.vectorized(4): B[v] = local[v]

    TVM's schedule of a pool on Adreno is the former. Its lowering then allocates ``local`` inside the vectorized loop,
    with one element instead of four, and the four lanes overwrite each other.
    """

    def transform_function(self, func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        """Rewrite one function that is scheduled, but not lowered."""

        def sink(loop: tirx.For):
            nested = isinstance(loop.body, (tirx.SeqStmt, tirx.For))
            return _over(loop, loop.body) if nested and loop.kind == tirx.ForKind.VECTORIZED else loop

        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, sink)))


def _over(lanes: tirx.For, stmt: tirx.Stmt) -> tirx.Stmt:
    """`stmt` for all `lanes`, which are independent of each other, as far inside as that goes."""
    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([_over(lanes, each) for each in stmt])
    sequential = isinstance(stmt, tirx.For) and stmt.kind in (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED)
    if sequential and isinstance(stmt.extent, tirx.IntImm):
        body = _over(lanes, stmt.body)
        return tirx.For(stmt.loop_var, stmt.min, stmt.extent, stmt.kind, body, annotations=stmt.annotations)
    lane = tirx.Var(lanes.loop_var.name, lanes.loop_var.ty.dtype)
    body = tvm_ffi.structural_map(stmt, (tirx.Var, lambda var: lane if var.same_as(lanes.loop_var) else var))
    return tirx.For(lane, lanes.min, lanes.extent, lanes.kind, body, annotations=lanes.annotations)


@tirx.transform.prim_func_pass(opt_level=0, name="smartmem.FixTextureStore")
class FixTextureStore:
    """Work-around: give ``texture2d_store`` an integer result type.

    Before::

        for v_s in range(4): write_imagef(B, xyz, A[... + v_s])     # one number, four times, into the whole texel

    After::

        write_imagef(B, xyz, vload4(0, A + ...))

    TextureFlatten builds the call with the type of its first argument, a pointer, and the vectorizer turns a statement
    with a pointer in it into a scalar loop.
    """

    def transform_function(self, func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        """Rewrite the stores of one function."""

        def as_integer(call: ir.Call):
            return tirx.call_intrin("int32", TEXTURE_STORE, *call.args) if call.op.same_as(TEXTURE_STORE) else call

        return func.with_body(tvm_ffi.structural_map(func.body, (ir.Call, as_integer)))


@tirx.transform.prim_func_pass(opt_level=0, name="smartmem.FixIntegerTextures")
class FixIntegerTextures:
    """Work-around: read and write integer textures with OpenCL's functions for integers.

    Before::

        as_int4(read_imagef(A, ...))          # undefined for an image of integers; an 8-bit one is refused

    After::

        read_imagei(A, ...)                   # converted to the element type, if that is narrower

    TVM's code generator chooses the function by the size of a texel alone, and knows 64 and 128 bits.
    """

    def transform_function(self, func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        """Rewrite one kernel, after the split of host and device."""
        params, seen = texture_params(func), {}
        if not any("int" in str(param.ty.element_type.dtype) for param in params.values()):
            return func

        def rewrite(call: ir.Call):
            if not is_texture_access(call) or _integer(call) is None:
                return call
            param = params[texture_of(call)]
            seen[param, call.op.name] = tirx.call_intrin(call.ty.dtype, call.op, param, *list(call.args)[1:])
            return _integer_load(call) if call.op.same_as(TEXTURE_LOAD) else _integer_store(call)

        body = tvm_ffi.structural_map(func.body, (ir.Call, rewrite))
        for (param, _), call in seen.items():
            # Whether an image is read or written the generator finds out from the calls that it knows. It looks for
            # them in the values of attributes too, but prints no attribute whose name it does not know.
            body = tirx.AttrStmt(param, "smartmem.texture_access", call, body)
        return func.with_body(body)


@tirx.transform.prim_func_pass(opt_level=0, name="smartmem.FixVectorBooleans")
class FixVectorBooleans:
    """Work-around: give OpenCL vectors of booleans that are true where all bits are.

    Before::

        T.Cast("float32x4", a < b);     T.Select(T.Broadcast(c, 4), x, y)

    After::

        T.Select(a < b, T.Broadcast(1.0, 4), T.Broadcast(0.0, 4))
        T.Select(T.Broadcast(T.Cast("int32", c), 4) != T.Broadcast(0, 4), x, y)

    What is true is -1 in a vector of OpenCL, where TVM's code generator takes it for 1: a mask times a tensor comes out
    with the wrong sign. And a vector that it makes of one boolean has 1, which ``select`` takes for false.
    """

    def transform_function(self, func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        """Rewrite one kernel, after the split of host and device."""

        def number(cast: tirx.Cast) -> ir.Expr:
            if not _is_vector_of_booleans(cast.value):
                return cast
            one, zero = (_alike(value, cast) for value in (1, 0))
            return tirx.Select(cast.value, one, zero)

        def wide(broadcast: tirx.Broadcast) -> ir.Expr:
            if not _is_vector_of_booleans(broadcast):
                return broadcast
            chosen = tirx.Broadcast(broadcast.value.astype("int32"), broadcast.lanes)
            return tirx.NE(chosen, tirx.Broadcast(tirx.const(0, "int32"), broadcast.lanes))

        return func.with_body(tvm_ffi.structural_map(func.body, [(tirx.Cast, number), (tirx.Broadcast, wide)]))


def _is_vector_of_booleans(value: ir.Expr) -> bool:
    dtype = tvm_ffi.dtype(str(value.ty.dtype))
    return dtype.lanes > 1 and str(dtype).startswith("bool")


def _alike(value: int, vector: ir.Expr) -> ir.Expr:
    """A vector of one number, of the type of another vector."""
    element, _, lanes = str(vector.ty.dtype).rpartition("x")
    return tirx.Broadcast(tirx.const(value, element), int(lanes))


def is_texture_access(call: ir.Call) -> bool:
    """Whether a call is ``texture2d_load`` or ``texture2d_store``."""
    return call.op.same_as(TEXTURE_LOAD) or call.op.same_as(TEXTURE_STORE)


def texture_of(access: ir.Call) -> tirx.Var:
    """The variable of the texture that is read or written: a parameter, or a buffer declared over one."""
    image = access.args[0]
    return image if isinstance(image, tirx.Var) else image.args[0]


def texture_dtype(access: ir.Call) -> str:
    """The element type of the texture that is read or written."""
    return str(access.args[0].ty.element_type.dtype)


def texture_params(kernel: tirx.PrimFunc) -> dict[tirx.Var, tirx.Var]:
    """The parameter behind each texture of a kernel, the parameters themselves included."""
    scoped = [p for p in kernel.params if isinstance(p.ty, ir.PointerType) and "texture" in p.ty.storage_scope]
    found = {param: param for param in scoped}

    def declare(decl: tirx.DeclBuffer):
        if decl.data in found:
            found[decl.buffer] = found[decl.data]

    tvm_ffi.structural_walk(kernel.body, (tirx.DeclBuffer, declare), order="pre")
    return found


def _integer(access: ir.Call) -> tuple[str, str] | None:
    """The type of a texel in a register and the suffix of OpenCL's image functions, if it consists of integers."""
    name = texture_dtype(access).rstrip("0123456789")
    return {"int": ("int32x4", "i"), "uint": ("uint32x4", "ui")}.get(name)


def _integer_load(load: ir.Call) -> ir.Expr:
    image, x, y, z, _, lanes = load.args
    vector, suffix = _integer(load)
    texel = tirx.call_pure_extern(vector, f"read_image{suffix}", image, _coordinate(x, y, z))
    # A ramp goes over a whole texel: StageTexels has taken shorter ones apart.
    value = texel if isinstance(lanes, tirx.Ramp) else _lane(texel, vector, lanes)
    return value.astype(load.ty.dtype)


def _lane(texel: ir.Expr, vector: str, lane: ir.Expr) -> ir.Expr:
    """One number of a texel, by OpenCL's own function: not every compiler takes an index in square brackets."""
    mask = tirx.call_pure_extern("uint32x4", "(uint4)", lane.astype("uint32"))
    return tirx.Shuffle([tirx.call_pure_extern(vector, "shuffle", texel, mask)], [0])


def _integer_store(store: ir.Call) -> ir.Expr:
    image, x, y, z, _, value = store.args
    vector, suffix = _integer(store)
    return tirx.call_extern("int32", f"write_image{suffix}", image, _coordinate(x, y, z), value.astype(vector))


def _coordinate(x: ir.Expr, y: ir.Expr, z: ir.Expr) -> ir.Expr:
    return tirx.call_pure_extern("int32x4", "(int4)", x, y, z, 0)
