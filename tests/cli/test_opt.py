# SPDX-License-Identifier: Apache-2.0
"""``smartmem opt``: passes by name, on models and on dumps; the lists of passes and of a target's pipeline."""

from itertools import pairwise

import pytest
from tvm import tirx

from smartmem_tvm import pipeline
from smartmem_tvm.errors import UserError
from smartmem_tvm.ir.strength_reduction import Simplifier
from smartmem_tvm.options import Options
from smartmem_tvm.pass_registry import PASSES, make_pass
from smartmem_tvm.pipeline import phases_of
from smartmem_tvm.target import parse_target


def passes_of(smartmem, target) -> list[dict]:
    return smartmem("opt", "--list", "--target", target, "--json").data["pipeline"]


def test_the_list_of_passes(smartmem):
    outcome = smartmem("opt", "--list")
    listed = smartmem("opt", "--list", "--json").data["passes"]
    assert outcome.code == 0 and [each["pass"] for each in listed] == [*PASSES]
    assert all(name in outcome.out for name in PASSES) and "fuse-attention{on_chip_bytes=524288}" in outcome.out


def test_the_list_of_a_pipeline(smartmem):
    outcome, listed = smartmem("opt", "--list", "--target", "adreno-740"), passes_of(smartmem, "adreno-740")
    assert outcome.code == 0 and all(each["pass"] in outcome.out for each in listed)
    switches = {each["pass"]: each["switched_off_by"] for each in listed}
    assert {name: switches[name] for name in ("place-textures", "fold-scales", "store-half", "apply-records")} == {
        "place-textures": "--no-textures",
        "fold-scales": "--no-rewrite",
        "store-half": "--precision float32",
        "apply-records": "--no-tuned",
    }
    assert switches["relax.LegalizeOps"] is None


@pytest.mark.parametrize("target, extra", [("cpu", ()), ("adreno-740", ("--precision", "half-storage"))])
def test_the_listed_pipeline_is_what_compile_runs(smartmem, model_path, tmp_path, monkeypatch, target, extra):
    """With one technique switched off, and no records."""
    made = []
    monkeypatch.setattr(pipeline, "make_pass", lambda name, *rest: made.append(name) or make_pass(name, *rest))
    arguments = ("--target", target, "--no-fuse-attention", *extra)
    assert smartmem("compile", model_path, "-o", tmp_path / "out", *arguments).code == 0
    off = {"--no-fuse-attention", "--no-tuned"}
    left_out = {
        "plan-layout",
        "join-slices",
        "stream-weights",
        "keep-caches",
        "write-in-place",
        "bound-keys",
    }
    on_cpu = {"gather-rows", "slice-weights", "lift-workspaces", "round-products", "store-half", "round-weights"}
    left_out |= {"cpu": on_cpu, "adreno-740": {"compute-half", "round-factors", "round-weights"}}[target]
    listed = [each["pass"] for each in passes_of(smartmem, target) if each["switched_off_by"] not in off]
    assert made == [name for name in listed if name not in left_out]


@pytest.mark.parametrize("target", ["cpu", "adreno-740"])
def test_each_dump_becomes_the_next_one(smartmem, model_path, tmp_path, target):
    dump = tmp_path / "dump"
    arguments = ("--target", target, "--dump-dir", dump)
    assert smartmem("compile", model_path, "-o", tmp_path / "out", *arguments).code == 0
    files = sorted(dump.glob("*.json")) + sorted((dump / "lower").glob("*.json"))
    phases = {phase.name: phase for phase in phases_of(parse_target(target))}
    assert [path.stem[3:] for path in files] == [name for name, phase in phases.items() if phase.chosen(Options())]
    for before, after in pairwise(files):
        names = phases[after.stem[3:]].chosen(Options())
        outcome = smartmem("opt", before, "--target", target, "--pass", ",".join(names))
        assert outcome.code == 0, outcome.err
        assert outcome.out.rstrip("\n") == after.with_suffix(".py").read_text().rstrip("\n"), after.name


def test_a_phase_stands_for_its_passes(smartmem, model_path):
    whole = smartmem("opt", model_path, "--pass", "legalize,eliminate-layout")
    legalize = next(phase for phase in phases_of(None) if phase.name == "legalize")
    assert smartmem("opt", model_path, "--pass", ",".join((*legalize.passes, "eliminate-layout"))).out == whole.out
    assert whole.out.count("R.call_tir(") == 3 and "@T.prim_func" in whole.out


def test_counts_before_and_after_each_pass(smartmem, model_path):
    found = smartmem("opt", model_path, "--pass", "relax.LegalizeOps,eliminate-layout,schedule-kernels", "--json").data
    assert [each["pass"] for each in found["passes"]] == ["relax.LegalizeOps", "eliminate-layout", "schedule-kernels"]
    counts = [each["before"] for each in found["passes"]] + [found["passes"][-1]["after"]]
    assert [tuple(each.values()) for each in counts] == [(7, 0, 0), (0, 7, 4), (0, 3, 0), (0, 3, None)]
    assert all(each["changed"] for each in found["passes"])
    again = smartmem("opt", model_path, "--pass", "relax.DeadCodeElimination", "--json").data
    assert again["passes"][0]["changed"] is False


def test_files_that_opt_writes_are_files_that_it_reads(smartmem, model_path, tmp_path):
    first, second = tmp_path / "a.json", tmp_path / "b.py"
    outcome = smartmem("opt", model_path, "--pass", "legalize", "-o", first)
    assert outcome.code == 0 and f"Written to {first}." in outcome.out and "R.call_tir" not in outcome.out
    printed = smartmem("opt", first, "--pass", "eliminate", "-o", second, "--print")
    assert printed.out.rstrip("\n") == second.read_text().rstrip("\n")
    assert printed.out == smartmem("opt", model_path, "--pass", "legalize,eliminate").out


@pytest.fixture
def script(tmp_path):
    """Attention of one head, in TVMScript."""
    path = tmp_path / "attention.py"
    path.write_text("""
from tvm.script import ir as I
from tvm.script import relax as R

@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((64, 64), "float32")) -> R.Tensor((64, 64), "float32"):
        with R.dataflow():
            y = R.matmul(R.nn.softmax(R.matmul(x, R.permute_dims(x))), x)
            R.output(y)
        return y
""")
    return path


def test_tvmscript_is_read(smartmem, script):
    outcome = smartmem("opt", script, "--pass", "relax.LegalizeOps,eliminate-layout")
    assert outcome.code == 0 and outcome.out.count("R.call_tir") == 3


def test_options_of_a_pass(smartmem, script):
    for text, kernels in (("fuse-attention{on_chip_bytes=1}", 3), ("fuse-attention", 1)):
        found = smartmem("opt", script, "--pass", f"legalize,eliminate,{text}", "--json").data["passes"][-1]
        assert found["before"]["kernels"] == 3 and found["after"]["kernels"] == kernels


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (("--pass", "fuse-row"), "the nearest name is 'fuse-rows'"),
        (("--pass", "fuse-rows{"), "is no list of passes"),
        (("--pass", "select-layout{fast_axes=x}"), "Option fast_axes of pass 'select-layout'"),
        (("--pass", "place-textures"), "needs a target with textures"),
        (("--pass", "apply-records"), "has no records to apply"),
        (
            ("--pass", "precision", "--target", "opencl"),
            "Phase 'precision' has no pass to run here: name some of store",
        ),
        (("--pass", "fuse", "-o", "x.txt"), "ends neither in .py nor in .json"),
        (("--pass", "fuse", "-o", "missing/x.json"), "cannot be written"),
        (("--list",), "--list takes no file"),
        ((), "opt needs a file and --pass"),
        (("--pass", "fuse", "--target", "hexagon"), "neither a CPU nor a GPU"),
    ],
)
def test_what_is_refused(smartmem, model_path, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    outcome = smartmem("opt", model_path, *arguments)
    assert outcome.code == 2 and outcome.out == "" and sentence in outcome.err and outcome.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_files_that_cannot_be_read(smartmem, model_path, tmp_path):
    (tmp_path / "m.json").write_text("{}")
    for path, sentence in (("missing.json", "cannot be read"), ("m.json", "m.json"), ("missing.onnx", "missing.onnx")):
        outcome = smartmem("opt", tmp_path / path, "--pass", "fuse-rows")
        assert outcome.code == 2 and outcome.out == "" and sentence in outcome.err
    assert smartmem("opt", "--pass", "fuse-rows").code == smartmem("opt", model_path).code == 2
    outcome = smartmem("opt", tmp_path / "m.json", "--pass", "fuse-rows", "--shape", "x:1")
    assert outcome.code == 2 and "--shape is for ONNX files" in outcome.err


@pytest.mark.parametrize("error, sentence", [(UserError("Bad."), "Bad."), (ValueError("deep\nhole"), "(hole)")])
def test_a_pass_that_fails_leaves_nothing(smartmem, model_path, tmp_path, monkeypatch, error, sentence):
    import tvm

    @tvm.transform.module_pass(opt_level=0, name="failing")
    def failing(_mod, _ctx):
        raise error

    monkeypatch.setattr("smartmem_tvm.pass_registry.make_pass", lambda *_: failing)
    outcome = smartmem("opt", model_path, "--pass", "fuse-rows", "-o", tmp_path / "m.json", "--json")
    assert outcome.code == 2 and outcome.out == "" and sentence in outcome.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.device
def test_checks_name_the_pass_and_the_kernel(smartmem, model_path, monkeypatch):
    assert smartmem("opt", model_path, "--pass", "legalize,eliminate-layout", "--check", "outputs").code == 0
    right = Simplifier.index
    wrong = {tirx.Add: lambda expr: expr.b}
    monkeypatch.setattr(Simplifier, "index", lambda *args: wrong.get(type(e := right(*args)), lambda e: e)(e))
    for check, words in (("outputs", "pass 'eliminate-layout' changes output"), ("maps", "the kernel of reshape")):
        outcome = smartmem("opt", model_path, "--pass", "legalize,eliminate-layout", "--check", check)
        assert outcome.code == 2 and words in outcome.err, outcome.err
