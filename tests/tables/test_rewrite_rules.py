# SPDX-License-Identifier: Apache-2.0
"""The table of rewrite rules as a table: it can be read, it is consistent, and it covers the paper's."""

import pytest

from smartmem_tvm.tables.operator_cost import FLOPS
from smartmem_tvm.tables.properties import PROPERTIES, Law, properties
from smartmem_tvm.tables.rewrite_rules import RULES, TABLE_4
from smartmem_tvm.transform.rewrite.rewrite_algebra.conditions import parse_condition
from smartmem_tvm.transform.rewrite.rewrite_algebra.terms import Term, operators, parse_term


def variables(term) -> set[str]:
    if isinstance(term, Term):
        return set().union(*map(variables, term.args))
    return {term} if isinstance(term, str) else set()


def test_names_are_unique():
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_patterns_are_unique():
    assert len({(rule.pattern, rule.replacement) for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_row_is_well_formed(rule):
    pattern, replacement = parse_term(rule.pattern), parse_term(rule.replacement)
    assert isinstance(pattern, Term)
    assert variables(replacement) <= variables(pattern)
    assert parse_condition(rule.condition) is not None
    assert operators(pattern) | operators(replacement) <= FLOPS.keys()
    assert rule.property in ("associative", "distributive", "commutative", "identity")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rules_stay_among_operators_with_properties(rule):
    """The graph is cut at the others, so that a rule about them could never match."""
    assert all(properties(name) for name in operators(parse_term(rule.pattern)))


def test_every_property_of_the_paper_has_rules():
    assert {row.property for row in TABLE_4} <= {rule.property for rule in RULES}


def test_terms_are_read():
    assert parse_term("a * (b + 1)") == Term("multiply", ("a", Term("add", ("b", 1.0))))
    assert parse_term("recip(a)") == Term("divide", (1.0, "a"))
    assert parse_term("-sum(a << b)") == Term("negative", (Term("sum", (Term("left_shift", ("a", "b")),)),))
    assert parse_term("a ** -0.5") == Term("power", ("a", -0.5))
    assert parse_term("relu(a @ b)") == Term("nn.relu", (Term("matmul", ("a", "b")),))


def test_what_is_no_term_is_refused():
    with pytest.raises(ValueError, match="no term"):
        parse_term("a if b else c")


def test_properties_of_some_operators():
    assert {p.law for p in properties("relax.add")} == {Law.ASSOCIATIVE, Law.COMMUTATIVE}
    assert "distributive over add" in map(str, properties("multiply"))
    assert "commutes with left_shift" in map(str, properties("sum"))
    assert {p.law for p in properties("subtract")} & {Law.ASSOCIATIVE, Law.COMMUTATIVE} == set()
    assert properties("relax.nn.softmax") == frozenset()


def test_properties_name_known_operators():
    assert {p.other for row in PROPERTIES.values() for p in row if p.other} <= PROPERTIES.keys()
