# SPDX-License-Identifier: Apache-2.0
"""The dataflow graph of a legalised Relax function: nodes are kernels, edges are tensors.

`read` turns every ``call_tir`` of a dataflow function into a `Node` whose kernel can be rewritten freely. `write` turns
the nodes back into an IRModule, sharing equal PrimFuncs. Any other binding (packed call, opaque PrimFunc, tuple) stays
a node without a kernel: its operands are kept alive, and it is written back unchanged.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary, WeakSet

from tvm import IRModule, ir, relax, tirx

from ..tables.fusion_policy import MOST_INPUTS
from .check_maps import Tensors, check_rewritten, check_same, checks_maps
from .compose import fresh, merge, merge_equal, output_of, simplify, tidy
from .index_map import variables
from .kernel import KEY_AXIS, Kernel, Opaque, emit, factors_attr, parse, shape_of, substitute
from .movement import movement
from .recent import Recent
from .sizes import LARGE, STORABLE, data_bytes
from .strength_reduction import reduces_strength
from .walk import collect

MEMBERS = "smartmem.members"  # function attribute: variable -> operators computed and views read by its kernel
LOG = "smartmem.log"  # module attribute: decisions of the passes, one JSON object each
CALL_TIR = ir.Op.get("relax.call_tir")
# Normal forms by PrimFunc, the kernels in normal form, and the PrimFunc that each of those was written as.
_forms: Recent = Recent(1024)
_normal: WeakSet[Kernel] = WeakSet()
_written: WeakKeyDictionary[Kernel, tirx.PrimFunc] = WeakKeyDictionary()
# A later read through a view would see the overwritten tensor: functions with these calls are not rewritten.
IN_PLACE = ("relax.call_tir_inplace", "relax.call_inplace_packed")
_CALL_IN_PLACE = ir.Op.get(IN_PLACE[0])


@dataclass(eq=False)
class Node:
    """One binding: ``var = kernel(args)``, or ``var = value`` if `kernel` is None; `reason` then says why."""

    var: relax.Var
    value: relax.Expr
    args: list = field(default_factory=list)
    kernel: Kernel | None = None
    reason: str = ""
    members: list[str] = field(default_factory=list)  # operators computed here
    views: list[str] = field(default_factory=list)  # layout operators eliminated into this kernel
    cast: ir.Type | None = None  # match_cast only: the type that is checked at run time
    attrs: dict = field(default_factory=dict)  # further attributes of the PrimFunc that `write` emits

    @property
    def operands(self) -> list:
        """Variables that this node reads."""
        if self.kernel is not None:
            return [a for a in self.args if isinstance(a, ir.Var)]
        return variables(self.value)

    @property
    def constants(self) -> tuple:
        """Inputs of the kernel that are bound to constants: they belong to the operator and are no data operands."""
        return tuple(b for b, arg in zip(self.kernel.inputs, self.args, strict=True) if isinstance(arg, ir.Constant))

    @property
    def large_constants(self) -> dict:
        """Constants of more than `LARGE` bytes and of a storable type, by the buffer that reads them."""
        bound = zip(self.kernel.inputs, self.args, strict=True) if self.kernel is not None else ()
        return {
            buffer: arg
            for buffer, arg in bound
            if isinstance(arg, ir.Constant) and str(buffer.dtype) in STORABLE and data_bytes(arg.value) > LARGE
        }


class Graph:
    """The nodes of one dataflow function in execution order, with an index of the readers of each variable.

    Only the methods may remove and merge nodes: they update the index, in time proportional to the node, not to the
    graph.
    """

    def __init__(self, name: str, function: relax.Function, nodes: list[Node]):
        self.name = name
        self.function = function
        self._nodes = dict.fromkeys(nodes)
        self._producer = {node.var: node for node in nodes}
        self._readers: dict = {}
        for node in nodes:
            self._register(node)

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self._nodes))

    def __contains__(self, node: Node) -> bool:
        return node in self._nodes

    def _register(self, node: Node) -> None:
        for operand in node.operands:
            self._readers.setdefault(operand, {})[node] = None

    def _forget(self, node: Node) -> None:
        for operand in node.operands:
            self._readers[operand].pop(node, None)

    def readers(self, var) -> list[Node]:
        """Nodes that read `var`, each once."""
        return list(self._readers.get(var, ()))

    def producer(self, var) -> Node | None:
        """Node that computes `var`; None for graph inputs and constants."""
        return self._producer.get(var) if isinstance(var, ir.Var) else None

    def is_output(self, var) -> bool:
        """Whether a variable is visible outside the dataflow block."""
        return not isinstance(var, relax.DataflowVar)

    def insert(self, before: Node, nodes: list[Node]) -> None:
        """Put nodes in front of another one."""
        order = list(self._nodes)
        at = order.index(before)
        self._nodes = dict.fromkeys([*order[:at], *nodes, *order[at:]])
        for node in nodes:
            self._producer[node.var] = node
            self._register(node)

    def rebind(self, node: Node, kernel: Kernel, args: list) -> None:
        """Let a node compute the same value with another kernel and other arguments."""
        self._forget(node)
        normalise(node, kernel, args)
        self._register(node)

    def remove(self, node: Node) -> None:
        """Remove a node."""
        self._forget(node)
        del self._nodes[node]
        if self._producer.get(node.var) is node:
            del self._producer[node.var]

    def absorb(self, node: Node, producer: Node, inline_output: bool) -> None:
        """Merge `producer`, which `node` reads, into `node`; the producer itself stays in the graph."""
        self._forget(node)
        _absorb(node, producer, inline_output)
        self._register(node)

    def merged(self, node: Node, producer: Node, inline_output: bool) -> Kernel:
        """Return the kernel that `absorb` would give `node`, without changing the graph."""
        trial = Node(node.var, node.value, node.args, node.kernel)
        _absorb(trial, producer, inline_output)
        return trial.kernel

    def absorbing(self, node: Node, producers: Iterable[tuple[Node, bool]]) -> Node:
        """Return `node` after absorbing several producers one by one, each with its `inline_output`.

        The graph does not change until `take` gets the result.
        """
        trial = Node(node.var, node.value, node.args, node.kernel, members=node.members, views=node.views)
        for producer, inline_output in producers:
            _absorb(trial, producer, inline_output)
        return trial

    def take(self, node: Node, trial: Node) -> None:
        """Give `node` the kernel, arguments, members and views of `trial`, a result of `absorbing`."""
        self._forget(node)
        node.kernel, node.args, node.members, node.views = trial.kernel, trial.args, trial.members, trial.views
        self._register(node)

    def replace_value(self, node: Node, value: relax.Expr, reason: str) -> None:
        """Make `node` a plain binding of `value`."""
        self._forget(node)
        node.kernel, node.args, node.value, node.reason = None, [], value, reason
        self._register(node)

    def rename(self, node: Node, var) -> None:
        """Let `node` compute `var` instead of its own variable."""
        old = node.var
        for reader in self.readers(old):
            self._forget(reader)
            reader.args = [var if a.same_as(old) else a for a in reader.args]
            reader.value = substitute(reader.value, {old: var}) if reader.kernel is None else reader.value
            self._register(reader)
        del self._producer[old]
        node.var = var
        self._producer[var] = node


def graphs(mod: IRModule) -> Iterator[Graph]:
    """Yield the graph of every Relax function of `mod` that is one dataflow block without in-place calls."""
    for gvar, function in mod.functions.items():
        if not isinstance(function, relax.Function) or (function.attrs and "Primitive" in function.attrs):
            continue
        blocks = function.body.blocks if isinstance(function.body, relax.SeqExpr) else []
        if len(blocks) == 1 and isinstance(blocks[0], relax.DataflowBlock) and not _writes_in_place(blocks[0]):
            yield read(mod, gvar.name_hint, function)


def _writes_in_place(block: relax.DataflowBlock) -> bool:
    values = (getattr(binding, "value", None) for binding in block.bindings)
    return any(isinstance(v, ir.Call) and getattr(v.op, "name", "") in IN_PLACE for v in values)


def read(mod: IRModule, name: str, function: relax.Function) -> Graph:
    """Read one function whose body is a single dataflow block."""
    members = json.loads(function.attrs[MEMBERS]) if function.attrs and MEMBERS in function.attrs else {}
    nodes: list[Node] = []
    by_var: dict = {}
    parsed: dict = {}  # equal layers share a PrimFunc: parse and simplify each once
    for binding in function.body.blocks[0].bindings:
        var, value = binding.var, getattr(binding, "value", None)
        node = _tuple_item(var, value, by_var) or _read_binding(mod, binding, parsed)
        node.members, node.views = members.get(var.name, (node.members, node.views))
        by_var[var] = node
        nodes.append(node)
    return Graph(name, function, _without_dead_tuples(nodes))


def _read_binding(mod: IRModule, binding, parsed: dict) -> Node:
    var, value = binding.var, binding.value
    if isinstance(binding, relax.MatchCast):
        return Node(var, value, reason="match_cast checks a shape at run time", cast=binding.ty)
    if not (isinstance(value, ir.Call) and value.op == CALL_TIR):
        return Node(var, value, reason="not a call_tir")
    gvar, arguments = value.args[0], value.args[1]
    label = describe(gvar.name_hint, var)
    if gvar not in parsed:
        parsed[gvar] = _parse(mod[gvar], label)
    whole, part, live, reason = parsed[gvar]
    if len(value.args) > 2:
        reason = "it takes symbolic values"
    if reason:
        return Node(var, value, reason=reason, members=[label])
    args = list(arguments.fields) if isinstance(arguments, relax.Tuple) else [arguments]
    node = Node(var, value, args, whole, members=[label], attrs=_kept_attrs(mod[gvar]))
    # A number of keys is no tensor that the stages read: schedules do.
    if len(whole.outputs) == 1 and KEY_AXIS not in node.attrs:
        normalise(node, part, [args[position] for position in live])
    return node


def _kept_attrs(func: tirx.PrimFunc) -> dict:
    """Return the attributes without which a kernel would be another one."""
    attrs = func.attrs or {}
    return {**factors_attr(func), **({KEY_AXIS: list(map(int, attrs[KEY_AXIS]))} if KEY_AXIS in attrs else {})}


def _parse(func: tirx.PrimFunc, label: str) -> tuple[Kernel | None, Kernel | None, list[int], str]:
    """Return a PrimFunc's kernel with simplified indices, its normal form, the inputs that this reads, and a reason.

    The reason says why there is no kernel, else it is empty. Nodes and passes may share the normal form: `_absorb`
    copies a producer before it merges it.
    """
    if checks_maps():
        return _normal_form(func, label)
    return _forms.get(func, lambda: _normal_form(func, label), reduces_strength())


def _normal_form(func: tirx.PrimFunc, label: str) -> tuple[Kernel | None, Kernel | None, list[int], str]:
    try:
        whole = simplify(parse(func), label)
    except Opaque as why:
        return None, None, [], str(why)
    part = tidy(whole)
    check_rewritten(whole, part, label)
    live = [next(i for i, b in enumerate(whole.inputs) if b.same_as(buffer)) for buffer in part.inputs]
    part = fresh(part)
    _normal.add(part)
    return whole, part, live, ""


def _function(node: Node) -> tirx.PrimFunc:
    """Return the PrimFunc of a node's kernel; a kernel that no pass changed keeps its PrimFunc and its normal form."""
    kernel = node.kernel
    if node.attrs or kernel not in _normal or checks_maps():
        return emit(kernel, node.attrs)
    if kernel not in _written:
        _written[kernel] = emit(kernel)
    _forms.put(_written[kernel], (kernel, kernel, list(range(len(kernel.inputs))), ""), reduces_strength())
    return _written[kernel]


def normalise(node: Node, kernel: Kernel, args: list) -> None:
    """Give `node` a kernel and the arguments of its inputs; inputs with equal arguments become one input."""
    first: dict = {}
    for buffer, arg in zip(kernel.inputs, args, strict=True):
        if arg in first:
            kernel = merge_equal(kernel, first[arg], buffer)
        else:
            first[arg] = buffer
    by_buffer = {buffer: arg for arg, buffer in first.items()}
    node.kernel = kernel
    node.args = [by_buffer[b] for b in kernel.inputs]


def _absorb(node: Node, producer: Node, inline_output: bool) -> None:
    before = Node(node.var, node.value, node.args, node.kernel, members=node.members, views=node.views)
    inner = fresh(producer.kernel)
    position = next(i for i, arg in enumerate(node.args) if arg.same_as(producer.var))
    kernel = merge(node.kernel, node.kernel.inputs[position], inner, inline_output)
    bound = dict(zip(node.kernel.inputs, node.args, strict=True))
    bound.update(zip(inner.inputs, producer.args, strict=True))
    normalise(node, kernel, [bound[b] for b in kernel.inputs])
    moves = movement(producer.kernel) is not None
    node.views = _union(producer.views, producer.members if moves else [], node.views)
    node.members = node.members if moves else _union(producer.members, node.members)
    if checks_maps():
        _check_absorbed(before, producer, node)


def _check_absorbed(node: Node, producer: Node, merged: Node) -> None:
    """Check that a merged kernel computes the same as `producer` followed by `node`."""
    if len(merged.kernel.outputs) != 1:
        return
    tensors = Tensors()
    chain = tensors.elements(node.kernel, node.args, {producer.var: tensors.elements(producer.kernel, producer.args)})
    together = tensors.elements(merged.kernel, merged.args)
    operators = _union(producer.views, producer.members, node.views, node.members)
    check_same(chain, together, shape_of(node.kernel.outputs[0]), ", ".join(operators))


def too_wide(node: Node, producer: Node) -> bool:
    """Whether a node that absorbs a producer with several arguments would read more than `MOST_INPUTS` tensors."""
    return len(producer.args) > 1 and len({*node.args, *producer.args}) - 1 > MOST_INPUTS


def _union(*lists: list[str]) -> list[str]:
    return list(dict.fromkeys(item for items in lists for item in items))


def _tuple_item(var, value, by_var: dict) -> Node | None:
    """Return the node for ``var = t[i]`` with a kernel of its own, if ``t`` is a kernel with separable outputs."""
    if not isinstance(value, ir.TupleGetItem) or value.tuple_value not in by_var:
        return None
    source = by_var[value.tuple_value]
    if source.kernel is None:
        return None
    try:
        part = output_of(source.kernel, value.index)
    except Opaque:
        return None
    node = Node(var, value, members=[f"{source.members[0]}[{value.index}]"])
    bound = dict(zip(source.kernel.inputs, source.args, strict=True))
    normalise(node, fresh(part), [bound[buffer] for buffer in part.inputs])
    return node


def _without_dead_tuples(nodes: list[Node]) -> list[Node]:
    used = {operand for node in nodes for operand in node.operands}
    alive = []
    for node in nodes:
        multiple = node.kernel is not None and len(node.kernel.outputs) > 1
        if multiple and node.var not in used and isinstance(node.var, relax.DataflowVar):
            continue
        if multiple:
            node.kernel, node.reason = None, "one block writes several outputs"
        alive.append(node)
    return alive


def describe(operator: str, var: relax.Var) -> str:
    """Return the label of an operator: legalised name and result, for example ``transpose3 lv12(1, 96, 3136)``."""
    shape = getattr(var.ty, "shape", None)
    dims = ", ".join(str(getattr(dim, "value", dim)) for dim in shape) if shape is not None else "..."
    return f"{operator} {var.name}({dims})"


def write(mod: IRModule, graph: Graph, log: list[dict]) -> IRModule:
    """Replace the graph's function in `mod`, remove unused PrimFuncs, and append `log` to the module's log."""
    builder = relax.BlockBuilder(mod)
    bindings = []
    for node in graph:
        value = _call(builder, node)
        cast = node.cast is not None
        bindings.append(relax.MatchCast(node.var, value, node.cast) if cast else relax.VarBinding(node.var, value))
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], graph.function.body.body)
    members = json.dumps({node.var.name: (node.members, node.views) for node in graph if node.members})
    old = graph.function
    function = relax.Function(old.params, body, old.ret_ty, old.is_pure, old.attrs)
    builder.update_func(mod.get_global_var(graph.name), function.with_attr(MEMBERS, members))
    result = relax.transform.DeadCodeElimination()(builder.get())
    return append_log(result, log)


def _call(builder: relax.BlockBuilder, node: Node) -> relax.Expr:
    if node.kernel is None:
        return node.value
    gvar = builder.add_func(_function(node), kernel_name(node.members))
    return relax.call_tir(gvar, relax.Tuple(node.args), node.var.ty)


def kernel_name(members: list[str]) -> str:
    """Return a readable PrimFunc name made of its operators, for example ``matmul_add_gelu``."""
    names = [re.sub(r"\d+$", "", m.split(" ")[0]) for m in members]
    distinct = [n for i, n in enumerate(names) if i == 0 or n != names[i - 1]]
    return "_".join(distinct)[:64].strip("_")


def append_log(mod: IRModule, log: list[dict]) -> IRModule:
    """Record decisions on the module."""
    old = list(mod.attrs[LOG]) if mod.attrs and LOG in mod.attrs else []
    return mod.with_attr(LOG, [*old, *(json.dumps(entry) for entry in log)]) if log else mod


def continue_log(mod: IRModule, later: IRModule) -> IRModule:
    """Return `mod` with the decisions recorded on `later`, a later state of it."""
    known = later.attrs is not None and LOG in later.attrs
    return mod.with_attr(LOG, later.attrs[LOG]) if known else mod


def read_log(mod: IRModule) -> list[dict]:
    """Decisions recorded on the module, oldest first."""
    return [json.loads(entry) for entry in mod.attrs[LOG]] if mod.attrs and LOG in mod.attrs else []


def rewrite_graphs(mod: IRModule, rewrite: Callable[[Graph], list[dict]]) -> IRModule:
    """Let `rewrite` change every graph of `mod` in place; the decisions it returns are recorded on the module."""
    mod = relax.transform.CanonicalizeBindings()(mod)
    for graph in list(graphs(mod)):
        mod = write(mod, graph, rewrite(graph))
    return mod


def launches(mod: IRModule, without: Collection[str] = ()) -> Counter:
    """Count the calls of each kernel, also of those that write in place; calls in loops and branches count once.

    Parameters
    ----------
    without : collection of str
        Names of functions whose calls do not count.
    """
    functions = [f for g, f in mod.functions_items() if isinstance(f, relax.Function) and g.name_hint not in without]
    calls = (call for func in functions for call in collect(func, ir.Call) if call.op in (CALL_TIR, _CALL_IN_PLACE))
    return Counter(call.args[0] for call in calls)


def private_calls(mod: IRModule) -> dict[ir.GlobalVar, list[ir.Call]]:
    """Return the calls of each kernel that only ``call_tir`` calls and nothing else mentions."""
    found: dict[ir.GlobalVar, list[ir.Call]] = {}
    for call in _kernel_calls(mod):
        found.setdefault(call.args[0], []).append(call)
    times = Counter(gvar for func in _relax_functions(mod) for gvar in collect(func, ir.GlobalVar))
    only = {gvar: calls for gvar, calls in found.items() if times[gvar] == len(calls)}
    return {gvar: calls for gvar, calls in only.items() if "global_symbol" not in (mod[gvar].attrs or {})}


def _kernel_calls(mod: IRModule) -> list[ir.Call]:
    return [call for func in _relax_functions(mod) for call in _kernel_calls_of(func)]


def _kernel_calls_of(func: relax.Function) -> list[ir.Call]:
    return [call for call in collect(func, ir.Call) if call.op == CALL_TIR]


def _relax_functions(mod: IRModule) -> list[relax.Function]:
    return [func for func in mod.functions.values() if isinstance(func, relax.Function)]
