# SPDX-License-Identifier: Apache-2.0
"""The literal tables against the papers' cells, and against each other."""

from itertools import product

import pytest

from smartmem_tvm.tables import action, layout_policy, mapping_type, quadrant
from smartmem_tvm.tables.action import Action
from smartmem_tvm.tables.layout_policy import Search
from smartmem_tvm.tables.mapping_type import FusionVerdict, MappingType
from smartmem_tvm.tables.quadrant import Quadrant

ILD_VARIABLE, ILI_VARIABLE = Quadrant.ILD_VARIABLE, Quadrant.ILI_VARIABLE
ILD_FIXED, ILI_FIXED = Quadrant.ILD_FIXED, Quadrant.ILI_FIXED
VARIABLE, FIXED = (ILD_VARIABLE, ILI_VARIABLE), (ILD_FIXED, ILI_FIXED)
PAIRS = list(product(Quadrant, repeat=2))

# As printed in the papers; typed again here, in the other direction, so that one slip shows.
TABLE_3_BY_QUADRANT = {
    ILD_VARIABLE: {"Conv", "MatMul", "LayerNorm", "Softmax"},
    ILD_FIXED: {"Reshape", "Transpose", "DtoS", "StoD"},
    ILI_VARIABLE: {"Unary", "Add"},
    ILI_FIXED: {"Gather", "Slice"},
}
TABLE_5_TEXT = """
ILD & Variable | Keep both     | Try fuse      | Eliminate 2nd  | Eliminate 2nd
ILI & Variable | Try fuse      | Try fuse      | Eliminate 2nd  | Eliminate 2nd
ILD & Fixed    | Eliminate 1st | Eliminate 1st | Eliminate both | Eliminate both
ILI & Fixed    | Eliminate 1st | Eliminate 1st | Eliminate both | Eliminate both
"""
TABLE_6_TEXT = """
ILD & Variable | ILD & Variable, Search both  | ILD & Variable, Search fused | ILD & Variable, Search 1st | ILD & Variable, Search 1st
ILI & Variable | ILD & Variable, Search fused | ILI & Variable, No search    | ILI & Variable, No search  | ILI & Variable, No search
ILD & Fixed    | ILD & Variable, Search 2nd   | ILI & Variable, No search    | N/A, No search             | N/A, No search
ILI & Fixed    | ILD & Variable, Search 2nd   | ILI & Variable, No search    | N/A, No search             | N/A, No search
"""  # noqa: E501
DNNFUSION_TABLE_3_TEXT = """
1-1 | 1-1 + | 1-M + | M-M + | Re +  | Sh +
1-M | 1-M + | 1-M ? | M-M x | 1-M ? | 1-M ?
M-M | M-M + | M-M ? | M-M x | M-M ? | M-M ?
Re  | Re +  | 1-M ? | M-M ? | Re +  | Re +
Sh  | Sh +  | 1-M ? | M-M ? | Re +  | Sh +
"""
SHORT = {
    "1-1": MappingType.ONE_TO_ONE,
    "1-M": MappingType.ONE_TO_MANY,
    "M-M": MappingType.MANY_TO_MANY,
    "Re": MappingType.REORGANIZE,
    "Sh": MappingType.SHUFFLE,
}


def cells(text, columns):
    """Pairs of a printed table: (first, second) -> cell text."""
    for line in text.strip().splitlines():
        first, *row = (part.strip() for part in line.split("|"))
        assert len(row) == len(columns)
        for second, cell in zip(columns, row):
            yield first, second, cell


@pytest.mark.parametrize(
    ("table", "enum"),
    [
        (action.TABLE_5, Quadrant),
        (layout_policy.TABLE_6, Quadrant),
        (mapping_type.TABLE_3, MappingType),
    ],
)
def test_pair_tables_are_total(table, enum):
    assert set(table) == set(product(enum, repeat=2))


def test_every_enum_member_occurs():
    assert {fusion.result for fusion in mapping_type.TABLE_3.values()} == set(MappingType)
    assert {fusion.verdict for fusion in mapping_type.TABLE_3.values()} == set(FusionVerdict)
    assert set(action.TABLE_5.values()) == set(Action)
    assert {decision.search for decision in layout_policy.TABLE_6.values()} == set(Search)
    assert set(quadrant.TABLE_3.values()) == set(Quadrant)


@pytest.mark.parametrize("kind", Quadrant)
def test_smartmem_table_3(kind):
    assert {name for name, q in quadrant.TABLE_3.items() if q is kind} == TABLE_3_BY_QUADRANT[kind]


def test_smartmem_table_5():
    order = ("ILD & Variable", "ILI & Variable", "ILD & Fixed", "ILI & Fixed")
    for first, second, cell in cells(TABLE_5_TEXT, order):
        assert action.TABLE_5[Quadrant(first), Quadrant(second)] is Action(cell)


def test_smartmem_table_6():
    order = ("ILD & Variable", "ILI & Variable", "ILD & Fixed", "ILI & Fixed")
    for first, second, cell in cells(TABLE_6_TEXT, order):
        output, search = cell.split(", ")
        decision = layout_policy.TABLE_6[Quadrant(first), Quadrant(second)]
        assert decision == (None if output == "N/A" else Quadrant(output), Search(search))


def test_dnnfusion_table_3():
    for first, second, cell in cells(DNNFUSION_TABLE_3_TEXT, tuple(SHORT)):
        result, verdict = cell.split()
        assert mapping_type.TABLE_3[SHORT[first], SHORT[second]] == (SHORT[result], FusionVerdict(verdict))


def test_dnnfusion_has_23_code_generation_rules():
    """The paper: one rule for each green or yellow cell of Table 3, 23 in all."""
    allowed = [fusion for fusion in mapping_type.TABLE_3.values() if fusion.verdict is not FusionVerdict.NEVER]
    assert len(allowed) == 23


def test_red_cells_are_those_before_many_to_many():
    red = {pair for pair, fusion in mapping_type.TABLE_3.items() if fusion.verdict is FusionVerdict.NEVER}
    many = MappingType.MANY_TO_MANY
    assert red == {(many, many), (MappingType.ONE_TO_MANY, many)}


def test_impedance_decides_the_result_of_a_fusion():
    """One-to-One gives way to everything, Many-to-Many to nothing (DNNFusion, transformation impedance)."""
    for first, second in product(MappingType, repeat=2):
        result = mapping_type.TABLE_3[first, second].result
        if first is MappingType.ONE_TO_ONE:
            assert result is second
        if second is MappingType.ONE_TO_ONE:
            assert result is first
        if MappingType.MANY_TO_MANY in (first, second):
            assert result is MappingType.MANY_TO_MANY


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_tables_5_and_6_agree(first, second):
    """What Table 5 leaves of a pair is what Table 6 types and searches."""
    what, decision = action.TABLE_5[first, second], layout_policy.TABLE_6[first, second]
    left = {
        Action.KEEP_BOTH: (first, second),
        Action.TRY_FUSE: (first, second),
        Action.ELIMINATE_FIRST: (second,),
        Action.ELIMINATE_SECOND: (first,),
        Action.ELIMINATE_BOTH: (),
    }[what]
    assert not any(q.is_fixed for q in left), "an operator with a fixed output never survives a pair"
    most_complex = next((q for q in VARIABLE if q in left), None)
    assert decision.output is most_complex
    searches = {
        Action.KEEP_BOTH: Search.BOTH,
        Action.TRY_FUSE: Search.FUSED,
        Action.ELIMINATE_FIRST: Search.SECOND,
        Action.ELIMINATE_SECOND: Search.FIRST,
    }
    expected = searches[what] if most_complex is ILD_VARIABLE else Search.NONE
    assert decision.search is expected


def test_fixed_is_data_movement():
    assert [q for q in Quadrant if q.is_fixed] == list(FIXED)
