# SPDX-License-Identifier: Apache-2.0
"""A compiled model in this process: its code, its weights, and the facts recorded while it was compiled."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import tvm

from ..analysis.texel_reads import TexelReads
from ..huge_pages import use_huge_pages
from ..ir.cache_rows import caches_of
from ..ir.public_functions import default_function, entry_functions, public_functions
from ..ir.several_sizes import size_functions, tile_groups
from ..narrow import OUTPUT_TYPES, as_stated, stated_types
from ..target import device_of, has_textures, is_gpu, is_opencl
from .arguments import Parameter, parameters
from .caches import CachePlan
from .inference_session import Session
from .outputs import outputs
from .runnable import Runnable
from .several_sizes import SizeChoice
from .streamed import StreamedMachine
from .tiles import Tiles
from .weights import Machine, Weight, write_weights


@dataclass
class Compiled(Runnable):
    """A compiled model.

    Attributes
    ----------
    executable : tvm.relax.VMExecutable
        TVM's executable; its functions take the inputs and then the weights. `deploy.export.save` saves both.
    graph : tvm.IRModule
        The module after the graph passes, one ``call_tir`` per kernel, with the decisions of the passes on it. Its
        large constants are parameters: the values are in `weights`, in the layout that the kernels read.
    weights : list of Weight
        The large constants and the memory scope of each, see `deploy.weights`.
    rules : dict
        Kernel name -> the rule that made its schedule, see `schedule.schedule_kernels.kernel_rules`.
    plans : dict
        Kernel name -> its rule's decisions and price, and why the rules before it did not take the kernel, see
        `schedule.schedule_kernels.kernel_plans`.
    tuning : dict
        Kernel name -> facts of its tuning record, if there is one, see `tune.apply_records.tuning_of`.
    kernels_per_graph : list of int
        Kernels in each CUDA graph of one inference, in their order; the others are launched one by one.
    texel_reads : dict
        OpenCL kernel -> the share that it uses of the texels that it reads, see `analysis.texel_reads`.
    memory : dict
        Memory of an inference by the default function, and the tensors in it over time, see
        `deploy.memory_plan.memory_plan`.
    size_memory : dict
        Of a model of several sizes: function -> memory of its inference. Otherwise empty.
    signatures : dict
        Kernel -> its parameters, see `deploy.signatures.signatures`.
    weight_streams : dict
        With a memory budget: function -> its attribute `ir.sizes.STREAM`; the functions then read `weights` from a
        file. Otherwise empty.
    size_weights : dict
        Of a model of several sizes: function -> bytes of the weights that its kernels read. Otherwise empty.
    seconds : dict
        Wall time of each step: ``passes`` (this package's graph passes and schedules) and ``codegen`` (TVM's).
    """

    executable: object
    graph: tvm.IRModule
    target: tvm.target.Target
    weights: list[Weight] = field(default_factory=list)
    rules: dict[str, dict] = field(default_factory=dict)
    plans: dict[str, dict] = field(default_factory=dict)
    tuning: dict[str, dict] = field(default_factory=dict)
    kernels_per_graph: list[int] = field(default_factory=list)
    texel_reads: dict[str, TexelReads] = field(default_factory=dict)
    memory: dict = field(default_factory=dict)
    size_memory: dict[str, dict] = field(default_factory=dict)
    signatures: dict[str, list[tuple]] = field(default_factory=dict)
    weight_streams: dict[str, dict] = field(default_factory=dict)
    size_weights: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @cached_property
    def vm(self) -> Machine:
        """Return a virtual machine on the first device of the target's kind, with the weights.

        Raises
        ------
        UserError
            If this machine has no such device.
        """
        return self.machine()

    def machine(self, device: tvm.runtime.Device | None = None) -> Machine:
        """Return a new virtual machine on `device`, by default the first one of the target's kind."""
        if self.weight_streams:
            return self._streamed()
        device = device if device is not None else device_of(self.target)
        takers = entry_functions(self.graph)
        if device.dlpack_device_type() == tvm.cpu().dlpack_device_type():
            use_huge_pages((each.tensor.data_ptr(), each.nbytes) for each in self.weights)
        return Machine(self.executable, self.weights, device, has_textures(self.target), takers, self.caches)

    def _streamed(self) -> StreamedMachine:
        """Return a machine that reads the weights from a file of its own."""
        folder = tempfile.TemporaryDirectory(prefix="smartmem-weights-")
        file = Path(folder.name) / "weights.bin"
        places = write_weights(self.weights, file)
        return StreamedMachine(self.executable, file, places, self.weight_streams, owned=folder)

    def build_kernels(self, device: tvm.runtime.Device | None = None) -> int:
        """Have an OpenCL driver compile all kernels now, in parallel, instead of each at its first launch.

        Returns
        -------
        int
            Number of compiled kernels; the others were cached. 0 for any other target.
        """
        if not is_opencl(self.target):
            return 0
        device = device if device is not None else device_of(self.target)
        return int(tvm.get_global_func("smartmem.opencl.build")(self.executable.mod, device.index))

    @cached_property
    def functions(self) -> dict[str, list[Parameter]]:
        """Return the inputs of each public function that a caller gives, by name, sorted."""
        return {name: self.caches.inputs(name, each) for name, each in self._parameters.items()}

    @cached_property
    def _parameters(self) -> dict[str, list[Parameter]]:
        return {name: parameters(self.graph, name) for name in public_functions(self.graph)}

    @cached_property
    def caches(self) -> CachePlan:
        """Return the caches of the public functions."""
        caches = {name: caches_of(self.graph[name]) for name in self._parameters}
        return CachePlan.of(caches, self._parameters, last=is_gpu(self.target))

    @cached_property
    def _first(self) -> Session:
        graph = self.graph  # not `self`, which would keep the session and its device memory alive
        default = default_function(graph)
        # Within a memory budget outputs lie in the arena.
        caches = self.caches
        found = {
            name: caches.outputs(name, outputs(graph, name, kept=bool(self.weight_streams))) for name in self.functions
        }
        sizes = {name: self.functions[name] for name in self.sizes}
        choose = SizeChoice(sizes) if sizes else None
        tiles = Tiles(self.open, sizes) if self.open else None

        def stated(arrays: list, name: str) -> list:
            dtypes = stated_types(graph, OUTPUT_TYPES, name)
            return as_stated(arrays, None if dtypes is None else caches.outputs(name, dtypes))

        every = {name: [each.name for each in params] for name, params in self._parameters.items()}
        return Session(self.vm, self.functions, default, stated, found, choose=choose, tiles=tiles, every=every)

    @property
    def sizes(self) -> list[str]:
        """Return the functions of a model of several sizes, in the order of the sizes; none for any other model."""
        return size_functions(self.graph)

    @property
    def open(self) -> list[dict]:
        """Return the tiles of a model with an open dimension (`ir.several_sizes.tile_groups`); none for any other."""
        return tile_groups(self.graph)
