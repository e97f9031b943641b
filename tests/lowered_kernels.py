# SPDX-License-Identifier: Apache-2.0
"""Kernels written by hand as the code generator for OpenCL gets them."""

from tvm import ir, tirx

from smartmem_tvm.ir.lanes import chosen_lane

ITEM, J = tirx.Var("item", "int32"), tirx.Var("j", "int32")


def image(name, dtype):
    """Return a parameter that is an image."""
    return tirx.Var(f"{name}_ptr", ir.PointerType(ir.PrimType(dtype), "global.texture"))


def load(texture, row, lane=None):
    """Return the load of a texel, or of one number of it."""
    lanes = tirx.Ramp(0, 1, 4) if lane is None else lane
    dtype = str(texture.ty.element_type.dtype) + ("x4" if lane is None else "")
    return tirx.call_intrin(dtype, ir.Op.get("tirx.texture2d_load"), texture, ITEM, row, 0, 128, lanes)


def store(texture, value, row=0):
    """Return the store of a texel."""
    return tirx.Evaluate(
        tirx.call_intrin("int32", ir.Op.get("tirx.texture2d_store"), texture, ITEM, row, 0, 128, value)
    )


def _place():
    return tirx.call_pure_extern("int32x4", "(int4)", ITEM, 0, 0, 0)


def read_integers(texture, lane=None, function="read_imagei"):
    """Return the load from a texture of integers, by OpenCL's own function."""
    texel = tirx.call_pure_extern("int32x4", function, texture, _place())
    return texel if lane is None else chosen_lane(texel, tirx.convert(lane))


def write_integers(texture, value, function="write_imagei"):
    """Return the store of a texel of integers, by OpenCL's own function."""
    return tirx.Evaluate(tirx.call_extern("int32", function, texture, _place(), value))


def kernel(params, stmts):
    """Return a kernel of statements; a parameter is an image or a buffer."""
    pointers, declared = [], []
    for each in params:
        if isinstance(each.ty, ir.PointerType):
            pointers.append(each)
        else:
            pointers.append(tirx.Var(each.name, ir.PointerType(ir.PrimType(str(each.dtype)), "global")))
            declared.append(tirx.DeclBuffer(each, data=pointers[-1]))
    return tirx.PrimFunc(pointers, tirx.SeqStmt([*declared, *stmts, tirx.Evaluate(0), tirx.Evaluate(0)]))
