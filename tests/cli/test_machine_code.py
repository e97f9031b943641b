# SPDX-License-Identifier: Apache-2.0
"""What Mesa's compiler says in ``smartmem explain --schedules`` and ``smartmem report``, with its recorded answers."""

import json
from pathlib import Path

import pytest

from smartmem_tvm import mesa_folder
from smartmem_tvm.tools.isa import compiler

RECORDED = Path(__file__).parents[1] / "tools" / "isa" / "samples" / "adreno740.txt"
NAMES = {f"/w/x/{number}.cl": name for number, name in enumerate(("half_product", "lane", "nested", "refused"))}


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Mesa is there and answers as recorded: a lane in scratch memory, nested loops, a refusal."""

    def run(programs, gpu):
        assert gpu == 740
        with RECORDED.open(encoding="utf-8") as lines:
            answers = [made for _, made in compiler.read(lines, NAMES)]
        for number, name in enumerate(programs):
            yield name, answers[(number + 1) % 4]

    monkeypatch.setenv(compiler.FOLDER_VARIABLE, str(tmp_path / "kept"))
    for module in (compiler, mesa_folder):
        monkeypatch.setattr(module, "mesa_problem", lambda *_: None)
        monkeypatch.setattr(module, "mesa_version", lambda *_: "26.2.6-1")
    monkeypatch.setattr(compiler, "_run", run)


def explained(smartmem, model_path, *more):
    return smartmem("explain", model_path, "--schedules", *more)


def test_columns_and_json(smartmem, model_path, recorded):
    data = explained(smartmem, model_path, "--target", "adreno-740", "--json").data
    assert data["mesa"] == "26.2.6-1"
    codes = [each["machine_code"] for each in data["kernels"]]
    assert sum(code is None for code in codes) == 1 and sum(code["scratch"] == 2 for code in codes if code) == 1
    assert {"registers", "waves", "limited_by", "scratch", "instructions", "issue_seconds"} == set(
        next(filter(None, codes))
    )
    shown = explained(smartmem, model_path, "--target", "adreno-740")
    assert shown.code == 0 and "scratch" in shown.out and "1 of 2 kernels reach scratch memory" in shown.out


def test_only_kernels_that_are_asked_for(smartmem, model_path, recorded):
    everything = explained(smartmem, model_path, "--target", "adreno-740", "--json").data["kernels"]
    kernel = max((each["kernel"] for each in everything), key=len)
    data = explained(smartmem, model_path, "--target", "adreno-740", "--op", kernel, "--json").data
    assert [each["kernel"] for each in data["kernels"]] == [kernel] and "machine_code" in data["kernels"][0]


@pytest.mark.parametrize("target", ["adreno-650", "cuda"])
def test_devices_that_mesa_does_not_compile_for(smartmem, model_path, recorded, target):
    data = explained(smartmem, model_path, "--target", target, "--json").data
    assert data["mesa"] is None and not any("machine_code" in each for each in data["kernels"])


def test_mali(smartmem, model_path, recorded, monkeypatch):
    sample = RECORDED.with_name("mali_g76.txt")

    def run(programs, gpu):
        assert gpu == "G76"
        for name in programs:
            with sample.open(encoding="utf-8") as lines:
                ((_, made),) = compiler.read(lines, {"/w/b.cl": name})
            yield name, made

    monkeypatch.setattr(compiler, "_run", run)
    data = explained(smartmem, model_path, "--target", "mali-g76", "--json").data
    codes = [each["machine_code"] for each in data["kernels"]]
    assert data["held"] == "threads" and {code["waves"] for code in codes} <= {"full", "half"}
    shown = explained(smartmem, model_path, "--target", "mali-g76")
    assert shown.code == 0 and "Registers of 32 bits, threads and accesses of scratch memory" in shown.out


def test_without_mesa_there_are_no_columns(smartmem, model_path, monkeypatch):
    monkeypatch.setattr(mesa_folder, "mesa_problem", lambda *_: "it is not here: get it")
    outcome = explained(smartmem, model_path, "--target", "adreno-740")
    assert outcome.code == 0 and "scratch" not in outcome.out


def test_a_report_shows_it(smartmem, model_path, recorded, tmp_path):
    folder, file = tmp_path / "phone", tmp_path / "kernels.json"
    assert smartmem("compile", model_path, "--target", "adreno-740", "-o", folder).code == 0
    file.write_text(json.dumps(explained(smartmem, model_path, "--target", "adreno-740", "--json").data))
    page = tmp_path / "page.html"
    outcome = smartmem("report", folder, file, "-o", page)
    assert outcome.code == 0, outcome.err
    text = page.read_text(encoding="utf-8")
    assert '"mesa":"26.2.6-1"' in text and "machineSection" in text
