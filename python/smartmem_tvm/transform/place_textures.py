# SPDX-License-Identifier: Apache-2.0
"""PlaceTextures: tensors move to texture memory where whoever writes and reads them can."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax, tirx
from tvm.target import Target

from ..analysis.graph import Graph, Node, graphs, write
from ..analysis.kernel import Kernel, Opaque, emit, shape_of
from ..analysis.storage import tensor_demands, textured
from ..planner.texture_form import ImageLimits, TextureForm, texture_form

SCOPE = "global.texture"
_TYPES = ("float32",)

Accepts = Callable[[tirx.PrimFunc], str | None]
"""Why a kernel cannot be scheduled with the textures that it reads and writes; None if it can."""


@tvm.transform.module_pass(opt_level=0, name="smartmem.PlaceTextures")
class PlaceTextures:
    """Move tensors to 2.5D textures: first reduction dimension in the texel, second one along the rows (SmartMem 3.3).

    Before::

        y[n, c, h, w] = conv(x);   z = conv(y)

    After::

        y'[n, c // 4, h, w, c % 4] = conv(x);   z = conv(y')     # y' in memory scope global.texture

    A tensor stays in a buffer, and the log says why, if

    1. it is an input or a result of the function, or made or read by something without loop structure,
    2. its element type has no texture here, none of its dimensions fills texels of four at least by half, or it is
       larger than images may be,
    3. it is written through a map along what would be the texel, or the schedule of a kernel that writes or reads it
       does not do so texel by texel (`accepts`).

    Parameters
    ----------
    target : Target
        Of kind opencl, with textures.
    accepts : callable
        See `Accepts`.
    limits : ImageLimits
        Of the device.
    """

    def __init__(self, target: Target, accepts: Accepts, limits: ImageLimits | None = None):
        self.target, self.accepts, self.limits = target, accepts, limits or ImageLimits()

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow function of `mod`."""
        mod = relax.transform.CanonicalizeBindings()(mod)
        device = relax.VDevice(self.target, 0, SCOPE)
        mod.update_global_info("vdevice", [relax.VDevice(self.target, 0, "global"), device])
        for graph in list(graphs(mod)):
            mod = write(mod, graph, [self._place(graph, node, device) for node in graph if node.kernel is not None])
        return mod

    def _place(self, graph: Graph, node: Node, device) -> dict:
        entry = {"pass": "PlaceTextures", "tensor": node.var.name}
        reasons = []
        # Where nobody can write the texels that fit best, others may do.
        for form in dict.fromkeys(self._form(graph, node, padded) for padded in (True, False)):
            reason = form if isinstance(form, str) else self._move(graph, node, form, device)
            if reason is None:
                return {**entry, "memory": "texture", "shape": list(form.shape), "texel": form.texel}
            reasons.append(reason)
        return {**entry, "memory": "buffer", "reason": reasons[0]}

    def _move(self, graph: Graph, node: Node, form: TextureForm, device) -> str | None:
        try:
            return _Move(graph, node, form, device).run(self.accepts)
        except Opaque as why:
            return str(why)

    def _form(self, graph: Graph, node: Node, padded: bool) -> TextureForm | str:
        readers = graph.readers(node.var)
        if graph.is_output(node.var):
            return "it is a result of the function"
        if len(node.kernel.outputs) != 1 or not readers or any(reader.kernel is None for reader in readers):
            return "it is made or read by something without loop structure"
        buffer = node.kernel.outputs[0]
        if str(buffer.dtype) not in _TYPES:
            return f"its elements are {buffer.dtype}"
        shape = shape_of(buffer)
        if not shape:
            return "it is a single number"
        return texture_form(shape, tensor_demands(graph, node), self.limits, padded)


class _Move:
    """A tensor on its way into a texture: nothing is changed before everybody accepts."""

    def __init__(self, graph: Graph, node: Node, form: TextureForm, device):
        self.graph, self.node = graph, node
        writer, buffer = textured(node.kernel, node.kernel.outputs[0], form, SCOPE)
        self.kernels: dict[Node, Kernel] = {node: writer}
        for reader in graph.readers(node.var):
            kernel = reader.kernel
            for position, arg in enumerate(reader.args):
                if arg.same_as(node.var):
                    kernel, _ = textured(kernel, kernel.inputs[position], form, SCOPE)
            self.kernels[reader] = kernel
        ty = relax.TensorType(list(buffer.shape), node.var.ty.dtype, vdevice=device)
        self.var = relax.DataflowVar(node.var.name, ty)

    def run(self, accepts: Accepts) -> str | None:
        """Do it, or return the reason why not."""
        for node, kernel in self.kernels.items():
            problem = accepts(emit(kernel))
            if problem is not None:
                return f"{node.var.name}: {problem}"
        for node, kernel in self.kernels.items():
            node.kernel = kernel
        self.graph.rename(self.node, self.var)
        return None
