# SPDX-License-Identifier: Apache-2.0
"""``torch.compile(model, backend="smartmem")``: graphs of torch compiled by this package, the others left to torch.

torch finds `smartmem` by the entry point ``torch_dynamo_backends`` of setup.py. Importing this module imports neither
torch nor TVM; `smartmem` is called by torch, and imports TVM then.

The modules::

    counts    what became of the graphs, and how often they were called
    request   the options of ``torch.compile``
    refusals  what a graph is left to torch for
    memory    what was refused before, in this process
    program   a graph of torch -> a program that `smartmem_tvm.from_torch` takes, weights inside or as inputs
    snapshot  whether weights are still those that were compiled in
    kernels   a compiled program, called with tensors of torch that share their memory with TVM
    graph     one graph: kernels for each shape, again after its weights have changed, or torch
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from .counts import Counts, counts, reset_counts

if TYPE_CHECKING:
    import torch

__all__ = ["Counts", "counts", "reset_counts", "smartmem"]


def smartmem(graph: torch.fx.GraphModule, inputs: Sequence[Any], **given: Any) -> Callable:
    """Compile a graph that ``torch.compile`` has captured; what torch calls as ``backend="smartmem"``.

    Parameters
    ----------
    graph : torch.fx.GraphModule
        As torch captures it: its inputs are tensors and sizes, weights among them.
    inputs : sequence
        What it is about to be called with.
    **given
        ``options`` of ``torch.compile``: ``target``, ``freeze`` and the fields of `smartmem_tvm.Options`, see
        `request.Request`.

    Returns
    -------
    callable
        Takes what the graph takes and returns what it returns. A graph that cannot be compiled runs as torch runs it;
        `counts` says how many and why.

    Raises
    ------
    UserError
        If torch is not installed, an option does not exist, or this machine has no such device.
    """
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise UserError("backend 'smartmem' needs torch: run `pip install smartmem-tvm[torch]`.") from error
    from .graph import compile_graph
    from .request import read_request

    return compile_graph(graph, inputs, read_request(**given))
