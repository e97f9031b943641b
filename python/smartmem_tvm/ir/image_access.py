# SPDX-License-Identifier: Apache-2.0
"""Accesses to images in kernels, as OpenCL's code generator gets them: each texel read or written, and its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import ir, tirx

from .._tvm import TEXTURE_LOAD, is_texture_access, texture_dtype, texture_of, texture_params
from .index_map import is_if_then_else
from .recent import Recent

_NESTS = (tirx.AttrStmt, tirx.For, tirx.While, tirx.IfThenElse)
_accesses = Recent(128)  # the checks of kernels and the count of texels need the same result, one after the other
_SKIP = tvm_ffi.WalkResult.SKIP
_EXTERNAL = tuple(ir.Op.get(f"tirx.{name}") for name in ("call_extern", "call_pure_extern"))
# OpenCL's functions by which `_tvm.FixIntegerTextures` replaces TVM's -> the kind of their numbers.
_OF_INTEGERS = {
    f"{way}_image{suffix}": kind for way in ("read", "write") for suffix, kind in (("i", "int"), ("ui", "uint"))
}


@dataclass(frozen=True, eq=False)
class Block:
    """Statements between braces, and the loop that repeats them, if there is one."""

    loop: tirx.For | None = None


@dataclass(frozen=True, eq=False)
class ImageAccess:
    """A read or write of a texel.

    Attributes
    ----------
    image : tvm.tirx.Var
        The kernel's parameter.
    reads : bool
        Whether the access is a read.
    kind : str
        Kind of the numbers: ``float``, ``int`` or ``uint``.
    place : tuple
        Coordinates of the texel.
    numbers : tvm.ir.Expr or None
        The value of a write; for a read, which of the four numbers is used, None for all of them.
    blocks : tuple of Block
        The blocks around the access, the outermost first.
    newest : Block
        The last block that begins before the access; it may also end before it.
    """

    image: tirx.Var
    reads: bool
    kind: str
    place: tuple
    numbers: ir.Expr | None
    blocks: tuple[Block, ...] = ()
    newest: Block | None = None


def image_accesses(kernel: tirx.PrimFunc) -> list[ImageAccess]:
    """Return every access to an image of a kernel, in program order."""
    return _accesses.get(kernel, lambda: _image_accesses(kernel))


def _image_accesses(kernel: tirx.PrimFunc) -> list[ImageAccess]:
    images, found, begun = texture_params(kernel), [], [Block()]

    def walk(root, blocks: tuple[Block, ...]) -> None:
        def nest(stmt: tirx.Stmt):
            return parts(*_parts(stmt), stmt if isinstance(stmt, tirx.For) else None)

        def parts(heads: Sequence, bodies: Sequence, loop: tirx.For | None = None):
            for head in heads:
                walk(head, blocks)
            for body in bodies:
                begun.append(Block(loop))
                walk(body, (*blocks, begun[-1]))
            return _SKIP

        def call(call: ir.Call):
            if is_if_then_else(call):
                return parts(call.args[:1], call.args[1:])
            access = image_access(call, images, blocks, begun[-1])
            if access is None:
                return None
            found.append(access)
            return parts([*access.place, *([] if access.numbers is None else [access.numbers])], ())

        def shuffle(node: tirx.Shuffle):
            return one(node.vectors[0], node.indices[0], ())

        def let(node: tirx.Let):
            chosen = isinstance(node.body, tirx.Let)
            return one(node.value, node.body.value, (node.body.value, node.body.body)) if chosen else None

        def one(value: ir.Expr, number: ir.Expr, rest: Sequence):
            """Note a texel of which `FixTexelLanes` takes one number."""
            whole = image_access(value, images, blocks, begun[-1]) if isinstance(value, ir.Call) else None
            if whole is None or not whole.reads:
                return None
            found.append(replace(whole, numbers=number))
            return parts([*whole.place, *rest], ())

        entries = [(_NESTS, nest), (tirx.Shuffle, shuffle), (tirx.Let, let), (ir.Call, call)]
        tvm_ffi.structural_walk(root, entries, order="pre")

    if images:
        walk(kernel.body, (begun[0],))
    return found


def _parts(stmt: tirx.Stmt) -> tuple[Sequence, Sequence]:
    """Return the parts of a nest that are evaluated before its braces, and the parts between them."""
    if isinstance(stmt, tirx.AttrStmt):
        return (stmt.body,), ()  # the value may be a copy of an access, which FixIntegerTextures keeps there
    if isinstance(stmt, tirx.For):
        return (stmt.min, stmt.extent), (stmt.body,)
    if isinstance(stmt, tirx.While):
        return (), (stmt.condition, stmt.body)
    return (stmt.condition,), [case for case in (stmt.then_case, stmt.else_case) if case is not None]


def image_access(
    call: ir.Call, images: dict[tirx.Var, tirx.Var], blocks: tuple[Block, ...] = (), newest: Block | None = None
) -> ImageAccess | None:
    """Return the access that a call makes to one of `images` (`_tvm.texture_params`), None if it makes none."""
    if is_texture_access(call):
        image, reads, kind = texture_of(call), call.op.same_as(TEXTURE_LOAD), texture_dtype(call).rstrip("0123456789")
        *place, _, numbers = call.args[1:]
        numbers = None if reads and isinstance(numbers, tirx.Ramp) else numbers
    else:
        name, *args = _external(call)
        if name not in _OF_INTEGERS:
            return None
        image, reads, kind = args[0], name.startswith("read"), _OF_INTEGERS[name]
        image = image if isinstance(image, tirx.Var) else image.args[0]
        place, numbers = _external(args[1])[1:], None if reads else args[2]
    if image not in images:
        return None
    return ImageAccess(images[image], reads, kind, tuple(place), numbers, blocks, newest)


def _external(call: ir.Expr) -> tuple:
    """Return the name of the OpenCL function that is called, and its arguments."""
    if isinstance(call, ir.Call) and any(call.op.same_as(op) for op in _EXTERNAL):
        return call.args[0].value, *call.args[1:]
    return ("",)
