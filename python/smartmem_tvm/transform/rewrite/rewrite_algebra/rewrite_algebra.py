# SPDX-License-Identifier: Apache-2.0
"""RewriteAlgebra: replace operators by cheaper ones that compute the same."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any, NamedTuple

import tvm
from tvm import relax

from ....ir.block import rewrite_blocks
from ....tables.operator_cost import FLOPS
from ....tables.rewrite_rules import RULES, RewriteRule
from .algebra import AlgebraGraph, AlgebraNode
from .conditions import holds
from .match import CHAIN, Match, facts_of, instantiate, matches
from .terms import REDUCTIONS, Cost, Refused, Term, operator_cost, operators, parse_term

# Levels of readers above a changed operator that are matched again: no pattern is deeper.
_REACH = CHAIN
# A value with more readers than this is not matched again when it loses one.
_FEW = 4


@tvm.transform.module_pass(opt_level=0, name="smartmem.RewriteAlgebra")
class RewriteAlgebra:
    """Rewrite by the associative, distributive and commutative laws (DNNFusion, section 4.2; table `RULES`).

    Before::

        a = multiply(x, y)
        b = multiply(x, z)
        c = add(a, b)              # 3 n operations

    After::

        a = add(y, z)
        c = multiply(x, a)         # 2 n operations

    The dataflow blocks are cut at operators that no rule mentions. Within a part, the match that saves most operations
    is applied (then most bytes read and written, then most operators), until none saves any. A value with another
    reader counts as not saved. Costs come from the shapes, so a law that broadcasts earlier than before is refused.

    Refused are rules whose condition is not known to hold or whose result would have another shape or dtype, operands
    of several dtypes, symbolic shapes, and operators outside of a dataflow block.

    Parameters
    ----------
    rules : tuple of Rule
        The rules to apply; all of `RULES` by default.
    """

    def __init__(self, rules: tuple[RewriteRule, ...] = RULES):
        self.rules = rules

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to every dataflow block of `mod`."""
        return rewrite_blocks(mod, self._rewrite)

    def _rewrite(self, block: relax.DataflowBlock) -> tuple[relax.DataflowBlock, list[dict]]:
        rewriting = _Rewriting(block, self.rules)
        decisions = rewriting.run()
        return (relax.DataflowBlock(rewriting.graph.write(OPERATORS)) if decisions else block), decisions


class _Candidate(NamedTuple):
    """A match worth applying."""

    saved: Cost
    rule: RewriteRule
    root: AlgebraNode
    new: Any
    match: Match


class _Rewriting:
    """The greedy search over one dataflow block."""

    def __init__(self, block: relax.DataflowBlock, rules: tuple[RewriteRule, ...]):
        self.rules: dict[str, list[RewriteRule]] = defaultdict(list)  # by the operator at the root of the pattern
        for rule in rules:
            self.rules[parse_term(rule.pattern).op].append(rule)
        vocabulary = frozenset().union(*(operators(parse_term(rule.pattern)) for rule in rules))
        self.graph = AlgebraGraph(block, vocabulary)
        self.order = count()
        self.version: dict[AlgebraNode, int] = {}
        self.heap: list = []

    def run(self) -> list[dict]:
        """Rewrite the graph; return one decision for each rule that was applied."""
        return [decision for part in self._parts() for decision in self._rewrite(part)]

    def _parts(self) -> list[list[AlgebraNode]]:
        """Return groups of connected operators that rules mention (DNNFusion's sub-graphs)."""
        part_of: dict[AlgebraNode, list[AlgebraNode]] = {}
        for node in self.graph.nodes:
            if node.op not in self.graph.vocabulary:
                continue
            mine = part_of[node] = [node]
            for arg in node.args:
                other = part_of.get(arg)
                if other is None or other is mine:
                    continue
                small, mine = sorted((mine, other), key=len)
                mine.extend(small)
                part_of.update(dict.fromkeys(small, mine))
        return list({id(part): part for part in part_of.values()}.values())

    def _rewrite(self, part: list[AlgebraNode]) -> Iterator[dict]:
        self._look_at(part)
        while self.heap:
            *_, root, version, found = heapq.heappop(self.heap)
            if self.version.get(root) != version or not root.alive:
                continue
            best = self._priced(found.rule, found.match, root)
            if best is None:
                continue
            if best.saved < found.saved:
                self._push(best)
                continue
            yield {
                "pass": "RewriteAlgebra",
                "operator": root.source.name if root.source is not None else root.op,
                "action": "rewritten",
                "rule": best.rule.name,
                "reason": str(best.rule),
                "flops_saved": best.saved.flops,
            }
            self._apply(best)

    def _look_at(self, nodes: Iterable[AlgebraNode]) -> None:
        """Find the candidates at each of these nodes, as they are now."""
        for root in nodes:
            self.version[root] = next(self.order)
            for rule in self.rules.get(root.op, ()):
                for match in matches(self.graph, parse_term(rule.pattern), root):
                    found = self._priced(rule, match, root)
                    if found is not None:
                        self._push(found)

    def _push(self, found: _Candidate) -> None:
        key = tuple(-amount for amount in found.saved)
        heapq.heappush(self.heap, (key, next(self.order), found.root, self.version[found.root], found))

    def _priced(self, rule: RewriteRule, match: Match, root: AlgebraNode) -> _Candidate | None:
        """Return the rewrite with its saving; None if it is refused or does not pay."""
        if not holds(rule.condition, self.graph, match, root):
            return None
        try:
            new = instantiate(self.graph, parse_term(rule.replacement), match, root)
            facts = facts_of(new, match.attrs, root.facts.dtype)
            if (facts.shape, facts.dtype) != (root.facts.shape, root.facts.dtype):
                return None
            spent, leaves = _price(new, match.attrs, root.facts.dtype)
        except Refused:
            return None
        gone = self.graph.dying(root, leaves)
        saved = sum((self.graph.cost(node) for node in gone), Cost()) - spent
        return _Candidate(saved, rule, root, new, match) if saved > Cost() else None

    def _apply(self, found: _Candidate) -> None:
        root, made = found.root, {}
        new = self.graph.build(found.new, found.match.attrs, root.facts.dtype, made)
        above = list(root.readers)
        lost = self.graph.replace(root, new)
        changed = [root, *above, *(node for node in made.values() if node.op in self.graph.vocabulary)]
        changed += [reader for node in lost if len(node.readers) <= _FEW for reader in node.readers]
        self._look_at(self._upwards(changed))

    def _upwards(self, nodes: list[AlgebraNode]) -> list[AlgebraNode]:
        """Return these nodes and the readers of their results, as far as a pattern reaches."""
        seen, level = dict.fromkeys(nodes), nodes
        for _ in range(_REACH):
            level = [reader for node in level for reader in node.readers if reader not in seen]
            seen.update(dict.fromkeys(level))
        return [node for node in seen if node.op in self.graph.vocabulary and node.alive]


def _price(term: Any, attrs: Any, dtype: str) -> tuple[Cost, set[AlgebraNode]]:
    """Return the cost of the operators in a term, equal ones once, and the nodes that it reads."""
    done: set = set()
    leaves: set[AlgebraNode] = set()

    def visit(each: Any) -> Cost:
        if isinstance(each, AlgebraNode):
            leaves.add(each)
        if not isinstance(each, Term) or each in done:
            return Cost()
        done.add(each)
        operands = [facts_of(arg, attrs, dtype) for arg in each.args]
        own = operator_cost(each.op, operands, facts_of(each, attrs, dtype))
        return sum(map(visit, each.args), own)

    return visit(term), leaves


def _maker(name: str):
    make = relax.op.nn.relu if name == "nn.relu" else getattr(relax.op, name)
    if name in REDUCTIONS:
        return lambda args, attrs: make(args[0], list(attrs.axes), attrs.keepdims)
    return lambda args, _attrs: make(*args)


# Operator of the rules -> function that writes it in Relax.
OPERATORS = {name: _maker(name) for name in FLOPS}
