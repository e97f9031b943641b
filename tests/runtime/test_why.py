# SPDX-License-Identifier: Apache-2.0
"""Why a kernel is what it is: names and numbers, plans of each kind of target, and what is said of the other rules."""

import json

import numpy as np
import pytest
import tvm
from tvm import relax

from helpers import module
from smartmem_tvm import Options, UserError, optimize
from smartmem_tvm.analysis.roofline import Speed
from smartmem_tvm.runtime import why as why_module
from smartmem_tvm.runtime.kernel_bounds import kernel_bounds
from smartmem_tvm.runtime.why import clock_of, named, why
from smartmem_tvm.target import parse_target

_X86 = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "num-cores": 8}
_BLOCKS = {"max_threads_per_block": 1024, "max_shared_memory_per_block": 49152, "thread_warp_size": 32}
TARGETS = {
    "haswell": ({**_X86, "mcpu": "haswell"}, "float32"),
    "amx": ({**_X86, "mcpu": "sapphirerapids"}, "bfloat16"),
    "sm_90a": ({"kind": "cuda", "arch": "sm_90a", **_BLOCKS}, "half"),
    "opencl": ({"kind": "opencl", "max_num_threads": 256, "max_shared_memory_per_block": 32768}, "float32"),
    "adreno-740": ("adreno-740", "float32"),
}
NAMES = ["matmul_add", "softmax", "matmul_add", "conv2d_relu"]


def convolution(size=3, channels=64) -> tvm.IRModule:
    """A padded convolution with constant weights, and a product after it."""
    rng = np.random.default_rng(0)
    weights = relax.const(rng.standard_normal((channels, channels, size, size)).astype("float32") / 24)
    matrix = relax.const(rng.standard_normal((28, 96)).astype("float32"))

    def build(x):
        image = relax.op.nn.relu(relax.op.nn.conv2d(x, weights, padding=size // 2))
        return relax.op.matmul(image, matrix)

    return module(build, (1, channels, 28, 28))


SPEED = Speed("made up", 4, {"float32": 256e9}, {}, ((1 << 14, 1e11), (1 << 26, 1e10)), launch=1e-6)


@pytest.fixture(autouse=True)
def a_known_device(monkeypatch):
    """No machine is measured: roofs are those of a device that is made up."""
    monkeypatch.setattr(why_module, "roofline", lambda graph, _: (SPEED, kernel_bounds(graph, SPEED)))


def asked(name: str, kernel: str = "1", mod: tvm.IRModule | None = None, **options) -> dict:
    attributes, precision = TARGETS[name]
    target = parse_target(attributes if isinstance(attributes, str) else json.dumps(attributes))
    chosen = Options(precision=precision, **options)
    return why(optimize(mod or convolution(), target, chosen), target, chosen, kernel)


def test_a_kernel_has_a_name_or_a_number():
    assert named("softmax", NAMES) == "softmax" and named("3", NAMES) == "matmul_add" and named("1", NAMES) == NAMES[0]


@pytest.mark.parametrize("wrong", ["softmx", "conv2d", "0", "5", "99", "-1", "", "3.0", "²"])
def test_what_is_no_kernel_gets_a_sentence_with_the_nearest_names(wrong):
    with pytest.raises(UserError) as error:
        named(wrong, NAMES)
    said = str(error.value)
    assert "\n" not in said and said.endswith(".")
    if wrong in ("softmx", "conv2d"):
        assert {"softmx": "'softmax'", "conv2d": "'conv2d_relu'"}[wrong] in said
    if wrong.isdecimal():
        assert "4, numbered from 1" in said


def test_a_network_without_kernels_has_none_to_offer():
    with pytest.raises(UserError, match="nearest names are none"):
        named("softmax", [])


@pytest.mark.parametrize("target", TARGETS)
def test_each_kind_of_target_has_an_answer(target):
    found = asked(target)
    assert found["number"] == 1 and found["of"] >= 2 and found["launches"][0] == 1
    assert [each["role"] for each in found["parameters"]].count("output") == 1
    assert any("conv2d" in each for each in found["operators"])
    assert found["plan"]["decisions"] or found["plan"]["notes"]
    assert all(each["reason"] or each["rule"] for each in found["others"]) and len(found["others"]) >= 8
    assert found["rule"] not in [each["rule"] for each in found["others"]]
    assert found["roofline"]["seconds"] > 0 and found["roofline"]["by"] in found["roofline"]["parts"]
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("target", TARGETS)
def test_prices_are_seconds_at_the_clock(target):
    found = asked(target, "2")
    prices = [price for plan in [found["plan"], *found["others"]] for price in plan.get("prices", ())]
    assert prices and found["clock"] > 0
    for price in prices:
        assert price["seconds"] == pytest.approx(price["cycles"] / price["shared"] / found["clock"])


def test_on_a_cpu_loops_of_all_plans_are_counted_and_on_a_gpu_none():
    for target, counted in (("haswell", True), ("opencl", False)):
        found = asked(target, "2")
        plans = [found["plan"], *(each for each in found["others"] if not each["reason"])]
        assert len(plans) > 1 and all((each["loops"] is not None) is counted for each in plans)


def test_transformed_tiles_are_a_plan_and_the_plain_convolution_another_one():
    found = asked("haswell")
    assert found["rule"].endswith("Winograd") and found["plan"]["notes"]["winograd"]["result"] in (2, 4)
    assert "Winograd" not in [each["rule"] for each in found["others"]]
    plain = [each for each in found["others"] if each["rule"].endswith("Matmul") and not each["reason"]]
    assert plain and plain[0]["prices"][0]["cycles"] > 0


def test_why_there_are_no_transformed_tiles():
    small = asked("haswell", mod=convolution(channels=4))
    reasons = {each["rule"]: each["reason"] for each in small["others"]}
    assert "takes less time" in reasons["Winograd"] or "channels" in reasons["Winograd"]
    other = asked("haswell", mod=convolution(size=1))
    assert {e["rule"]: e["reason"] for e in other["others"]}["Winograd"] == "no 3 x 3 convolution of stride 1"


def test_what_is_rounded_says_so():
    found = asked("amx", "2")
    assert [each["multiplied"] for each in found["log"] if each["pass"] == "RoundProducts"] == [
        "bfloat16" if "Bfloat16Product" in found["rule"] else "float32"
    ]


def test_without_schedules_there_are_no_plans():
    with pytest.raises(UserError, match="schedules are switched off"):
        asked("haswell", schedule=False)


def test_a_device_that_is_not_known_has_no_clock(monkeypatch):
    monkeypatch.setattr(why_module, "roofline", lambda graph, target: (None, {}))
    found = asked("haswell", "2")
    assert found["clock"] is None and found["roofline"] == {
        "seconds": None,
        "reason": "how fast the device is, is not known",
    }
    assert all(price["seconds"] is None for price in found["plan"]["prices"])
    assert clock_of(parse_target("cpu"), None) is None


def test_the_clock_of_a_cpu_is_its_peak_over_what_a_cycle_does():
    target = tvm.target.Target({**_X86, "mcpu": "haswell"})
    assert clock_of(target, Speed("made up", 2, {"float32": 96e9})) == pytest.approx(3e9)  # two vectors of 8 numbers


def test_what_is_asked_changes_nothing():
    first, second = asked("haswell", "2"), asked("haswell", "2")
    assert first == second
