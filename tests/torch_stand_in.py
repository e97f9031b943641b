# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for torch, its exporter and TVM's importer of its programs: torch is too large to install for a test."""

import contextlib
import importlib.util
import logging
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import onnx

from smartmem_tvm.frontend import from_onnx

SAVED = b"a program"
ATTENTION = "aten.scaled_dot_product_attention.default"


class Tensor:
    """The part of torch.Tensor that is used."""

    def __init__(self, array):
        self.array, self.dtype = array, str(array.dtype)

    def numpy(self):
        """Its numbers."""
        return self.array


class Size:
    """The part of torch.SymInt that is used: an expression of sympy, here one symbol times a factor."""

    def __init__(self, symbol, factor=1):
        self.node = SimpleNamespace(expr=Expression(symbol, factor))


class Expression:
    """The part of sympy.Expr that is used."""

    def __init__(self, symbol, factor):
        self.symbol, self.factor, self.is_Symbol, self.is_number = symbol, factor, factor == 1, False

    @property
    def free_symbols(self):
        """Return the symbols of the expression."""
        return {Expression(self.symbol, 1)}

    def subs(self, known):
        """Return the expression's value if the symbol is known, else itself."""
        value = {each.symbol: number for each, number in known.items()}.get(self.symbol)
        return self if value is None else _Number(value * self.factor)

    def __eq__(self, other):
        return str(self) == str(other)

    def __hash__(self):
        return hash(str(self))

    def __str__(self):
        return self.symbol if self.is_Symbol else f"{self.factor}*{self.symbol}"


class _Number(int):
    is_number = True


class Program:
    """The part of torch.export.ExportedProgram that is used: its inputs, and its module's results."""

    def __init__(self, inputs=None, range_constraints=None, rank=4, compute=None):
        self.range_constraints = range_constraints or {}
        self.inputs, self.rank, self.compute = inputs or {}, rank, compute
        self.graph_signature = SimpleNamespace(user_inputs=("image",), user_outputs=("softmax",), output_specs=[])
        self.example_inputs = ((Tensor(np.zeros(1)), None), {})
        self.decompositions = None
        query = SimpleNamespace(meta={"val": SimpleNamespace(ndim=rank)})
        nodes = [SimpleNamespace(op="call_function", name="attention", target=ATTENTION, args=(query,))]
        nodes += [
            SimpleNamespace(op="placeholder", name=name, target=name, meta={"val": SimpleNamespace(shape=shape)})
            for name, shape in self.inputs.items()
        ]
        result = SimpleNamespace(meta={"val": SimpleNamespace(dtype="torch.float32")})
        nodes.append(SimpleNamespace(op="output", target="output", args=((result,),)))
        self.graph = SimpleNamespace(nodes=nodes)
        self.graph_module = SimpleNamespace(modules=lambda: [SimpleNamespace(graph=self.graph)])

    def run_decompositions(self, table=()):
        """Return another program, which notes its arguments, and writes to the same log."""
        new = Program(self.inputs, self.range_constraints, self.rank, self.compute)
        new.decompositions, new.graph_signature = table, self.graph_signature
        return new

    def module(self):
        """Return the function that computes the results."""
        return lambda *args: {"a": self.compute(*args), "b": None}


def operator(name, *arguments, tags=(), **defaults):
    """Return the used part of torch's OpOverload: its tags, and the names of its arguments with their defaults."""
    names = [*((each, False, None) for each in arguments), *((each, True, value) for each, value in defaults.items())]
    schema = SimpleNamespace(
        arguments=[
            SimpleNamespace(name=each, has_default_value=lambda known=known: known, default_value=value)
            for each, known, value in names
        ],
        is_mutable=name.endswith("_"),
    )
    return _Operator(name, schema, [SimpleNamespace(name=tag) for tag in tags])


class _Operator:
    def __init__(self, name, schema, tags):
        self.name, self._schema, self.tags = name, schema, tags

    def __str__(self):
        return self.name


def bounds(lower, upper):
    """Return the used part of torch's value ranges."""
    return SimpleNamespace(lower=lower, upper=upper)


def install(monkeypatch, model):
    """Put the stand-ins where torch would be; programs are translated into `model`.

    Returns what was called, and what to raise or to return instead.
    """
    state = SimpleNamespace(calls=[], exports=[], optimized=[], program=Program())
    state.error = state.refusal = state.missing = None
    state.refused_always = True
    proto = model if isinstance(model, onnx.ModelProto) else onnx.load(model)
    state.values = {each.name: np.array(onnx.numpy_helper.to_array(each)) for each in proto.graph.initializer}

    def from_exported_program(program, **options):
        state.calls.append((program, options))
        if state.error:
            raise state.error
        return from_onnx(model)

    def export(program, **options):
        state.exports.append((program, options))
        if state.refusal and (state.refused_always or program.decompositions is None):
            raise RuntimeError("a page of advice") from state.refusal
        return _exported(proto, state.values, program)

    def load(path):
        logging.getLogger("torch").warning("a page of advice")
        if path.read_bytes() != SAVED:
            raise RuntimeError("PytorchStreamReader failed reading zip archive")
        return state.program

    modules = _modules(export, load, from_exported_program)
    modules["onnxscript"] = ModuleType("onnxscript")
    modules["onnxscript"].optimizer = SimpleNamespace(
        optimize=lambda model, **given: state.optimized.append((model, given))
    )
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    known = importlib.util.find_spec

    def find_spec(name, *more):
        return (None if state.missing == name else True) if name in ("torch", "onnxscript") else known(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    return state


def _exported(proto, values, program):
    """Return an ONNXProgram, whose file has no initializers; they are tensors of torch."""
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    del bare.graph.initializer[:]
    initializers = {
        name: SimpleNamespace(const_value=SimpleNamespace(numpy=lambda a=array: a)) for name, array in values.items()
    }

    def save(path, include_initializers):
        assert not include_initializers
        onnx.save(bare, path)

    model = SimpleNamespace(graph=SimpleNamespace(initializers=initializers))
    return SimpleNamespace(save=save, model=model, exported_program=program)


def _modules(export, load, from_exported_program):
    names = ("torch", "torch.export", "torch.onnx", "torch.utils", "torch.utils._pytree", "tvm.relax.frontend.torch")
    modules = {name: ModuleType(name) for name in names}
    torch = modules["torch"]
    torch.onnx, torch.export, torch.utils = (modules[f"torch.{name}"] for name in ("onnx", "export", "utils"))
    torch.utils._pytree = modules["torch.utils._pytree"]
    torch.utils._pytree.tree_map_only = _map_only
    torch.utils._pytree.tree_leaves = lambda tree: list(tree.values())
    torch.Tensor, torch.from_numpy, torch.bfloat16, torch.__version__ = Tensor, Tensor, "bfloat16", "2.13"
    torch.no_grad = contextlib.nullcontext
    torch.ops = SimpleNamespace(
        aten=SimpleNamespace(
            scaled_dot_product_attention=SimpleNamespace(default="attention"),
            view=SimpleNamespace(default="view"),
            _scaled_dot_product_attention_math=lambda *given, **options: (given, "weights"),
        )
    )
    torch.export.default_decompositions = lambda: {"other": "rule"}
    torch.export.load, torch.export.ExportedProgram, torch.onnx.export = load, Program, export
    translator = "tvm.relax.frontend.torch.exported_program_translator"
    modules["tvm.relax.frontend.torch"].__path__, modules[translator] = [], ModuleType(translator)
    modules[translator].ExportedProgramImporter = lambda: SimpleNamespace(
        from_exported_program=from_exported_program, env={}, block_builder=None
    )
    return modules


def _map_only(kind, change, tree):
    if isinstance(tree, tuple):
        return tuple(_map_only(kind, change, each) for each in tree)
    return change(tree) if isinstance(tree, kind) else tree
