# SPDX-License-Identifier: Apache-2.0
"""Run one graph of ``torch.compile``: with kernels for each shape of its inputs, or by torch."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from threading import RLock
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd

from ..errors import UserError, reason_of
from ..tvm_lock import one_at_a_time
from .call_compiled import Kernels
from .counts import count, left_to_torch
from .graph_key import signature_of
from .known_refusals import recall, remember
from .refusals import NotFunctional, Refusal, strange_tensors, training
from .request import Request
from .snapshot import Snapshot
from .source import Source
from .wrapped_numbers import as_numbers, with_numbers, wrapped_numbers

_logger = logging.getLogger(__package__)
MOST_SHAPES = 64  # of one graph, in memory; as many sizes as a model has at most (`frontend.several_sizes.MOST_SIZES`)
MOST_NUMBERS = 4  # values of numbers in the code, each of which has kernels. Chosen: more are data, as a temperature
MOST_CHANGES = 2  # of weights: afterwards they become inputs, so that a loop of training and validation stops compiling

# While any thread exports a program, torch records the name of every called compiled function in a variable that all
# threads share, and fails if two threads do so; it skips functions of this name.
_UNNOTED = "__torch_dispatch__"


def compile_graph(graph: torch.fx.GraphModule, inputs: Sequence[Any], request: Request) -> Callable:
    """Return the callable for `torch_backend.smartmem`."""
    places = wrapped_numbers(graph, inputs)
    if not places:
        return _compiled(graph, inputs, request)
    made = _compiled(with_numbers(graph, inputs, places), as_numbers(inputs, places), request)

    def run(*inputs: Any) -> Sequence:
        return made(*as_numbers(inputs, places))

    run.__name__ = _UNNOTED
    return run


def _compiled(graph: torch.fx.GraphModule, inputs: Sequence[Any], request: Request) -> Callable:
    given, inputs = inputs, [_as_number(each) for each in inputs]
    reason = training(graph) or strange_tensors(inputs)
    if reason is not None:
        return _left(graph, reason)
    # Wrong options are an error, not a reason to let torch run the graph.
    request.target_for(_device(inputs).type)
    made = Graph(graph, request, inputs, _weights(graph, inputs) if request.freeze else ())
    try:
        made.prepare(inputs)
    except NotFunctional as error:
        _logger.info("a graph is made functional first: %s", error)
        return _made_functional(graph, given, request)
    return made


def _made_functional(graph: torch.fx.GraphModule, inputs: Sequence[Any], request: Request) -> Callable:
    """Functionalize a graph by torch: the inner graph returns written values and bases of views; torch applies them.

    Weights are inputs of the inner graph, since torch does not report which inputs are weights.
    """

    def compiler(inner: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable:
        return Graph(inner, request, [_as_number(each) for each in examples], functional=True)

    return aot_autograd(fw_compiler=compiler)(graph, inputs)


class Graph:
    """A graph with kernels for each combination of shapes and numbers of its calls.

    Parameters
    ----------
    inputs : sequence
        Inputs of a call.
    weights : collection of int
        Positions of the inputs that are compiled in.
    functional : bool
        Whether the graph neither writes into its inputs nor returns views.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        request: Request,
        inputs: Sequence[Any],
        weights: Collection[int] = (),
        functional: bool = False,
    ):
        self._graph, self._weights = graph, tuple(weights)
        self._request, self._device = request, _device(inputs)
        self._own = [*graph.parameters(), *graph.buffers()]
        self._made: OrderedDict[tuple, tuple[Kernels, Snapshot] | None] = OrderedDict()
        self._numbers = [at for at, each in enumerate(inputs) if not isinstance(each, torch.Tensor)]
        self._floats: set[tuple[float, ...]] = set()
        self._functional, self._changes = functional, 0
        self._source = Source(graph, request, self._device, functional)
        self._lock = RLock()
        self.__name__ = _UNNOTED

    def __call__(self, *inputs: Any) -> Sequence:
        """Run on the inputs, with kernels if there are any."""
        kernels = self.prepare(inputs)
        count("calls" if kernels else "eager_calls")
        return kernels(inputs) if kernels else self._graph(*inputs)

    def prepare(self, inputs: Sequence[Any]) -> Kernels | None:
        """Return the kernels for inputs, compiled at the first call; None if torch has to run the graph."""
        # Variable sizes are separate inputs; torch guards all other properties of tensors.
        key = tuple(inputs[at] for at in self._numbers)
        with self._lock:
            if key not in self._made:
                self._made[key] = self._make(inputs)
                if len(self._made) > MOST_SHAPES:
                    self._made.popitem(last=False)
            made = self._made[key]
            if made is not None and not made[1].holds(self._watched(inputs)):
                made = self._made[key] = self._again(inputs)
            self._made.move_to_end(key)
            return made and made[0]

    def _watched(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        return [*(inputs[at] for at in self._weights), *self._own]

    def _again(self, inputs: Sequence[Any]) -> tuple[Kernels, Snapshot] | None:
        """Compile again with changed weights; drop the kernels of all shapes."""
        self._made = OrderedDict((key, made) for key, made in self._made.items() if made is None)
        self._changes += 1
        if self._changes > MOST_CHANGES:
            _logger.info("weights have changed %d times: they are inputs of kernels from now on", self._changes)
            self._weights = ()
            if self._own:
                left_to_torch("constants of the graph itself change again and again")
                return None
        count("recompiled")
        return self._make(inputs)

    def _make(self, inputs: Sequence[Any]) -> tuple[Kernels, Snapshot] | None:
        floats = tuple(inputs[at] for at in self._numbers if isinstance(inputs[at], float))
        if floats not in self._floats and len(self._floats) >= MOST_NUMBERS:
            left_to_torch("numbers of its code change again and again")
            return None
        self._floats.add(floats)
        signature = signature_of(self._graph, inputs, self._weights, self._functional, self._request)
        refusal = recall(signature)
        if refusal is None:
            try:
                made = self._compiled(inputs)
                self._functional = True
                return made
            except Exception as error:  # torch's exporter, TVM and this package raise many types
                refusal = _as_refusal(error)
                _logger.debug("why a graph is left to torch", exc_info=True)
            remember(signature, refusal)
        if isinstance(refusal, NotFunctional) and not self._functional:
            raise type(refusal)(*refusal.args)
        left_to_torch(str(refusal))
        return None

    @one_at_a_time
    def _compiled(self, inputs: Sequence[Any]) -> tuple[Kernels, Snapshot]:
        snapshot = Snapshot(self._watched(inputs))  # before weights are read: any later write counts as a change
        target = self._source.target
        ready = self._source.ready(inputs, self._weights, snapshot)
        known = (made[0] for made in self._made.values() if made is not None and made[0].ready is ready)
        return next(known, None) or Kernels(ready, target, self._device), snapshot


def _as_refusal(error: Exception) -> Refusal:
    if isinstance(error, Refusal):
        return error
    return Refusal(str(error) if isinstance(error, UserError) else reason_of(error))


def _left(graph: torch.fx.GraphModule, reason: str) -> Callable:
    left_to_torch(reason)

    def run(*inputs: Any) -> Sequence:
        count("eager_calls")
        return graph(*inputs)

    run.__name__ = _UNNOTED
    return run


def _weights(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> list[int]:
    """Return the positions of parameters and buffers of modules, whose changes torch can detect."""
    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    kept = ((node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type") for node in nodes)
    return [
        at
        for at, (static, each) in enumerate(zip(kept, inputs, strict=True))
        if static and isinstance(each, torch.Tensor) and not each.is_inference()
    ]


def _device(inputs: Sequence[Any]) -> torch.device:
    """Return the device of all tensors, see `refusals.strange_tensors`."""
    return next(each.device for each in inputs if isinstance(each, torch.Tensor))


def _as_number(value: Any) -> Any:
    """Return a variable size as its number in the first call."""
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value.node.hint
    return value
