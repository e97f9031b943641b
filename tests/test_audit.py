# SPDX-License-Identifier: Apache-2.0
"""The audit over many networks: its table, networks that fail, resumed runs, and its page."""

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, save

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from audit_list import Input, chosen, networks  # noqa: E402
from audit_rows import is_right, is_undecided, line, ratio_of_faster  # noqa: E402
from audit_system import OnProcessor, ProcessorTime, planned  # noqa: E402
from pages import audit as page  # noqa: E402

from script_here import run_here  # noqa: E402
from smartmem_tvm.errors import UserError  # noqa: E402

TABLE = networks()
KINDS = "resnet densenet efficientnet mobilenetv1 mobilenetv2 mobilenetv3 mobilenetv4 regnet convnextv2 hrnet"
KINDS += " shufflenet ghostnet repvgg mobileone"


def test_the_table_has_all_families():
    assert len(TABLE) > 200
    families = {each.family for each in TABLE.values()}
    assert families >= {"convolution", "vision transformer", "hybrid", "detection", "segmentation", "text", "speech"}
    assert "diffusion" in families and {each.package for each in TABLE.values()} >= {"timm", "torchvision", "diffusers"}
    assert not [kind for kind in KINDS.split() if not any(name.startswith(kind) for name in TABLE)]


def test_families_take_turns_in_the_order_of_the_table():
    order = list(TABLE.values())
    families = len({each.family for each in order})
    assert len({each.family for each in order[:families]}) == families
    lines = json.loads((ROOT / "benchmarks" / "audit_networks.json").read_text(encoding="utf-8"))
    for family in ("convolution", "text"):
        assert [each.name for each in order if each.family == family] == [
            each["name"] for each in lines if each["family"] == family
        ]


def table(tmp_path, *lines) -> Path:
    path = tmp_path / "table.json"
    common = {"family": "convolution", "package": "timm", "make": "resnet18", "inputs": {"x": "1x3x8x8"}}
    path.write_text(json.dumps([{**common, **each} for each in lines]), encoding="utf-8")
    return path


def test_inputs(tmp_path):
    path = table(tmp_path, {"name": "a", "inputs": {"x": "1x3x8x8", "ids": "int64 1x9 < 50"}})
    assert networks(path)["a"].inputs == {"x": Input((1, 3, 8, 8)), "ids": Input((1, 9), "int64", 50)}


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([{"name": "a", "inputs": {"x": "1 x 3"}}], r"Input '1 x 3' of a is none; write 1x3x224x224"),
        ([{"name": "a", "inputs": {"x": [1, 3]}}], r"Input '\[1, 3\]' of a"),
        ([{"name": "a"}, {"name": "b"}, {"name": "a"}], "has two networks a"),
        ([{"name": "a", "package": "keras"}], "is no list of networks"),
        ([{"name": 1}], "is no list of networks"),
    ],
)
def test_tables_that_are_none(tmp_path, lines, sentence):
    with pytest.raises(UserError, match=sentence):
        networks(table(tmp_path, *lines))


def test_files_that_are_no_table(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        networks(tmp_path / "nowhere.json")


def test_what_is_chosen():
    assert [each.name for each in chosen(TABLE, ["resnet18", "BertModel"], ["time series"])] == [
        name for name in TABLE if name in ("resnet18", "BertModel") or TABLE[name].family == "time series"
    ]
    assert len(chosen(TABLE, [], [])) == len(TABLE)
    with pytest.raises(UserError, match="no network 'resnet1'"):
        chosen(TABLE, ["resnet1"], [])
    with pytest.raises(UserError, match="no family 'music'; it has convolution"):
        chosen(TABLE, [], ["music"])


def audit(*arguments):
    return run_here("audit", *arguments)


def rows(path: Path) -> dict:
    return {each["model"]: each for each in json.loads(path.read_text(encoding="utf-8"))["rows"]}


def test_a_network_that_fails_is_an_entry_and_the_next_one_is_taken(tmp_path):
    networks_file = table(tmp_path, {"name": "a", "make": "no_such_network"}, {"name": "b", "make": "nor_this"})
    common = ("--table", networks_file, "-o", tmp_path / "audit.json", "--no-times")
    done = audit(*common)
    found = rows(tmp_path / "audit.json")
    assert done.returncode == 2 and "[1/2] a: export: " in done.stdout and "[2/2] b: export: " in done.stdout
    assert [(each["stage"], bool(each["error"])) for each in found.values()] == [("export", True)] * 2
    assert audit(*common).stdout == "", "both are known"
    assert "[1/1] b: " in audit(*common, "b", "--failed").stdout


def test_wrong_arguments(tmp_path):
    done = audit("resnet1000", "-o", tmp_path / "audit.json")
    assert done.returncode == 2 and "audit.py: The audit has no network 'resnet1000'" in done.stderr
    done = audit("-o", tmp_path / "nowhere" / "audit.json")
    assert done.returncode == 2 and "nowhere" in done.stderr and "Traceback" not in done.stderr
    done = audit("--threads", "-1", "-o", tmp_path / "audit.json")
    assert done.returncode == 2 and "--threads" in done.stderr


@pytest.mark.device  # starts ONNX Runtime and TVM in processes of their own
def test_a_network_that_is_compiled_is_compared_and_counted(tmp_path):
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("MatMul", ["r", "w"], ["y"])]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [7, 5], np.ones(35, "float32"))
    x, y = (helper.make_tensor_value_info(*each) for each in (("x", 1, [3, 7]), ("y", 1, [3, 5])))
    proto = helper.make_model(helper.make_graph(nodes, "g", [x], [y], [weight]), ir_version=10)
    proto.opset_import[0].version = 20
    (tmp_path / "kept").mkdir()
    save(proto, tmp_path / "kept" / "a.onnx")
    networks_file = table(tmp_path, {"name": "a"}, {"name": "b", "make": "no_such_network"})
    common = ("--table", networks_file, "-o", tmp_path / "audit.json", "--no-times", "--keep", tmp_path / "kept")
    done = audit(*common, "a")
    row = rows(tmp_path / "audit.json")["a"]
    assert done.returncode == 0 and "[1/1] a: right (" in done.stdout, done.stderr
    assert is_right(row) and row["kernels"] >= 1 and row["layout_kernels"] == 0 and row["latency"] == {}
    assert row["memory"]["planned"] >= row["memory"]["least"]


def test_what_is_planned_beside_the_least():
    tensors = [
        {"storage": 0, "bytes": 64, "first": 0, "last": 1, "kind": "activation"},
        {"storage": 0, "bytes": 32, "first": 2, "last": 3, "kind": "activation"},
        {"storage": None, "bytes": 16, "first": 3, "last": 3, "kind": "workspace"},
        {"storage": None, "bytes": 999, "first": 3, "last": 3, "kind": "result"},
        {"storage": 1, "bytes": 999, "first": 3, "last": 3, "kind": "result"},
    ]
    assert planned({"storages": [{"bytes": 64}, {"bytes": 999}], "tensors": tensors}) == {"planned": 80, "least": 64}


class Sleeper:
    def __init__(self):
        self.facts = {}

    def run(self):
        time.sleep(0.2)

    feed = count = None


class Answering:
    """A child that serves in this process."""

    def __init__(self, system):
        self.system = system

    def call(self, name, *arguments):
        return getattr(self.system, name)(*arguments)


def test_time_in_which_others_have_the_processor_does_not_count():
    system = OnProcessor(Sleeper())
    total, each = system.serve(1)
    assert len(each) == 1 and total < 0.1
    (found,) = ProcessorTime(budget=1e-9, least=1, warm_up=0).measure([Answering(system)])
    assert found["latency_ms"]["median"] < 100 and found["latency_ms"]["runs"] == 1


def row(name="resnet18", deviation=1e-6, times=(10.0, 8.0, 5.0), **more) -> dict:
    systems = dict(zip(("smartmem", "onnxruntime", "openvino"), ({"median": each} for each in times)))
    known = {"model": name, "name": name, "family": TABLE[name].family, "package": "timm", "scale": ""}
    known |= {"deviation": deviation, "kernels": 23, "layout_kernels": 1, "seconds": {"passes": 1.0, "codegen": 2.0}}
    known |= {"memory": {"planned": 3, "least": 2}, "latency": {"1": systems} if times else {}, "date": "2026-01-01"}
    machine = {"cpu": "C", "cores": 2, "os": "O", "apache-tvm": "1", "onnxruntime": "2"}
    return {**known, "machine": machine, **more}


def test_right_and_how_many_times_the_faster():
    assert is_right(row()) and not is_right(row(deviation=2e-4)) and not is_right(row(deviation=None))
    assert ratio_of_faster(row()) == 2.0 and ratio_of_faster(row(times=())) is None
    assert ratio_of_faster(row(times=(10.0, 8.0))) == 1.25, "OpenVINO may fail"
    assert line(row()) == (
        "right (1.0e-06), 23 kernels, 1 of them layout, 3 s to compile; 10.00 ms on 1, 1.25x of onnxruntime's, "
        "2.00x of openvino's"
    )
    assert line({"stage": "export", "error": "It is odd."}) == "export: It is odd."


def test_what_rounding_decides_is_neither_right_nor_wrong():
    tie = row(deviation=0.8, reference_deviation=0.9)
    assert is_undecided(tie) and not is_right(tie) and line(tie).startswith("decided by rounding (8.0e-01)")
    assert not is_undecided(row(reference_deviation=0.9)), "it is right"
    assert not is_undecided(row(deviation=0.8)) and not is_undecided(row(deviation=0.8, reference_deviation=1e-3))
    found = page.page(TABLE, {"resnet18": tie})
    assert (
        "0 of them right, 1 decided by rounding" in found and "by rounding: ONNX Runtime is 9e-01 from itself" in found
    )


def test_the_page_says_what_was_found():
    found = {
        "resnet18": row(),
        "densenet121": row("densenet121", deviation=0.5, times=()),
        "BertModel": {**row("BertModel"), "stage": "smartmem", "error": "Operator | is <odd>."},
    }
    text = page.page(TABLE, found)
    assert f"3 of the {len(TABLE)} networks of the table were taken: 2 are compiled, 1 of them right, 1 could" in text
    assert f"1 were timed on one thread; {len(TABLE) - 1} are still to be timed, {len(TABLE) - 3} of them" in text
    assert "| resnet18 | timm | yes | 23 | 1 | 1.500x | 3 | 10.00 | 1.25x | 2.00x | - | - |" in text
    assert "| densenet121 | timm | **no**, 5e-01 |" in text
    assert "| BertModel | smartmem: Operator \\| is &lt;odd>. |" in text
    (mean,) = (line for line in text.splitlines() if line.startswith("On 1 thread ours take"))
    assert "Above 1.2x of the faster of the two: resnet18 2.00x." in mean


def test_what_the_roofline_leaves():
    text = page.page(TABLE, {"resnet18": row(of_roofline=0.5), "densenet121": row("densenet121")})
    assert (
        "Rooflines are 50% of our time on one thread: with every kernel at its own, ours would take 0.62x of ONNX "
        "Runtime's, 1.00x of OpenVINO's." in text
    )


def test_slow_kernels_that_count_are_listed_with_their_reason():
    kernel = {"kernel": "conv", "rule": "Slide", "share": 0.12, "of_roofline": 0.2, "bound_by": "memory", "off": "cold"}
    slow = [{**kernel, "kernel": "small", "share": 0.02}, {**kernel, "kernel": "resize", "share": 0.2, "off": None}]
    text = page.page(TABLE, {"resnet18": row(slow_kernels=[kernel, *slow])})
    first, second = (
        "| resize | resnet18 | Slide | 20% | 0.20 | memory | - |",
        "| conv | resnet18 | Slide | 12% | 0.20 |",
    )
    assert 0 < text.index(first) < text.index(second) and "memory | cold |" in text and "small" not in text


def test_what_takes_longer_than_asked_for_is_taken_again(tmp_path):
    networks_file = table(tmp_path, {"name": "a", "make": "no_such_network"}, {"name": "b", "make": "nor_this"})
    kept = {"format": 1, "rows": [{**row(), "model": "a"}, {**row(times=(10.0, 9.0, 10.0)), "model": "b"}]}
    (tmp_path / "audit.json").write_text(json.dumps(kept), encoding="utf-8")
    common = ("--table", networks_file, "-o", tmp_path / "audit.json")
    assert audit(*common).stdout == ""
    assert "[1/1] a: export: " in audit(*common, "--above", "1.5").stdout
