# SPDX-License-Identifier: Apache-2.0
"""PlaceTextures: tensors move to texture memory where whoever writes and reads them can."""

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

    The numbers of weights are brought into texels here: nothing is left to do at run time. Their texels lie along what
    becomes the texel of the results, where kernels read whole ones, or else along the sum.

    A tensor stays in a buffer, and the log says why, if

    1. it is an input or a result of the function, or made or read by something without loop structure,
    2. its element type has no texture here, none of its dimensions fills texels of four at least by half, or it is
       larger than images may be,
    3. it is written through a map along what would be the texel, or the schedule of a kernel that writes or reads it
       does not do so texel by texel (`accepts`); of weights nobody reads single numbers,
    4. one of these kernels could not be compiled with its textures (`refused`), or
    5. these kernels take as long as with a buffer, or longer; also when all tensors of which that is so move at once.

    Parameters
    ----------
    target : Target
        Of kind opencl, with textures.
    accepts : callable
        See `Accepts`.
    limits : ImageLimits
        Of the device.
    refused : mapping
        The tensors that such kernels compute -> why.
    """

    def __init__(
        self,
        target: Target,
        accepts: Accepts,
        limits: ImageLimits | None = None,
        refused: Mapping[str, str] = MappingProxyType({}),
    ):
        self.target, self.accepts, self.limits, self.refused = target, accepts, limits or ImageLimits(), refused
        # The layers of a network share kernels, and so do tensors of one kernel that are tried one after the other.
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
            # Weights last: their texels follow those of the results.
            for _, together in groupby(weights(graph), lambda weight: list(weight.users)):
                log += self._place_together(list(together), device)
            mod = write(mod, graph, self._jointly(graph, log, device))
        return mod

    def _jointly(self, graph: Graph, log: list[dict], device: relax.VDevice) -> list[dict]:
        """Move together what was slower alone: the tensors of one kernel, kernel by kernel, and in the end all others.

        A kernel may gain only by all of its operands, and so may a chain of kernels.
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
        # What their kernels could not read before, they may read now.
        for number, tensor in enumerate(tensors):
            if log[number]["memory"] == "buffer" and changed.intersection(tensor.nodes):
                log[number] = self._place(tensor, device)
        return [{key: value for key, value in entry.items() if key != "slower"} for entry in log]

    def _place_together(self, tensors: list[Movable], device: relax.VDevice) -> list[dict]:
        """Place tensors of the same readers: all at once, which takes one trial, or one by one.

        How a kernel reads a weight does not change with its other weights: a form of which it reads single numbers in
        the trial of all is not tried again, and those that come next are looked at together.
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
        """The best texture of each tensor that may become one of which nobody is known to read single numbers."""
        left = {each: [form for form in self._forms(each) if (each, form) not in self.singly] for each in tensors}
        return {each: forms[0] for each, forms in left.items() if forms and isinstance(forms[0], TextureForm)}

    def _place(self, tensor: Movable, device: relax.VDevice) -> dict:
        reasons = []
        # Where nobody can write or read the texels that fit best, others may do.
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
        """The textures that a tensor may become, the best one first; or why it becomes none."""
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
        """Move tensors, or return the reason why not: then nothing is changed."""
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
        """Find out which of these textures are read by single numbers; nothing is changed."""
        before: dict[Node, Kernel] = {}
        self._exchange(forms, before)
        _restore(before)

    def _exchange(self, forms: Mapping[Movable, TextureForm], before: dict[Node, Kernel]) -> str | None:
        """Put kernels with these textures into the nodes, and those that were there into `before`.

        Returns
        -------
        str or None
            Why one of them cannot be scheduled as it should be.
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
            trial = self._trial(node.kernel)
            if trial.problem is not None:
                return f"{node.var.name}: {trial.problem}"
            single = [each for each in forms if each.kind == "weight" and trial.singly & set(each.users.get(node, ()))]
            if single:
                reason = f"{node.var.name}: it reads single numbers of texels"
                self.singly |= {(each, forms[each]): reason for each in single}
                return reason
        return None

    def _compared(self, before: Mapping[Node, Kernel]) -> Slower | None:
        """Why the nodes should have the kernels that they had before."""
        trials = {node.var.name: self._trial(node.kernel) for node in before}
        if all(trial.measured is None and trial.modelled is None for trial in trials.values()):
            return None
        return slower({node.var.name: self._trial(kernel) for node, kernel in before.items()}, trials)

    def _trial(self, kernel: Kernel) -> PlacementTrial:
        if kernel not in self.trials:
            self.trials[kernel] = self.accepts(emit(kernel))
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
