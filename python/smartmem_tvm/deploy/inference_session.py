# SPDX-License-Identifier: Apache-2.0
"""A session: one virtual machine of a compiled model, with its inputs and outputs. Several sessions run at once."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import tvm

from ..errors import UserError
from ..ir.mask_positions import LENGTH
from ..ir.public_functions import MAIN
from ..tune.host import process_cpus
from .arguments import Parameter, TensorKind, arguments
from .bound import Bound, Plan
from .bound_length import BoundLength
from .direct_call import DirectCall, gives_plain, is_plain
from .host_call import HostCall, PinnedCall, is_small, pinned_memory
from .outputs import Output
from .several_sizes import SizeChoice
from .tiles import Tiles
from .weights import Machine

_thread = threading.local()


@dataclass(frozen=True, eq=False)
class Session:
    """Runs a compiled model, one inference at a time; other callers wait.

    Several sessions of one model run at once, on the caller's threads: each has its own virtual machine and
    intermediate tensors, and all read one copy of the weights.

    Attributes
    ----------
    vm : Machine
        Its virtual machine.
    functions : dict
        Name of each function -> its inputs.
    default : str or None
        The function that `run` runs by default.
    stated : callable
        ``stated(outputs, function)``: the outputs in the types that the model states.
    outputs : mapping
        Name of each function -> its outputs, if known.
    turn : context manager
        Held during an inference.
    choose : SizeChoice, optional
        Of a model of several sizes: chooses the function by the shapes of the inputs.
    tiles : Tiles, optional
        Of a model with an open dimension: cuts the inputs of `run`.
    every : mapping
        Name of each function -> the names of its inputs with those of its caches, for `run_whole`.
    """

    vm: Machine
    functions: Mapping[str, Sequence[Parameter]]
    default: str | None = MAIN
    stated: Callable[[list[np.ndarray], str], list[np.ndarray]] = lambda outputs, _: outputs
    outputs: Mapping[str, Sequence[Output]] = field(default_factory=dict)
    turn: contextlib.AbstractContextManager = field(default_factory=threading.Lock)
    choose: SizeChoice | None = None
    tiles: Tiles | None = None
    every: Mapping[str, Sequence[str]] = field(default_factory=dict)
    _direct: dict[str | None, DirectCall | PinnedCall] = field(default_factory=dict, init=False, repr=False)
    _host_calls: dict[str, HostCall | None] = field(default_factory=dict, init=False, repr=False)

    def another(self) -> Session:
        """Return another session of the same model.

        Raises
        ------
        UserError
            If the model has a memory budget.
        """
        return replace(self, vm=self.vm.another(), turn=self.turn if self.vm.takes_turns else threading.Lock())

    def run(self, /, *inputs, function: str | None = None, **named) -> list[np.ndarray]:
        """Run a function of the model; see `Compiled.run`."""
        if function is None and self.tiles is not None:
            return self.tiles.run(self.run, inputs, named, self._pinned)
        if function is None and self.choose is not None:
            function = self.choose(inputs, named)
        with self.turn:
            direct = self._direct.get(function)
            if direct is not None and (hasattr(_thread, "kept") or not self.vm.on_cpu):
                found = direct.run(inputs, named)
                if found is not None:
                    return found
            return self._run(function, inputs, named)

    @property
    def caches(self) -> dict[str, tvm.runtime.Tensor]:
        """Return the session's caches, which the model reads and writes where they are: input name -> tensor."""
        return dict(self.vm.caches.tensors) if self.vm.caches is not None else {}

    def run_whole(self, inputs: Sequence | Mapping) -> list[np.ndarray]:
        """Run the model as its file has it; see `Runnable.run_whole`."""
        held = self.vm.caches
        if held is None:
            return self.run(*([inputs] if isinstance(inputs, Mapping) else inputs))
        given = held.put_back(self._by_name(inputs))
        function = self.choose((), given) if self.choose is not None else self._named(None)
        return held.whole(function, self.run(given, function=function))

    def without_caches(self, inputs: Sequence | Mapping) -> list:
        """Return those of the file's inputs that `run` takes; see `Runnable.without_caches`."""
        if self.vm.caches is None:
            return list(inputs.values() if isinstance(inputs, Mapping) else inputs)
        return [each for name, each in self._by_name(inputs).items() if name not in self.vm.caches.tensors]

    def _by_name(self, inputs: Sequence | Mapping) -> dict:
        names = next(iter(self.every.values()))
        return dict(inputs) if isinstance(inputs, Mapping) else dict(zip(names, inputs))

    def function_of(self, inputs: Sequence) -> str:
        """Return the function that `run` runs for these inputs; see `Runnable.function_of`."""
        return self.choose(inputs, {}) if self.choose is not None else self._named(None)

    def bind(
        self,
        inputs: Mapping[str, object],
        outputs: Mapping[str, object] | None = None,
        states: Mapping[str, str] | None = None,
        function: str | None = None,
    ) -> Bound | BoundLength:
        """Bind buffers for many calls, and let outputs become inputs of the next call.

        Each `Bound.run` computes on the present contents of the buffers. A buffer is never copied if it is contiguous,
        on the session's device, and begins at a multiple of 64 bytes, as all results of a session do. Each run copies
        the contents of any other buffer. Nothing else may write into a buffer during a run. A model with an open length
        is bound at the length of the inputs, of one item, and each run copies them to buffers of a capacity
        (`BoundLength`).

        Parameters
        ----------
        inputs : mapping
            Input name -> array of numpy, or tensor of torch or TVM, of the input's shape and type; for all inputs.
        outputs : mapping, optional
            Output name -> array or tensor on the CPU, to which each run copies that output.
        states : mapping, optional
            Output name -> name of the input that takes its value in the next run, without a copy: recurrent states and
            caches. The buffer bound for that input holds the first value.
        function : str, optional
            As for `run`.

        Raises
        ------
        UserError
            If a name is unknown or missing, or a buffer has another shape or type.
        """
        at = self.tiles.at_length(inputs) if function is None and self.tiles is not None else None
        if at is not None:
            names = [each.name for each in self.outputs[at.function]]
            bind = lambda whole, going_back: self.bind(whole, {}, going_back, at.function)  # noqa: E731
            return BoundLength(at, bind, names, inputs, outputs or {}, states or {})
        if function is None and self.choose is not None:
            function = self.choose((), inputs)
        name = self._named(function)
        plan = Plan(name, self.functions[name], self.outputs.get(name, ()), self.vm.device, self.vm.tensor, self.stated)
        return Bound(plan, self.vm[name], self._at_turn, inputs, outputs or {}, states or {})

    def host_call(self, function: str) -> HostCall | None:
        """Return a call of a function with caches or a length through memory that the device and this machine read.

        None if there is no such memory, or the function may not copy its inputs first.
        """
        memory, params = pinned_memory(self.vm.device), self.functions[function]
        plain = all(isinstance(each.kind, TensorKind) and not each.kind.stated for each in params)
        if memory is None or not self._copies_inputs(function) or not plain:
            return None
        turn = self.turn  # not `self`, which would keep the session alive: it has this call
        return HostCall(self.vm[function], params, memory, self.vm.device, lambda: turn)

    def _copies_inputs(self, function: str) -> bool:
        """Whether a function copies its inputs first (`FixAddresses`)."""
        held, params = self.vm.caches, self.functions[function]
        return bool(held is not None and held.plan.last) or any(each.name == LENGTH for each in params)

    def _pinned(self, function: str, values: Sequence, fill: Callable, take: Callable) -> list[np.ndarray] | None:
        """Run a function with a length as `HostCall.run` does; None if it has no such call, or takes other types."""
        if function not in self._host_calls:
            with self.turn:  # no memory may be allocated while another thread records a graph
                self._host_calls[function] = self.host_call(function)
        call = self._host_calls[function]
        if call is None or not call.takes(values):
            return None
        return self.stated(call.run(fill, take), function)

    @contextlib.contextmanager
    def _at_turn(self) -> Iterator[None]:
        with self.turn:
            self._make_pool()
            yield

    def _make_pool(self) -> None:
        """Let TVM create the worker threads of this thread before their first use."""
        if self.vm.on_cpu and not hasattr(_thread, "kept"):
            with kept_cores():
                tvm.runtime.num_threads()

    def _run(self, function: str | None, inputs: Sequence, named: Mapping) -> list[np.ndarray]:
        """Run the general way, and prepare a direct call for later inferences if the function allows it."""
        name = self._named(function)
        self._make_pool()
        params, known = self.functions[name], self.outputs.get(name, ())
        run = self.vm[name]
        result = run(*arguments(name, params, inputs, named, self.vm.device, self.vm.tensor))
        arrays = self.stated(to_numpy(result), name)
        memory = None if self.vm.on_cpu else pinned_memory(self.vm.device)
        if function in self._direct or (memory is None and not self.vm.on_cpu) or not is_plain(params):
            return arrays
        if gives_plain(result, arrays, known):
            if memory is None:
                self._direct[function] = DirectCall(run, params, known)
            elif is_small(params, arrays):
                call = HostCall(run, params, memory, self.vm.device, reads=self._copies_inputs(name))
                self._direct[function] = PinnedCall(call, params)
        return arrays

    def _named(self, name: str | None) -> str:
        found = name if name is not None else self.default
        if found is None:
            raise UserError(f"This model has the functions {quoted(self.functions)}: name one, as function='NAME'.")
        if found not in self.functions:
            raise UserError(f"This model has no function '{found}': use {quoted(self.functions)}.")
        return found


@contextlib.contextmanager
def kept_cores() -> Iterator[None]:
    """Restore this thread's CPU affinity after TVM changes it inside the context; the main thread keeps TVM's.

    TVM creates a pool of workers for each thread that runs kernels, and then binds the thread itself to a core: to core
    0, or to a given one. Other processes may run on that core while other cores are idle.
    """
    if threading.current_thread() is threading.main_thread() or not hasattr(os, "sched_getaffinity"):
        yield
        _thread.kept = True
        return
    own, inherited = os.sched_getaffinity(0), os.sched_getaffinity(os.getpid())
    yield
    os.sched_setaffinity(0, process_cpus() if own == inherited else own)
    _thread.kept = True


def quoted(names: Iterable[str]) -> str:
    """Return names in quotes, separated by commas, for a sentence."""
    return ", ".join(f"'{name}'" for name in names)


def to_numpy(result) -> list[np.ndarray]:
    """Return the outputs of a VM call as a flat list of arrays; other objects, like effects of ``nn``, stay in it."""
    if hasattr(result, "numpy"):
        return [result.numpy()]
    if isinstance(result, bool | int | float):
        return [np.asarray(result)]
    if not isinstance(result, Iterable):
        return [result]
    return [array for item in result for array in to_numpy(item)]
