# SPDX-License-Identifier: Apache-2.0
"""Every pass has a name, runs by it, and is in the table of docs/passes.md."""

import ast
import re
from pathlib import Path

import pytest
import tvm
import tvm_ffi

from helpers import constant, legalize, module, op
from smartmem_tvm import pipeline, transform
from smartmem_tvm.errors import UserError
from smartmem_tvm.options import Options
from smartmem_tvm.pass_registry import PASSES, make_pass, parse_passes
from smartmem_tvm.pipeline import BASELINE_PHASES, PHASES, graph_phases, phases_of, prepare_passes, run_phases
from smartmem_tvm.target import parse_target

CPU = tvm.target.Target({"kind": "llvm", "num-cores": 2})
PHONE = parse_target("adreno-740")
EVERYTHING = Options(records=tvm.transform.Sequential([]), memory_budget=10**8)  # the options of every pass
DOCS = Path(__file__).parent.parent / "docs" / "passes.md"


def network(x):
    """A layout operator, a normalisation, two products with weights."""
    normal = op.nn.layer_norm(op.permute_dims(x), constant(8), constant(8), axes=[-1])
    scores = op.matmul(normal, op.permute_dims(op.matmul(normal, constant(8, 8))))
    return op.nn.softmax(op.multiply(scores, op.erf(scores)))


@pytest.fixture(scope="module")
def modules():
    operators = module(network, (8, 6))
    return {"operators": operators, "kernels": legalize(operators)}


def passes_in_files() -> set[str]:
    """Return the names of the classes in this package that are declared to be passes."""
    root, found = Path(transform.__file__).parent.parent, set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and "_pass(" in "".join(map(ast.unparse, node.decorator_list)):
                found.add(node.name)
    return found


# Passes that are parts of the pipelines in `tvm_mends.lowering` and `tvm_mends.texture_pipeline`, and not registered.
MENDS = {
    *("FixTextureStore", "FixVectorizedNests", "FixIntegerTextures", "FixVectorBooleans"),
    *("FixConstants", "FixNarrowIntegers", "FixHalfRemainders", "FixByteBroadcasts", "FixFallingTexels"),
    "FixTexelLanes",
    *("LeaveFastMath", "QuantizeInVectors", "SplitByScope", "ScheduleTexels", "OwnNodes"),
}


def test_every_pass_of_this_package_has_a_name():
    ours = {name for name in PASSES if not name.startswith("relax.")}
    kebab = {re.sub("([A-Z])", r"-\1", name).lower().strip("-") for name in passes_in_files() - MENDS}
    assert ours == kebab and len(ours) >= 27


@pytest.mark.parametrize("name", PASSES)
def test_each_pass_runs_alone(name, modules):
    for mod in modules.values():
        copy = mod.clone()
        with PHONE:
            after = make_pass(name, EVERYTHING, PHONE)(mod)
        assert isinstance(after, tvm.IRModule) and tvm_ffi.structural_equal(mod, copy)


@pytest.mark.parametrize("name", [name for name, entry in PASSES.items() if not entry.needs_target])
def test_what_needs_no_target_does_the_same_for_all(name, modules):
    for mod in modules.values():
        bare = make_pass(name, EVERYTHING)(mod)
        with PHONE:
            assert tvm_ffi.structural_equal(make_pass(name, EVERYTHING, PHONE)(mod), bare)


@pytest.mark.parametrize("name", ["vectorize-math", "schedule-kernels", "pack-weights"])
def test_what_needs_a_target_does_other_things_for_another(name, modules):
    after = []
    for target in (CPU, PHONE):
        with target:
            after.append(make_pass(name, EVERYTHING, target)(modules["kernels"]))
    assert not tvm_ffi.structural_equal(*after)


def test_a_pass_that_needs_a_target_with_textures_says_so():
    for target in (None, CPU):
        with pytest.raises(UserError, match="'place-textures' needs a target with textures"):
            make_pass("place-textures", target=target)


def test_records_are_asked_for():
    with pytest.raises(UserError, match="'apply-records' has no records"):
        make_pass("apply-records")


@pytest.mark.parametrize("name", PASSES)
def test_each_pass_says_what_it_does_and_whose_it_is(name):
    entry = PASSES[name]
    assert len(entry.summary) > 20 and "\n" not in entry.summary and "`" not in entry.summary
    assert re.fullmatch(
        r"((SmartMem|DNNFusion|FlexNN) \d.*|FluidML, Algorithm \d|FluidML, Algorithms \d-\d)?", entry.section
    )
    own = {
        "fuse-attention": {"on_chip_bytes": 524288},
        "select-layout": {"fast_axes": 1},
        "plan-layout": {"time_limit": 60.0},
        "slice-weights": {"budget": 0},
        "round-factors": {"kind": "bfloat16"},
        "round-weights": {"weights": "int8"},
        "transform-windows": {"result": 0},
    }
    assert entry.own == own.get(name, {})


def test_options_reach_the_pass():
    assert make_pass("select-layout", own={"fast_axes": "2"}).fast_axes == 2
    mod = legalize(module(lambda x: op.matmul(op.nn.softmax(op.matmul(x, x)), x), (64, 64)))
    kernels = {
        size: len(make_pass("fuse-attention", own={"on_chip_bytes": size})(mod)["main"].body.blocks[0].bindings)
        for size in ("1", "524288")
    }
    assert kernels == {"1": 3, "524288": 1}


@pytest.mark.parametrize(
    "name, own, sentence",
    [
        ("fuse_row", {}, "Pass 'fuse_row' does not exist; the nearest name is 'fuse-rows'"),
        ("relax.LegaliseOps", {}, "the nearest name is 'relax.LegalizeOps'"),
        ("fuse-rows", {"size": "1"}, "Pass 'fuse-rows' has no option 'size': it has none."),
        ("select-layout", {"k": "1"}, "Pass 'select-layout' has no option 'k': it has fast_axes."),
        (
            "select-layout",
            {"fast_axes": "two"},
            "Option fast_axes of pass 'select-layout' is 'two': give a number, as 1.",
        ),
    ],
)
def test_wrong_names_and_options(name, own, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)):
        make_pass(name, own=own)


def test_names_and_options_as_text():
    assert parse_passes("fuse-rows") == [("fuse-rows", {})]
    assert parse_passes(" a , b{k=1, l=2},relax.C{} ") == [("a", {}), ("b", {"k": "1", "l": "2"}), ("relax.C", {})]
    assert parse_passes("a{k}") == [("a", {"k": ""})]
    for wrong in ("", ",", "a,", "a b", "a{k=1", "a}k=1{", "a{k=1}b", "{k=1}"):
        with pytest.raises(UserError, match="is no list of passes"):
            parse_passes(wrong)


# --- the pipeline -------------------------------------------------------------------------------------------------


def test_every_name_in_the_pipeline_is_that_of_a_pass():
    used = {name for phase in PHASES + BASELINE_PHASES for name in phase.passes}
    assert used <= set(PASSES)
    # These run while TIR is lowered (`deploy.textures`), and in the trials of tensors in textures.
    assert set(PASSES) - used == {"check-textures", "check-images", "stage-texels", "half-storage", "compute-single"}


@pytest.mark.parametrize("target", ["cpu", "cuda", "opencl", "opencl-texture", "adreno-740"])
def test_phases_of_a_target_have_different_names(target):
    names = [phase.name for phase in phases_of(parse_target(target))]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "options, chosen",
    [
        (Options(), ()),
        (Options(precision="half-storage"), ("store-half",)),
        (Options(precision="half"), ("store-half", "compute-half")),
        (Options(precision="bfloat16"), ("store-half", "round-factors")),
        (Options(precision="tf32"), ("round-factors",)),
    ],
)
def test_passes_that_an_option_asks_for(options, chosen):
    (precision,) = (phase for phase in graph_phases(PHONE) if phase.name == "precision")
    assert precision.chosen(options) == chosen
    assert [precision.option_of(name) for name in precision.passes] == 3 * ["precision"]


def test_what_comes_before_records_is_what_tasks_are_made_with():
    assert [each.info.name.removeprefix("smartmem.") for each in prepare_passes(CPU)] == [
        "StagePadding",
        "AlignWindows",
        "PackCodes",
        "SplitReductions",
        "LowerRotations",
        "VectorizeMath",
        "PairProducts",
        "FloatProducts",
        "TransformWindows",
    ]
    assert len(prepare_passes(CPU, Options(winograd=False))) == 8
    assert [each.info.name.removeprefix("smartmem.") for each in prepare_passes(PHONE)] == [
        "FixAddresses",
        "LowerRotations",
        "LowerSingleTerms",
    ]


def test_phases_run_the_passes_that_they_name(modules, monkeypatch):
    made = []
    monkeypatch.setattr(pipeline, "make_pass", lambda name, *rest: made.append(name) or make_pass(name, *rest))
    with CPU:
        run_phases(modules["operators"], phases_of(CPU), Options(eliminate=False))
    assert made == [name for phase in phases_of(CPU) for name in phase.chosen(Options(eliminate=False))]
    assert "eliminate-layout" not in made and "apply-records" not in made


# --- docs/passes.md -----------------------------------------------------------------------------------------------


def row(name: str) -> str:
    entry = PASSES[name]
    options = ", ".join(f"`{key}={value}`" for key, value in entry.own.items())
    return f"| `{name}` | {entry.summary} | {entry.section} | {options} | {'yes' if entry.needs_target else ''} |"


def test_the_table_in_the_docs():
    rows = [line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert rows == [row(name) for name in PASSES], "what docs/passes.md should have:\n" + "\n".join(map(row, PASSES))
