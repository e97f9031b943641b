# SPDX-License-Identifier: Apache-2.0
"""The names of ``--against``: what each is, and for which target."""

import pytest

from smartmem_tvm.errors import UserError
from smartmem_tvm.tools.bench.names import SystemSpec, parse_systems


def test_names_targets_and_techniques():
    systems = parse_systems("no-cuda-graph,smartmem@opencl,tvm,tvm@opencl,onnxruntime,tvm", "cuda")
    assert systems == (
        SystemSpec("no-cuda-graph", "smartmem", "cuda", {"cuda_graph": False}),
        SystemSpec("smartmem@opencl", "smartmem", "opencl"),
        SystemSpec("tvm", "tvm", "cuda"),
        SystemSpec("tvm@opencl", "tvm", "opencl"),
        SystemSpec("onnxruntime", "onnxruntime", "cpu"),
    )
    assert parse_systems("none", "cuda") == ()
    assert parse_systems("no-fuse-attention@opencl", "cpu")[0].request() == {
        "system": "no-fuse-attention@opencl",
        "kind": "smartmem",
        "target": "opencl",
        "options": {"fuse_attention": False},
    }


def test_with_other_records_and_without():
    plain, tuned = parse_systems("no-tuned,tuned=a/b.jsonl@cuda", "cpu")
    assert plain == SystemSpec("no-tuned", "smartmem", "cpu", records="") and plain.request()["records"] == ""
    assert tuned == SystemSpec("tuned=a/b.jsonl@cuda", "smartmem", "cuda", records="a/b.jsonl")
    assert tuned.request()["records"] == "a/b.jsonl" and "records" not in SystemSpec("tvm", "tvm", "cpu").request()


BAD = {
    "tuned=": "'tuned='; it knows",
    "magic": "it knows smartmem, tvm",
    "no-magic": "'no-magic'",
    "tvm@": "tvm@opencl",
    "onnxruntime@cuda": "leave @cuda out",
}


@pytest.mark.parametrize("text", BAD)
def test_names_that_mean_nothing(text):
    with pytest.raises(UserError) as caught:
        parse_systems(f"tvm,{text}", "cpu")
    assert BAD[text] in str(caught.value) and "\n" not in str(caught.value)
