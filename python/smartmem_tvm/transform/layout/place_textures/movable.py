# SPDX-License-Identifier: Apache-2.0
"""Tensors that may move from a buffer to a texture: results of kernels, and weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import tvm
from tvm import ir, relax

from ....analysis.demands import demands, tensor_demands
from ....ir.codes import is_scale
from ....ir.graph import Graph, Node
from ....ir.kernel import Kernel, shape_of
from ....ir.storage import beside_results, textured
from ....ir.walk import collect
from ....planner.texture_form import ImageLimits, TextureForm, texture_form
from ....tensor_arrays import array_of

_SCALES = "it has the scales of codes, which threads read as vectors"
_OPAQUE = "it is made or read by something without loop structure"


class Movable(ABC):
    """A tensor of a graph, and the kernels that have to change with it.

    Attributes
    ----------
    name : str
        Name for messages.
    buffer : tirx.Var
        The tensor's buffer in one of the kernels.
    users : dict
        Each kernel's node -> positions of the tensor among the kernel's inputs.
    """

    kind: str

    def __init__(self, name: str, buffer, users: dict[Node, list[int]]):
        self.name, self.buffer, self.users = name, buffer, users

    @property
    def nodes(self) -> list[Node]:
        """Return the nodes of the kernels that have to change with the tensor."""
        return list(self.users)

    @property
    @abstractmethod
    def fixed(self) -> str | None:
        """Return why the tensor cannot move to any texture; None if it can."""

    @abstractmethod
    def forms(self, limits: ImageLimits) -> list[TextureForm | str]:
        """Return the textures that the tensor may become, the best one first, or why one is impossible."""

    def kernels(self, form: TextureForm, scope: str) -> dict[Node, Kernel]:
        """Return every kernel concerned, with the tensor in a texture.

        Raises
        ------
        Opaque
            As `storage.textured`.
        """
        found = {}
        for node, positions in self.users.items():
            kernel = node.kernel
            for position in positions:
                kernel, _ = textured(kernel, kernel.inputs[position], form, scope)
            found[node] = kernel
        return found

    @abstractmethod
    def settle(self, form: TextureForm, vdevice: relax.VDevice) -> None:
        """Exchange the tensor in a graph whose nodes already have the `kernels` for this form."""

    def _type(self, form: TextureForm, vdevice: relax.VDevice) -> relax.TensorType:
        return relax.TensorType(list(form.shape), str(self.buffer.dtype), vdevice=vdevice)


class Computed(Movable):
    """The result of a kernel."""

    kind = "tensor"

    def __init__(self, graph: Graph, node: Node):
        readers = graph.readers(node.var)
        users = {each: [i for i, arg in enumerate(each.args) if arg.same_as(node.var)] for each in readers}
        super().__init__(node.var.name, node.kernel.outputs[0], users)
        self.graph, self.node = graph, node

    @property
    def nodes(self) -> list[Node]:
        """The kernel that writes it comes first."""
        return [self.node, *self.users]

    @property
    def fixed(self) -> str | None:
        """Return that the tensor is visible outside of the function, or that a producer or reader is opaque."""
        if self.graph.is_output(self.node.var):
            return "it is a result of the function"
        one = len(self.node.kernel.outputs) == 1
        return None if one and self.users and all(each.kernel is not None for each in self.users) else _OPAQUE

    def forms(self, limits: ImageLimits) -> list[TextureForm | str]:
        """Return the forms that the readers' reductions want; whole texels where padded ones cannot be written."""
        wanted = tensor_demands(self.graph, self.node)
        return [texture_form(shape_of(self.buffer), wanted, limits, padded) for padded in (True, False)]

    def kernels(self, form: TextureForm, scope: str) -> dict[Node, Kernel]:
        """The kernel that writes it comes first."""
        writer, _ = textured(self.node.kernel, self.buffer, form, scope)
        return {self.node: writer, **super().kernels(form, scope)}

    def settle(self, form: TextureForm, vdevice: relax.VDevice) -> None:
        """Replace the variable by one of the texture's type."""
        self.graph.rename(self.node, relax.DataflowVar(self.node.var.name, self._type(form, vdevice)))


class MovableWeight(Movable):
    """A constant that kernels read."""

    kind = "weight"

    def __init__(self, value: ir.GenericConst, users: dict[Node, list[int]], opaque: bool):
        node, (position, *_) = next(iter(users.items()))
        super().__init__(f"weight {position} of {node.var.name}", node.kernel.inputs[position], users)
        self.value, self.opaque = value, opaque

    @property
    def fixed(self) -> str | None:
        """Return that a reader is opaque, or unpacks codes with it."""
        if self.opaque:
            return _OPAQUE
        buffers = ((node.kernel, node.kernel.inputs[n]) for node, positions in self.users.items() for n in positions)
        return _SCALES if any(is_scale(*each) for each in buffers) else None

    def forms(self, limits: ImageLimits) -> list[TextureForm | str]:
        """Return forms with texels along the results' texel, along the results' other dimensions, or along the sum.

        A kernel computes whole texels of results, so along the results' texel it reads whole texels of a weight. Texels
        along the sum hold four terms at once, which have to be unpacked where threads share a tile of the weight.
        """
        shape, wanted, beside = shape_of(self.buffer), [], []
        for node, positions in self.users.items():
            for buffer in (node.kernel.inputs[position] for position in positions):
                wanted += demands(node.kernel, node.var.name).get(buffer, [])
                beside += beside_results(node.kernel, buffer)
        texels = [*dict.fromkeys(beside), None]
        filled = [texel for texel in texels if texel is None or shape[texel] > 1]
        return [texture_form(shape, wanted, limits, texel=texel, compact=True) for texel in filled]

    def settle(self, form: TextureForm, vdevice: relax.VDevice) -> None:
        """Replace the constant by one whose numbers are in texel order."""
        tensor = tvm.runtime.empty(form.shape, str(self.buffer.dtype))
        form.fill(array_of(tensor), array_of(self.value.value))
        constant = ir.GenericConst(tensor, self._type(form, vdevice))
        for node, positions in self.users.items():
            node.args = [constant if i in positions else arg for i, arg in enumerate(node.args)]


def computed(graph: Graph) -> Iterator[Computed]:
    """Yield the results of all kernels of a graph, in the order of execution."""
    return (Computed(graph, node) for node in graph if node.kernel is not None)


def weights(graph: Graph) -> list[MovableWeight]:
    """Return the constants that kernels of a graph read, scalars excluded, each once, in the order of the kernels."""
    users: dict = {}
    for node in graph:
        for position, arg in enumerate(node.args if node.kernel is not None else ()):
            if isinstance(arg, ir.GenericConst) and len(arg.value.shape):
                users.setdefault(arg.value, (arg, {}))[1].setdefault(node, []).append(position)
    opaque = _read_otherwise(graph)
    return [MovableWeight(value, of, tensor in opaque) for tensor, (value, of) in users.items()]


def _read_otherwise(graph: Graph) -> set:
    """Return the tensors of constants with readers other than kernels."""
    values = [graph.function.body.body, *(node.value for node in graph if node.kernel is None)]
    return {constant.value for value in values for constant in collect(value, ir.GenericConst)}
