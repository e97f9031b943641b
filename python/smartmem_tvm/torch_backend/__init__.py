# SPDX-License-Identifier: Apache-2.0
"""``torch.compile(model, backend="smartmem")``: compile graphs of torch with this package, and leave others to torch.

torch finds `smartmem` by the entry point ``torch_dynamo_backends`` of setup.py. Importing this module imports neither
torch nor TVM; torch calls `smartmem`, which then imports TVM.

The modules::

    counts    numbers of compiled graphs, graphs left to torch, and calls
    request   the options of ``torch.compile``
    refusals  reasons to leave a graph to torch
    memory    earlier refusals of this process
    program   a graph of torch -> a program that `smartmem_tvm.from_torch` takes, weights inside or as inputs
    snapshot  detects changes of weights that were compiled in
    kernels   a compiled program, called with tensors of torch that share their memory with TVM
    graph     one graph: kernels for each shape, compiled again after changes of weights, or torch
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
