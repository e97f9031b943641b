# SPDX-License-Identifier: Apache-2.0
"""``torch.compile(model, backend="smartmem")``: compile graphs of torch with this package, and leave others to torch.

torch finds `smartmem` by the entry point ``torch_dynamo_backends`` of setup.py. Importing this module imports neither
torch nor TVM; torch calls `smartmem`, which then imports TVM.

The modules::

    counts           numbers of compiled graphs, graphs left to torch, and calls
    request          the options of ``torch.compile``
    refusals         reasons to leave a graph to torch
    known_refusals   earlier refusals of this process
    graph_key        equal descriptions of equal graphs, for refusals and for files
    program          a graph of torch -> a program of ``torch.export`` with fixed sizes, weights inside or as inputs
    wrapped_numbers  numbers that torch passes as tensors, as numbers
    open_program     the same with symbolic sizes, which are bound for each call's sizes
    open_lengths     which of these sizes is a length, and the program at a capacity of it
    at_capacity      what a program at a capacity takes and returns
    compile_program  a program -> code and weights
    kept_programs    code and weights on disk, for other processes
    source           loads the code of a graph from disk, or compiles it
    snapshot         detects changes of weights that were compiled in
    call_compiled    code, called with tensors of torch that share their memory with TVM
    run_graph        one graph: kernels for each shape, compiled again after changes of weights, or torch
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from .counts import Counts, counts, reset_counts

if TYPE_CHECKING:
    import torch

__all__ = ["Counts", "cache_folder", "clear_cache", "counts", "reset_counts", "smartmem"]


def cache_folder() -> Path | None:
    """Return the folder of compiled graphs, None if they are not kept (``SMARTMEM_TORCH_CACHE=0``)."""
    from .kept_programs import kept_programs

    return kept_programs().folder


def clear_cache() -> int:
    """Delete all compiled graphs on disk, also those of other processes, and return the number of files.

    What a process has loaded stays with it.
    """
    from .kept_programs import kept_programs

    return kept_programs().clear()


def smartmem(graph: torch.fx.GraphModule, inputs: Sequence[Any], **given: Any) -> Callable:
    """Compile a graph that ``torch.compile`` has captured; torch calls this as ``backend="smartmem"``.

    Parameters
    ----------
    graph : torch.fx.GraphModule
        The captured graph: its inputs are tensors, weights included, and sizes.
    inputs : sequence
        The inputs of its first call.
    **given
        ``options`` of ``torch.compile``: ``target``, ``freeze`` and the fields of `smartmem_tvm.Options`, see
        `request.Request`.

    Returns
    -------
    callable
        A function with the graph's inputs and results. A graph that cannot be compiled runs in torch; `counts` has
        the number of these and the reasons.

    Raises
    ------
    UserError
        If torch is not installed, an option does not exist, or this machine lacks the device.
    """
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise UserError("backend 'smartmem' needs torch: run `pip install smartmem-tvm[torch]`.") from error
    from .request import read_request
    from .run_graph import compile_graph

    return compile_graph(graph, inputs, read_request(**given))
