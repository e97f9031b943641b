# SPDX-License-Identifier: Apache-2.0
"""The time of an inference shared out among families of kernels, and kernels with textures beside their doubles."""

import pytest

from smartmem_tvm.tools.bench.kernel_families import paired
from smartmem_tvm.tools.bench.names import parse_systems
from smartmem_tvm.tools.bench.systems import largest_error, prepare

SYSTEMS = "smartmem,smartmem@opencl,tvm-textures,tvm-textures-matmul,onnxruntime"


@pytest.fixture(scope="module")
def measured(model_path):
    """What each system says of the attention model, and how far its results are from the right ones."""
    common = {"path": str(model_path), "shapes": {}, "threads": 1, "seed": 0}
    made = {each.name: prepare({**common, **each.request()}) for each in parse_systems(SYSTEMS, "opencl-texture")}
    inputs = made["smartmem"].facts["inputs"]
    outputs = {name: system.feed(inputs) for name, system in made.items()}
    expected = outputs["onnxruntime"]
    errors = {name: largest_error(each, expected) for name, each in outputs.items()}
    return {name: {**system.facts, **system.count(), "error": errors[name]} for name, system in made.items()}


@pytest.mark.device
def test_textures_and_buffers_have_the_same_kernels(measured):
    textures, buffers = (measured[name]["launch_us"] for name in ("smartmem", "smartmem@opencl"))
    assert [key.split("/")[::2] for key in textures] == [key.split("/")[::2] for key in buffers]
    assert {key.split("/")[1] for key in textures} == {"texture"} and {key.split("/")[1] for key in buffers} == {
        "buffer"
    }
    assert all(measured[name]["layout_share"] == 0 == measured[name]["layout_kernels"] for name in list(measured)[:2])


@pytest.mark.device
@pytest.mark.parametrize("name", ["tvm-textures", "tvm-textures-matmul"])
def test_layout_kernels_of_tvms_texture_pipelines_are_found(measured, name):
    facts = measured[name]
    assert facts["kernels"] == 5 and facts["layout_kernels"] == 2 and 0 < facts["layout_share"] < 1
    assert facts["families"]["layout"]["launches"] == 2 and "launch_us" not in facts
    assert sum(each["ms"] for each in facts["families"].values()) == pytest.approx(facts["device_ms"])


def test_all_of_them_are_right(measured):
    assert max(facts["error"] for facts in measured.values()) < 1e-6


def test_a_kernel_is_compared_with_the_one_of_the_same_result():
    textures = {"matmul/texture/a": 2.0, "other/texture/b": 3.0, "norm/buffer/c": 1.0, "norm/texture/d": 1.0}
    buffers = {"matmul/buffer/a": 4.0, "matmul/buffer/b": 2.0, "norm/buffer/c": 2.0}
    systems = {"t": {"launch_us": textures}, "b": {"launch_us": buffers}}
    # The family is the one in buffers; c touches no texture, d is alone.
    assert paired(systems, "t", "b") == {"matmul": [0.5, 1.5]}
    assert paired({}, "t", "b") == {}
