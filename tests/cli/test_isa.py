# SPDX-License-Identifier: Apache-2.0
"""``smartmem isa``: kernels as Mesa's compiler has them, with a recorded answer of it, and with Mesa itself."""

import sys
from pathlib import Path

import onnx
import pytest

from smartmem_tvm import mesa_folder
from smartmem_tvm.tools.isa import compiler

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from decoder_network import ELEMENTS, Decoder

RECORDED = Path(__file__).parents[1] / "tools" / "isa" / "samples" / "adreno740.txt"
NAMES = {f"/w/x/{number}.cl": name for number, name in enumerate(("half_product", "lane", "nested", "refused"))}


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Every program gets one of the recorded answers; returns the programs that were compiled."""
    asked = {}

    def run(programs, gpu):
        with RECORDED.open(encoding="utf-8") as lines:
            answers = [made for _, made in compiler.read(lines, NAMES)]
        for number, (name, program) in enumerate(programs.items()):
            asked[name] = (gpu, program)
            yield name, answers[(number + 1) % 4]  # a lane, nested loops, a refusal

    monkeypatch.setenv(compiler.FOLDER_VARIABLE, str(tmp_path / "kept"))
    monkeypatch.setattr(compiler, "mesa_problem", lambda *_: None)
    monkeypatch.setattr(compiler, "mesa_version", lambda *_: "26.2.6-1")
    monkeypatch.setattr(compiler, "_run", run)
    return asked


def test_json(smartmem, model_path, recorded):
    outcome = smartmem("isa", model_path, "--target", "adreno-740", "--json")
    assert outcome.code == 0, outcome.err
    data = outcome.data
    assert set(data) == {"model", "target", "gpu", "mesa", "kernels"} and data["gpu"] == 740
    first, second, third = data["kernels"]
    assert [each["number"] for each in data["kernels"]] == [1, 2, 3]
    assert first["kernel"] in recorded and first["rule"] != "-" and first["launches"] == 1
    assert first["bound_seconds"] > 0 and first["scratch"] == 2 and first["inner_loop"] is None
    assert second["inner_loop"]["trips"] == 120 and second["limited_by"] == "local memory"
    assert "nonsense" in third["refused"] and "instructions" not in third
    gpu, program = recorded[first["kernel"]]
    assert gpu == 740 and "reqd_work_group_size" in program and "image2d_array_t" in program


def test_table(smartmem, model_path, recorded):
    outcome = smartmem("isa", model_path, "--gpu", "660", "--precision", "half")
    assert outcome.code == 0, outcome.err
    assert {gpu for gpu, _ in recorded.values()} == {660}
    for word in ("for Adreno 660", "scratch", "waves", "local memory", "issue", "bound", *list(recorded)[:2]):
        assert word in outcome.out
    assert "has no code: input.cl" in outcome.out and "1 of 2 kernels reach scratch memory" in outcome.out


def test_one_kernel(smartmem, model_path, recorded):
    everything = smartmem("isa", model_path, "--json").data["kernels"]
    assert len(recorded) == 3
    recorded.clear()
    outcome = smartmem("isa", model_path, "--kernel", "2", "--json")
    assert outcome.code == 0 and [each["kernel"] for each in outcome.data["kernels"]] == [everything[1]["kernel"]]
    assert not recorded  # it was kept
    listing = outcome.data["listing"]
    assert any("mad.f32" in line for line in listing) and listing[0].endswith(":")
    shown = smartmem("isa", model_path, "--kernel", everything[1]["kernel"].removesuffix("_kernel"))
    assert shown.code == 0 and "120 trips" in shown.out and all(line in shown.out for line in listing)
    assert "[r" in "".join(listing)  # brackets are printed as they are


def test_a_compiled_folder(smartmem, model_path, recorded, tmp_path):
    folder = tmp_path / "phone"
    assert smartmem("compile", model_path, "--target", "adreno-740", "-o", folder).code == 0
    from_file = smartmem("isa", model_path, "--json").data["kernels"]
    programs = dict(recorded)
    recorded.clear()
    outcome = smartmem("isa", folder, "--json")
    assert outcome.code == 0, outcome.err
    assert [each["kernel"] for each in outcome.data["kernels"]] == [each["kernel"] for each in from_file]
    assert outcome.data["target"] == "adreno-740" and outcome.data["kernels"][0]["launches"] is None
    assert not recorded, {name: (recorded[name][1], programs[name][1]) for name in recorded}  # the same programs


def test_a_model_that_keeps_its_caches(smartmem, recorded, tmp_path):
    """Of a file at each size, and of a folder that holds both: the same kernels."""
    onnx.save(Decoder(layers=1, tokens="tokens", form=ELEMENTS, capacity=32).model(), tmp_path / "model.onnx")
    shapes = [word for name in ("input_ids", "position_ids") for word in ("--shape", f"{name}:1,{{1,4}}")]
    asked = (tmp_path / "model.onnx", "--target", "adreno-740", "--cache", "auto", *shapes)
    outcome = smartmem("isa", *asked, "--json")
    assert outcome.code == 0, outcome.err
    for size in outcome.data["sizes"]:
        rules = [each["rule"] for each in size["kernels"]]
        assert "GpuOverKeys" in rules
        (writer,) = [each for each in size["kernels"] if each["kernel"].startswith("write_rows")]
        assert writer["launches"] == 1
    assert smartmem("compile", *asked, "-o", tmp_path / "folder").code == 0
    of_folder = smartmem("isa", tmp_path / "folder", "--json")
    assert of_folder.code == 0, of_folder.err
    assert any(each["kernel"].startswith("write_rows") for each in of_folder.data["kernels"])
    refused = smartmem("isa", tmp_path / "folder", "--cache", "auto")
    assert refused.code == 2 and "--cache does nothing here" in refused.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "MODEL, or --setup"),
        (("MODEL", "--setup"), "MODEL, or --setup"),
        (("--setup", "--kernel", "3"), "--kernel does nothing here"),
        (("MODEL", "--target", "cpu"), "is no Adreno"),
        (("MODEL", "--target", "mali-g57", "--gpu", "g31"), "Mali G31 was not tried"),
        (("MODEL", "--gpu", "G57"), "--gpu G57 is no number of an Adreno"),
        (("--setup", "--target", "cpu"), "is no Adreno and no Mali"),
        (("MODEL", "--target", "adreno-650"), "Adreno 650; give --gpu 660"),
        (("MODEL", "--target", "adreno-540"), "Adreno 540; give --gpu 610"),
        (("MODEL", "--kernel", "99"), "no kernel '99' among 3"),
        (("MODEL", "--kernel", "softmx"), "nearest names are softmax"),
        (("MODEL", "--no-schedule"), "--no-schedule does nothing here"),
        (("FOLDER",), "is no Adreno"),
        (("FOLDER", "--precision", "half"), "--precision does nothing here"),
    ],
)
def test_refusals(smartmem, model_path, compiled_folder, recorded, arguments, said):
    places = {"MODEL": model_path, "FOLDER": compiled_folder}
    outcome = smartmem("isa", *(places.get(each, each) for each in arguments))
    assert outcome.code == 2 and said in outcome.err, outcome.err
    assert outcome.out == "" and outcome.err.count("\n") == 1 and not recorded


def test_mali(smartmem, model_path, recorded, monkeypatch):
    sample = RECORDED.with_name("mali_g57.txt")

    def run(programs, gpu):
        for name in programs:
            with sample.open(encoding="utf-8") as lines:
                ((_, made),) = compiler.read(lines, {"/w/b.cl": name})
            recorded[name] = (gpu, made)
            yield name, made

    monkeypatch.setattr(compiler, "_run", run)
    outcome = smartmem("isa", model_path, "--target", "mali-g57", "--gpu", "g76", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.data["gpu"] == "G76" and outcome.data["kernels"][0]["threads_held"] == "full"
    shown = smartmem("isa", model_path, "--target", "mali-g57")
    assert shown.code == 0 and "for Mali G57" in shown.out and "threads" in shown.out and "waves" not in shown.out
    assert "0 of 3 kernels need more than 32 registers" in shown.out
    one = smartmem("isa", model_path, "--target", "mali-g57", "--kernel", "1")
    assert one.code == 0 and "23 registers of 32 bits, full threads" in one.out and "FMA.v2f16" in one.out


def test_without_mesa(smartmem, model_path, tmp_path, monkeypatch):
    monkeypatch.setenv(mesa_folder.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(mesa_folder, "machine_problem", lambda *_: None)
    outcome = smartmem("isa", model_path)
    assert outcome.code == 2 and "smartmem isa --setup" in outcome.err and outcome.err.count("\n") == 1


@pytest.mark.device
def test_with_mesa_itself(smartmem, model_path, tmp_path, monkeypatch):
    if problem := mesa_folder.mesa_problem():
        pytest.skip(f"{problem}: nothing of this command was tested with Mesa")
    monkeypatch.setenv(compiler.FOLDER_VARIABLE, str(tmp_path))
    for precision in ("float32", "half"):
        outcome = smartmem("isa", model_path, "--precision", precision, "--json")
        assert outcome.code == 0, outcome.err
        kernels = outcome.data["kernels"]
        assert len(kernels) == 3 and not any(each["refused"] for each in kernels)
        for each in kernels:
            assert 0 < each["registers"] <= 48 and 2 <= each["waves"] <= 32 and each["issue_seconds"] > 0
            assert each["instructions"] <= sum(each["classes"].values())
        assert any(each["classes"]["float16" if precision == "half" else "float32"] >= 32 for each in kernels)
    assert len(list(tmp_path.iterdir())) == 6
