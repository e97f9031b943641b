# SPDX-License-Identifier: Apache-2.0
"""PlaceTextures: tensors move to texture memory where the kernels that write and read them can use it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from math import prod
from types import MappingProxyType
from weakref import WeakKeyDictionary

import numpy as np
import tvm
from tvm import relax
from tvm.target import Target

from ....ir.graph import Graph, Node, graphs, write
from ....ir.kernel import Kernel, Opaque, emit, shape_of
from ....planner.texture_choice import Accepts, PlacementTrial, Slower, slower
from ....planner.texture_form import ImageLimits, TextureForm
from .movable import Movable, computed, weights

SCOPE = "global.texture"
_TYPES = ("float32", "float16")


@tvm.transform.module_pass(opt_level=0, name="smartmem.PlaceTextures")
class PlaceTextures:
    """Move tensors to 2.5D textures: first reduction dimension in the texel, second one along the rows (SmartMem 3.3).

    Before::

        y[n, c, h, w] = conv(x);   z = conv(y)

    After::

        y'[n, c // 4, h, w, c % 4] = conv(x);   z = conv(y')     # y' in memory scope global.texture

    Weights are packed into texels at compile time. Their texels lie along the texel of the results where kernels read
    whole texels, or else along the sum.

    A tensor stays in a buffer, and the log says why, if

    1. it is an input or a result of the function, or a call without loop structure writes or reads it,
    2. its element type has no texture here, none of its dimensions fills texels of four at least by half, or it is
       larger than an image may be,
    3. it is written through a map along the dimension of the texel, or a schedule does not write and read it texel by
       texel (`accepts`); a weight stays if a kernel reads single numbers of it,
    4. one of these kernels could not be compiled with its textures (`refused`), or
    5. these kernels take as long as with a buffer, or longer, alone and also when all tensors refused for their time
       move at once.

    Parameters
    ----------
    target : Target
        A target of kind opencl, with textures.
    accepts : callable
        See `Accepts`.
    limits : ImageLimits
        Image limits of the device.
    refused : mapping
        Tensors whose kernels could not be compiled with textures -> why.
    """

    def __init__(
        self,
        target: Target,
        accepts: Accepts,
        limits: ImageLimits | None = None,
        refused: Mapping[str, str] = MappingProxyType({}),
    ):
        self.target, self.accepts, self.limits, self.refused = target, accepts, limits or ImageLimits(), refused
        # Layers of a network share kernels, and the tensors of one kernel are tried one after the other.
        self.trials: WeakKeyDictionary[Kernel, PlacementTrial] = WeakKeyDictionary()
        self.singly: dict[tuple[Movable, TextureForm], str] = {}

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow function of `mod`."""
        mod = relax.transform.CanonicalizeBindings()(mod)
        device = relax.VDevice(self.target, 0, SCOPE)
        mod.update_global_info("vdevice", [relax.VDevice(self.target, 0, "global"), device])
        for graph in list(graphs(mod)):
            self.singly.clear()
            log = [self._place(each, device) for each in computed(graph)]
            # Weights come last: their texels follow those of the results.
            for _, together in groupby(weights(graph), lambda weight: list(weight.users)):
                log += self._place_together(list(together), device)
            mod = write(mod, graph, self._jointly(graph, log, device))
        return mod

    def _jointly(self, graph: Graph, log: list[dict], device: relax.VDevice) -> list[dict]:
        """Move tensors together that were slower alone: those of one kernel, kernel by kernel, then all others.

        A kernel may gain only if all of its operands move, and so may a chain of kernels.
        """
        tensors, changed = [*computed(graph), *weights(graph)], set()
        for node in (*graph, None):
            group = {
                number: (tensor, log[number]["slower"])
                for number, tensor in enumerate(tensors)
                if "slower" in log[number] and node in (None, *tensor.nodes)
            }
            if len(group) > 1 and self._move(dict(group.values()), device) is None:
                for number, (tensor, form) in group.items():
                    log[number] = _decision(tensor, form)
                    changed.update(tensor.nodes)
                tensors = [*computed(graph), *weights(graph)]
        # A kernel that could not read one of these textures before may be able to now.
        for number, tensor in enumerate(tensors):
            if log[number]["memory"] == "buffer" and changed.intersection(tensor.nodes):
                log[number] = self._place(tensor, device)
        return [{key: value for key, value in entry.items() if key != "slower"} for entry in log]

    def _place_together(self, tensors: list[Movable], device: relax.VDevice) -> list[dict]:
        """Place tensors with the same readers: all at once, in one trial, or one by one.

        The way a kernel reads a weight does not depend on its other weights. A form of which it reads single numbers
        in the trial of all is therefore not tried again, and the next forms are examined together.
        """
        forms = self._best(tensors)
        reason = self._move(forms, device) if len(forms) > 1 else ""
        moved = forms if reason is None else {}
        left = self._best(each for each, form in forms.items() if (each, form) in self.singly)
        while len(left) > 1:
            self._look(left)
            left = self._best(each for each, form in left.items() if (each, form) in self.singly)
        log = [_decision(each, forms[each]) if each in moved else self._place(each, device) for each in tensors]
        if not isinstance(reason, Slower):
            return log
        stay = {each for each, entry in zip(tensors, log, strict=True) if entry["memory"] == "buffer" and each in forms}
        return [_slower(each, reason, forms[each]) if each in stay else entry for each, entry in zip(tensors, log)]

    def _best(self, tensors: Iterable[Movable]) -> dict[Movable, TextureForm]:
        """Return the best texture of each tensor, leaving out forms known to be read by single numbers."""
        left = {each: [form for form in self._forms(each) if (each, form) not in self.singly] for each in tensors}
        return {each: forms[0] for each, forms in left.items() if forms and isinstance(forms[0], TextureForm)}

    def _place(self, tensor: Movable, device: relax.VDevice) -> dict:
        reasons = []
        # Where kernels cannot write or read the texels that fit best, another form may work.
        for form in self._forms(tensor):
            reason = form if isinstance(form, str) else self.singly.get((tensor, form))
            if reason is None:
                reason = self._move({tensor: form}, device)
            if reason is None:
                return _decision(tensor, form)
            reasons.append(reason)
            if isinstance(reason, Slower):
                return _slower(tensor, reason, form)
        return _decision(tensor, reasons[0])

    def _forms(self, tensor: Movable) -> list[TextureForm | str]:
        """Return the textures that a tensor may become, the best one first, or why it becomes none."""
        if tensor.fixed is not None:
            return [tensor.fixed]
        refused = [name for name in (node.var.name for node in tensor.nodes) if name in self.refused]
        if refused:
            return [f"{refused[0]} cannot be compiled with textures: {self.refused[refused[0]]}"]
        if str(tensor.buffer.dtype) not in _TYPES:
            return [f"its elements are {tensor.buffer.dtype}"]
        if not shape_of(tensor.buffer):
            return ["it is a single number"]
        return list(dict.fromkeys(tensor.forms(self.limits)))

    def _move(self, forms: Mapping[Movable, TextureForm], device: relax.VDevice) -> str | None:
        """Move tensors, or change nothing and return the reason."""
        before: dict[Node, Kernel] = {}
        reason = self._exchange(forms, before)
        reason = self._compared(before) if reason is None else reason
        if reason is None:
            for tensor, form in forms.items():
                tensor.settle(form, device)
        else:
            _restore(before)
        return reason

    def _look(self, forms: Mapping[Movable, TextureForm]) -> None:
        """Find out which of these textures are read by single numbers; change nothing."""
        before: dict[Node, Kernel] = {}
        self._exchange(forms, before)
        _restore(before)

    def _exchange(self, forms: Mapping[Movable, TextureForm], before: dict[Node, Kernel]) -> str | None:
        """Put kernels with these textures into the nodes, and the replaced kernels into `before`.

        Returns
        -------
        str or None
            The reason why one of them cannot be scheduled texel by texel.
        """
        try:
            for tensor, form in forms.items():
                for node, kernel in tensor.kernels(form, SCOPE).items():
                    before.setdefault(node, node.kernel)
                    node.kernel = kernel
            return self._problem(before, forms)
        except Opaque as why:
            return str(why)

    def _problem(self, nodes: Iterable[Node], forms: Mapping[Movable, TextureForm]) -> str | None:
        for node in nodes:
            trial = self._trial(node, node.kernel)
            if trial.problem is not None:
                return f"{node.var.name}: {trial.problem}"
            single = [each for each in forms if each.kind == "weight" and trial.singly & set(each.users.get(node, ()))]
            if single:
                reason = f"{node.var.name}: it reads single numbers of texels"
                self.singly |= {(each, forms[each]): reason for each in single}
                return reason
        return None

    def _compared(self, before: Mapping[Node, Kernel]) -> Slower | None:
        """Return why the nodes should keep the kernels in `before`; None if the new ones are faster."""
        trials = {node.var.name: self._trial(node, node.kernel) for node in before}
        if all(trial.measured is None and trial.modelled is None for trial in trials.values()):
            return None
        return slower({node.var.name: self._trial(node, kernel) for node, kernel in before.items()}, trials)

    def _trial(self, node: Node, kernel: Kernel) -> PlacementTrial:
        """Return the trial of a kernel with the attributes of a node, which some rules read."""
        if kernel not in self.trials:
            self.trials[kernel] = self.accepts(emit(kernel, node.attrs))
        return self.trials[kernel]


def _restore(before: Mapping[Node, Kernel]) -> None:
    for node, kernel in before.items():
        node.kernel = kernel


def _slower(tensor: Movable, reason: Slower, form: TextureForm) -> dict:
    return {**_decision(tensor, reason), "slower": form}


def _decision(tensor: Movable, form: TextureForm | str) -> dict:
    entry = {"pass": "PlaceTextures", "tensor": tensor.name, "kind": tensor.kind}
    shape, size = shape_of(tensor.buffer), np.dtype(str(tensor.buffer.dtype)).itemsize
    if isinstance(form, str):
        return {**entry, "memory": "buffer", "shape": list(shape), "bytes": size * prod(shape), "reason": form}
    texels = {"shape": list(form.shape), "texel": form.texel, "bytes": size * prod(form.shape)}
    return {**entry, "memory": "texture", **texels, "padding": size * (prod(form.shape) - prod(shape))}
