# SPDX-License-Identifier: Apache-2.0
"""Where the code of a graph comes from: the folder of compiled graphs, or torch's exporter and this package."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
import tvm

from ..errors import reason_of
from ..ir.codes import WEIGHTS
from ..ir.half import FLOAT
from ..target import device_kind, is_gpu
from .at_capacity import capacities_of
from .counts import count
from .graph_key import NotStable, content_of, key_of, length_of, options_text, with_inputs, with_length
from .kept_programs import Ready, kept_programs, load, load_refusal, store, store_refusal
from .program import shapes_of
from .refusals import NotFunctional, Refusal
from .request import Request
from .snapshot import Snapshot

if TYPE_CHECKING:
    from .open_lengths import OpenLengths
    from .open_program import OpenProgram

_logger = logging.getLogger(__package__)


class Source:
    """Compiled programs of one graph, for any sizes and weights.

    Parameters
    ----------
    graph, functional
        As of `run_graph.Graph`.
    device : torch.device
        The device of the graph's tensors.
    """

    def __init__(self, graph: torch.fx.GraphModule, request: Request, device: torch.device, functional: bool):
        self._graph, self._request, self._device, self._functional = graph, request, device, functional
        self._kept = kept_programs()
        self._key: tuple[Snapshot, tuple[int, ...], str, dict[int, str]] | None = None
        self._open: tuple[Snapshot, tuple, OpenProgram] | None = None
        self._open_lengths: OpenLengths | None = None
        self._is_open = True
        self._lengths: dict[tuple[str, int], Ready] = {}  # sizes with a length, capacity -> the program
        self._made_of: tuple[Snapshot, tuple[int, ...]] | None = None  # the weights in these programs

    @cached_property
    def target(self) -> tvm.target.Target:
        """Return the target.

        Raises
        ------
        Refusal
            If kernels are not for the tensors' device.
        """
        target, kind = self._request.target_for(self._device.type), self._device.type
        if target is None or (kind != "cpu" and device_kind(target) != kind):
            raise Refusal(f"its tensors are on {self._device}, and kernels here are for {target or 'CPUs and CUDA'}")
        return target

    def ready(self, inputs: Sequence[Any], weights: tuple[int, ...], snapshot: Snapshot) -> Ready:
        """Return the program for inputs of these sizes, loaded or compiled.

        Parameters
        ----------
        weights : tuple of int
            Positions of the inputs that are compiled in.
        snapshot : Snapshot
            The state of these, and of the graph's own tensors.

        Raises
        ------
        Refusal
            If the graph is left to torch, or has to be made functional first.
        Exception
            Of torch's exporter, TVM and this package, of many types.
        """
        key = self._key_of(inputs, weights, snapshot)
        if (served := self._served(inputs, weights, snapshot, key)) is not None:
            return served
        found = load(self._kept, key) if key else None
        if found is not None:
            count("loaded")
            return found
        if key and (reason := load_refusal(self._kept, key)) is not None:
            raise NotFunctional(reason)
        try:
            made = self._compiled(inputs, weights, snapshot, key)
        except NotFunctional as refusal:
            if key:
                store_refusal(self._kept, key, str(refusal))
            raise
        count("compiled")
        return made

    def _key_of(self, inputs: Sequence[Any], weights: tuple[int, ...], snapshot: Snapshot) -> str | None:
        """Return the key of the program on disk, None if it is not kept."""
        if self._kept.folder is None:
            return None
        if self._key is None or not (self._key[0].equals(snapshot) and self._key[1] == weights):
            try:
                made_for = str(self.target), options_text(self._request.options)
                key = key_of(self._graph, weights, self._functional, made_for)
            except NotStable as reason:
                _logger.info("a graph is not kept for other processes: %s", reason)
                return None
            self._key = snapshot, weights, key, {at: content_of(inputs[at]) for at in weights}
        return with_inputs(self._key[2], inputs, self._key[3])

    def _compiled(self, inputs: Sequence[Any], weights: tuple[int, ...], snapshot: Snapshot, key: str | None) -> Ready:
        # Imported now: a process that finds all graphs on disk needs no compiler.
        from .compile_program import compile_program
        from .program import read_program
        from .refusals import check_program

        options = self._request.options
        program = self._opened(inputs, weights, snapshot)
        if program is not None:
            try:
                found = self._at_capacity(program, inputs, key)
                if found is not None:
                    return found
                return self._stored(key, *compile_program(program.at(inputs), self.target, options))
            except Exception as error:  # as below; what is wrong with the graph itself is found there again
                _logger.info("a graph is exported for a size by itself: %s", reason_of(error))
        fixed = read_program(self._graph, inputs, weights)
        check_program(fixed.exported)
        return self._stored(key, *compile_program(fixed, self.target, options))

    @cached_property
    def _known(self) -> list[Any]:
        """What torch knows of the inputs; empty if each size has kernels of its own."""
        options = self._request.options
        # Kernels of other precisions, and over codes, compute a capacity whole.
        ending = options.precision == FLOAT and options.weights in WEIGHTS and not is_gpu(self.target)
        alone = options.memory_budget or options.caches or not ending
        return [] if alone else shapes_of(self._graph)

    def _described(self, inputs: Sequence[Any]) -> list[tuple[int, str]]:
        """Return each number among the inputs that may be a length, and the inputs as they are for any length."""
        numbers = [at for at, each in enumerate(inputs) if self._known and not isinstance(each, torch.Tensor)]
        # Several numbers may be one symbol, which the first one of them stands for.
        found = {length_of(self._known, inputs, number): number for number in reversed(numbers)}
        return [(number, text) for text, number in found.items() if text is not None]

    def _served(
        self, inputs: Sequence[Any], weights: tuple[int, ...], snapshot: Snapshot, key: str | None
    ) -> Ready | None:
        """Return a program that takes the length of the inputs, in memory or on disk; None if there is none yet."""
        if self._made_of is None or not (self._made_of[0].equals(snapshot) and self._made_of[1] == weights):
            self._made_of, self._lengths = (snapshot, weights), {}
        described = self._described(inputs)
        for number, text in described:
            near = sorted(capacity for known, capacity in self._lengths if known == text and capacity >= inputs[number])
            for found in (self._lengths[text, capacity] for capacity in near):
                if inputs[number] in found.at.serves:
                    return found
        for number, text in described if key else ():
            for capacity in capacities_of(inputs[number]):
                if (text, capacity) in self._lengths:
                    continue
                found = load(self._kept, with_length(self._key[2], text, capacity, self._key[3]))
                if found is not None and found.at is not None:
                    self._lengths[text, capacity] = found
                    count("loaded")
                    if inputs[number] in found.at.serves:
                        return found
        return None

    def _at_capacity(self, program: OpenProgram, inputs: Sequence[Any], key: str | None) -> Ready | None:
        """Return a program that takes the length of the inputs and others, compiled now; None if there is none."""
        from .compile_program import compile_program
        from .open_lengths import OpenLengths

        described = self._described(inputs)
        if described and self._open_lengths is None:
            self._open_lengths = OpenLengths(program, self.target)
        for number, text in described:
            try:
                for each in self._open_lengths.programs(number, inputs):
                    where = with_length(self._key[2], text, each.at.capacity, self._key[3]) if key else None
                    made = self._stored(where, *compile_program(each, self.target, self._request.options))
                    self._lengths[text, each.at.capacity] = made
                    return made
            except Exception as error:  # what is wrong with the graph itself is found at its own sizes again
                _logger.info("a graph has kernels for each length: %s", reason_of(error))
        return None

    def _stored(self, key: str | None, compiled: Any, ready: Ready) -> Ready:
        return store(self._kept, key, compiled, ready) if key else ready

    def _opened(self, inputs: Sequence[Any], weights: tuple[int, ...], snapshot: Snapshot) -> OpenProgram | None:
        """Return the graph as torch exports it with symbolic sizes, None if it cannot, or has none."""
        from .open_program import open_program

        known, fixed = self._open, (weights, tuple(each for each in inputs if isinstance(each, float)))
        if self._is_open and (known is None or not (known[0].equals(snapshot) and known[1] == fixed)):
            try:
                self._open = snapshot, fixed, open_program(self._graph, inputs, weights)
                self._open_lengths = None
            except Exception as error:  # torch's exporter raises many types
                _logger.info("a graph is exported for each size by itself: %s", reason_of(error))
                self._is_open, self._open = False, None
        return self._open[2] if self._open is not None else None
