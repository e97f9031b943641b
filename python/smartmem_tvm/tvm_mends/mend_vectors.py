# SPDX-License-Identifier: Apache-2.0
"""MendVectors: unroll loops over vectors that a GPU cannot load or store."""

from __future__ import annotations

import tvm_ffi
from tvm import tirx
from tvm.target import Target

from ..ir.index_map import variables
from ..ir.texels import is_texture
from ..ir.vectorized import Places, accesses_to_booleans, lanes_of, scattered_bytes
from ..ir.walk import collect, contains, loads, stores
from ..target import is_cuda, is_gpu

_INDICES = 4  # lanes of the largest vector of integers on CUDA


@tirx.transform.prim_func_pass(opt_level=0, name="smartmem.MendVectors")
class MendVectors:
    """Unroll vectorized loops of GPU kernels that TVM would make wrong vectors of.

    Before, for CUDA::

        for v in T.vectorized(4): B[i * 4 + v] = A[i * 4 + v] < 0      # B of bool
        for v in T.vectorized(4): C[i * 7 + v] = A[i * 4 + v]

    After::

        for v in T.unroll(4): B[i * 4 + v] = A[i * 4 + v] < 0
        for v in T.unroll(4): C[i * 7 + v] = A[i * 4 + v]

    TVM stores four booleans as four shorts on CUDA and as four ints in OpenCL: the store overwrites the bytes after
    them, at addresses that are not aligned for shorts and ints. On CUDA a vector must be aligned to its size; TVM
    checks that for loads, and not for stores. TVM also makes vectors of more than four indices, for gathering loads,
    which CUDA does not have.

    Leaves loops that touch textures vectorized where `textures` is off: `StageTexels` comes first there.

    Parameters
    ----------
    target : Target, optional
        Target of kernels that have none themselves; by default the current one. Kernels for CPUs stay as they are.
    textures : bool
        Mend loops that touch textures too.
    """

    def __init__(self, target: Target | None = None, textures: bool = False):
        self.target, self.textures = target, textures

    def transform_function(self, func: tirx.PrimFunc, _mod, _ctx) -> tirx.PrimFunc:
        """Mend one scheduled function."""
        target = (func.attrs or {}).get("target") or self.target or Target.current(allow_none=True)
        loops = [loop for loop in collect(func.body, tirx.For) if loop.kind == tirx.ForKind.VECTORIZED]
        if target is None or not is_gpu(target) or not loops:
            return func
        places = Places(func.body)
        # Decide here, so that no code that may raise runs inside TVM's traversal.
        known = [(loop, self._mended(loop, places, is_cuda(target))) for loop in loops]
        changed = {loop.loop_var: new for loop, new in known if not new.same_as(loop)}
        if not changed:
            return func
        body = tvm_ffi.structural_map(func.body, (tirx.For, lambda loop: changed.get(loop.loop_var, loop)))
        return func.with_body(body)

    def _mended(self, loop: tirx.For, places: Places, cuda: bool) -> tirx.For:
        if not self.textures and _touches_textures(loop):
            return loop
        lanes = lanes_of(loop)
        if not _has_no_vector(loop, lanes, places, cuda):
            return loop
        kind = tirx.ForKind.UNROLLED
        return tirx.For(loop.loop_var, loop.min, loop.extent, kind, loop.body, annotations=loop.annotations)


def _touches_textures(loop: tirx.For) -> bool:
    return any(is_texture(load.source) for load in loads(loop)) or any(is_texture(each.buffer) for each in stores(loop))


def _has_no_vector(loop: tirx.For, lanes: set, places: Places, cuda: bool) -> bool:
    def differs(node) -> bool:
        return bool(lanes & set(variables(node)))

    if any(map(differs, accesses_to_booleans(loop))):
        return True
    if cuda:
        # CUDA's compiler has no negation of a vector.
        negated = contains(loop, tirx.Not, differs)
        wide = loads(loop) if int(loop.extent) > _INDICES else ()
        scattered = any(
            differs(list(each.indices)) and places.step(each.indices, each.source, loop) != 1 for each in wide
        )
        return negated or scattered or any(places.may_be_torn(each, each.buffer, loop) for each in stores(loop))
    return any(map(differs, scattered_bytes(loop, loop, places)))
