# SPDX-License-Identifier: Apache-2.0
"""One virtual machine of a compiled model, with what a caller gives and gets: several of them run at once."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import tvm

from ..errors import UserError
from ..ir.functions import MAIN
from ..tune.host import process_cpus
from .arguments import Parameter, arguments
from .bound import Bound, Plan
from .direct_call import DirectCall, gives_plain, is_plain
from .outputs import Output
from .weights import Machine

_thread = threading.local()


@dataclass(frozen=True, eq=False)
class Session:
    """Runs a compiled model, one inference at a time; others that want it meanwhile wait.

    Sessions of one model run at once, on threads of the caller's: each has a virtual machine and tensors between
    kernels of its own, and all of them read one copy of the weights.

    Attributes
    ----------
    vm : Machine
        Its virtual machine.
    functions : dict
        Name of each function -> its inputs.
    default : str or None
        The function that `run` runs unless told otherwise.
    stated : callable
        ``stated(outputs, function)``: the outputs in the types that the model states.
    outputs : mapping
        Name of each function -> its outputs, as far as they are known.
    turn : context manager
        Is held during an inference.
    """

    vm: Machine
    functions: Mapping[str, Sequence[Parameter]]
    default: str | None = MAIN
    stated: Callable[[list[np.ndarray], str], list[np.ndarray]] = lambda outputs, _: outputs
    outputs: Mapping[str, Sequence[Output]] = field(default_factory=dict)
    turn: contextlib.AbstractContextManager = field(default_factory=threading.Lock)
    _direct: dict[str | None, DirectCall] = field(default_factory=dict, init=False, repr=False)

    def another(self) -> Session:
        """A session of the same model beside this one.

        Raises
        ------
        UserError
            If the model has a memory budget.
        """
        return replace(self, vm=self.vm.another(), turn=self.turn if self.vm.takes_turns else threading.Lock())

    def run(self, /, *inputs, function: str | None = None, **named) -> list[np.ndarray]:
        """Run a function of the model; see `Compiled.run`."""
        with self.turn:
            direct = self._direct.get(function)
            if direct is not None and hasattr(_thread, "kept"):
                found = direct.run(inputs, named)
                if found is not None:
                    return found
            return self._run(function, inputs, named)

    def bind(
        self,
        inputs: Mapping[str, object],
        outputs: Mapping[str, object] | None = None,
        states: Mapping[str, str] | None = None,
        function: str | None = None,
    ) -> Bound:
        """Keep buffers for many calls, and let outputs go back in as inputs.

        Each `Bound.run` computes on what is in the buffers then. One that kernels can read where it is, is never
        copied: contiguous, on the session's device, and beginning at a multiple of 64 bytes, as all that a session
        returns does; of another one each run copies the numbers. Nothing else may write into a buffer during a run.

        Parameters
        ----------
        inputs : mapping
            Input name -> array of numpy, tensor of torch or TVM, of its shape and type; of all inputs.
        outputs : mapping, optional
            Output name -> array or tensor on the CPU, to which each run copies that output.
        states : mapping, optional
            Output name -> name of the input that it is in the next run, as recurrent states and caches are; no copy is
            made. What was bound for that input is its first value.
        function : str, optional
            As for `run`.

        Raises
        ------
        UserError
            If a name is unknown or missing, or a buffer has another shape or type.
        """
        name = self._named(function)
        plan = Plan(name, self.functions[name], self.outputs.get(name, ()), self.vm.device, self.vm.tensor, self.stated)
        return Bound(plan, self.vm[name], self._at_turn, inputs, outputs or {}, states or {})

    @contextlib.contextmanager
    def _at_turn(self) -> Iterator[None]:
        with self.turn:
            self._make_pool()
            yield

    def _make_pool(self) -> None:
        """Have TVM make the workers of this thread, before they are needed."""
        if self.vm.on_cpu and not hasattr(_thread, "kept"):
            with kept_cores():
                tvm.runtime.num_threads()

    def _run(self, function: str | None, inputs: Sequence, named: Mapping) -> list[np.ndarray]:
        """The general way; it finds out whether there is a direct one for the calls to come."""
        name = self._named(function)
        self._make_pool()
        params, known = self.functions[name], self.outputs.get(name, ())
        run = self.vm[name]
        result = run(*arguments(name, params, inputs, named, self.vm.device, self.vm.tensor))
        arrays = self.stated(to_numpy(result), name)
        if self.vm.on_cpu and function not in self._direct and is_plain(params) and gives_plain(result, arrays, known):
            self._direct[function] = DirectCall(run, params, known)
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
    """Let this thread, if it is not the first one, run on the cores that it may run on, whatever TVM does inside.

    With the pool of workers that TVM makes for each thread which runs kernels it ties the thread itself to a core: all
    of them to core 0, or to the one that it is told, where other processes may run while other cores are idle.
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
    """Names for a sentence."""
    return ", ".join(f"'{name}'" for name in names)


def to_numpy(result) -> list[np.ndarray]:
    """The outputs of a VM call as a flat list of arrays; what is none, as effects of TVM's ``nn``, is in it too."""
    if hasattr(result, "numpy"):
        return [result.numpy()]
    if isinstance(result, bool | int | float):
        return [np.asarray(result)]
    if not isinstance(result, Iterable):
        return [result]
    return [array for item in result for array in to_numpy(item)]
