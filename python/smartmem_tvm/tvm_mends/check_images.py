# SPDX-License-Identifier: Apache-2.0
"""CheckImages: refuse lowered kernels that OpenCL would reject or miscompute, before code is generated."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import tvm
import tvm_ffi
from tvm import ir, tirx

from .._tvm import texture_params
from ..errors import UserError
from ..ir.image_access import ImageAccess, image_access, image_accesses
from ..ir.texels import is_texture
from ..ir.walk import collect
from ..planner.texture_form import TEXEL

# Lanes of OpenCL's vector types; 1 is a scalar.
WIDTHS = (1, 2, 3, 4, 8, 16)
_KERNEL = re.compile(r"(.*)_kernel(?:_\d+)?")
_PARAMETER = re.compile(r"(.*?)(?:_ptr(?:_\d+)?)?")


@dataclass(frozen=True)
class Planned:
    """The planned memory of a PrimFunc's arguments, by their names.

    Attributes
    ----------
    textures : dict
        Name -> element types of the textures of that name.
    buffers : Counter
        Name -> number of buffers of that name.
    """

    textures: Mapping[str, list[str]]
    buffers: Mapping[str, int]


def planned_memory(mod: tvm.IRModule) -> dict[str, Planned]:
    """Return which arguments of each unlowered PrimFunc are textures, by the memory scopes of its buffers."""
    found = {}
    for gvar, func in mod.functions_items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        buffers = [param for param in func.params if isinstance(param.ty, tirx.BufferType)]
        textures: dict[str, list[str]] = {}
        for buffer in filter(is_texture, buffers):
            textures.setdefault(stem(buffer.name), []).append(str(buffer.dtype))
        others = Counter(stem(buffer.name) for buffer in buffers if not is_texture(buffer))
        found[gvar.name_hint] = Planned(textures, others)
    return found


@dataclass(frozen=True, eq=False)
class _Lowered:
    """A lowered kernel and its planned memory."""

    kernel: tirx.PrimFunc
    plan: Planned | None

    @cached_property
    def accesses(self) -> list[ImageAccess]:
        return image_accesses(self.kernel)


@tvm.transform.module_pass(opt_level=0, name="smartmem.CheckImages")
class CheckImages:
    """Refuse kernels, as the code generator for OpenCL gets them, that break a rule of `RULES`.

    The rules are about errors, not about speed: `CheckTextures`, the schedules, and tests of the generated source watch
    the speed.

    Parameters
    ----------
    planned : mapping, optional
        PrimFunc -> the result of `planned_memory` for it before it was lowered; without an entry, nothing was planned.
    """

    def __init__(self, planned: Mapping[str, Planned] | None = None):
        self.planned = planned or {}

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Check every PrimFunc of `mod`, which is returned as it is.

        Raises
        ------
        UserError
            For the first kernel that breaks a rule; the message names both.
        """
        for gvar, func in mod.functions_items():
            if not isinstance(func, tirx.PrimFunc):
                continue
            name = gvar.name_hint
            match = _KERNEL.fullmatch(name)
            lowered = _Lowered(func, self.planned.get(match[1] if match else name))
            for rule, check in RULES.items():
                for broken in check(lowered):
                    raise UserError(
                        f"OpenCL kernel '{name}' breaks the rule '{rule}': {broken}; compile with --no-textures "
                        f"(Options(textures=False)), and report the model."
                    )
        return mod


def _as_planned(lowered: _Lowered) -> Iterator[str]:
    plan = lowered.plan
    if plan is None:
        return
    pointers = [param for param in lowered.kernel.params if isinstance(param.ty, ir.PointerType)]
    images = Counter(stem(param.name) for param in pointers if _is_image(param))
    buffers = Counter(stem(param.name) for param in pointers if not _is_image(param))
    for name, count in images.items():
        if count > len(plan.textures.get(name, ())):
            yield f"'{name}' was planned as a buffer and is an image"
    for name, count in buffers.items():
        if name in plan.textures and count > plan.buffers.get(name, 0):
            yield f"'{name}' was planned as a texture and is a buffer"


def _only_accessed(lowered: _Lowered) -> Iterator[str]:
    images = texture_params(lowered.kernel)
    if not images:
        return

    def without(call: ir.Call) -> ir.Expr:
        return call if image_access(call, images) is None else tirx.const(0, call.ty.dtype)

    def undeclared(decl: tirx.DeclBuffer) -> tirx.Stmt:
        return tirx.Evaluate(0) if decl.buffer in images else decl

    def bare(stmt: tirx.AttrStmt) -> tirx.Stmt:
        return stmt.body if isinstance(stmt.node, tirx.Var) and stmt.node in images else stmt

    rest = tvm_ffi.structural_map(
        lowered.kernel.body, [(ir.Call, without), (tirx.DeclBuffer, undeclared), (tirx.AttrStmt, bare)]
    )
    for var in tirx.analysis.undefined_vars(rest, []):
        if var in images:
            yield f"image '{images[var].name}' is used otherwise than texel by texel"


def _accessed_one_way(lowered: _Lowered) -> Iterator[str]:
    for image in filter(_is_image, lowered.kernel.params):
        mine = [access for access in lowered.accesses if access.image.same_as(image)]
        ways = {access.reads for access in mine}
        if len(ways) != 1:
            yield f"image '{image.name}' is {'both read and written' if ways else 'neither read nor written'}"
        types = lowered.plan.textures.get(stem(image.name), ()) if lowered.plan else ()
        kinds = {dtype.rstrip("0123456789") for dtype in types}
        for access in mine:
            if kinds and access.kind not in kinds:
                yield f"image '{image.name}' of {types[0]} is accessed as one of {access.kind}"


def _whole_texels_written(lowered: _Lowered) -> Iterator[str]:
    for access in lowered.accesses:
        if not access.reads and _lanes(access.numbers.ty) != TEXEL:
            yield f"image '{access.image.name}' is written with {_lanes(access.numbers.ty)} of the {TEXEL} numbers"


def _legal_widths(lowered: _Lowered) -> Iterator[str]:
    body = lowered.kernel.body
    found = [vector.ty for vector in collect(body, (tirx.Ramp, tirx.Broadcast, tirx.Shuffle))]
    allocated = collect(body, (tirx.AllocBuffer, tirx.DeclBuffer))
    found += [ir.PrimType(str(each.buffer.dtype)) for each in allocated]
    for lanes in sorted({_lanes(ty) for ty in found} - set(WIDTHS)):
        yield f"it has vectors of {lanes} numbers, and those of OpenCL have 2, 3, 4, 8 or 16"


RULES = {
    "a planned texture is an image, and nothing else is one": _as_planned,
    "no pointer arithmetic on images": _only_accessed,
    "an image is read or written, by the functions for its type": _accessed_one_way,
    "a texel is written as a whole": _whole_texels_written,
    "vectors have widths that OpenCL has": _legal_widths,
}
"""Rule -> function that says where a lowered kernel, with its planned memory, breaks the rule."""


def stem(name: str) -> str:
    """Return the name of the PrimFunc's parameter that a kernel's argument stands for."""
    return _PARAMETER.fullmatch(name)[1]


def _is_image(param: tirx.Var) -> bool:
    return isinstance(param.ty, ir.PointerType) and "texture" in param.ty.storage_scope


def _lanes(ty: ir.Type) -> int:
    return tvm_ffi.dtype(str(ty.dtype)).lanes
