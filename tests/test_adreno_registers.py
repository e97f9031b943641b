# SPDX-License-Identifier: Apache-2.0
"""Models of registers, waves and inner loops beside the compiler (benchmarks/adreno_registers.json)."""

import runpy
from collections import Counter
from pathlib import Path

import pytest

from smartmem_tvm.schedule.gpu.waves import waves
from smartmem_tvm.tables.targets import TARGETS

ROOT = Path(__file__).resolve().parent.parent
BENCH = runpy.run_path(str(ROOT / "benchmarks" / "adreno_registers.py"))
KERNELS = BENCH["read"](BENCH["RESULTS"])["kernels"]
SHARES = BENCH["shares"](KERNELS)
PAGE = (ROOT / "docs" / "adreno.md").read_text(encoding="utf-8")
# Rule -> the least shares of kernels about which the models are right. Windows and rows miss the goal of 95 %: what
# they hold depends on index expressions, which no tile tells (docs/adreno.md).
LEAST = {
    "GpuMatmul": {"registers": 0.95, "waves": 0.95, "loop": 0.95},
    "GpuRowChains": {"registers": 0.95, "waves": 0.9},
    "GpuRows": {"registers": 0.75, "waves": 0.75},
    "WindowProduct": {"registers": 0.7, "waves": 0.7},
    "WindowSlide": {"registers": 0.5, "waves": 0.45},
    "all": {"registers": 0.85, "waves": 0.85, "loop": 0.95},
}


def test_enough_kernels_of_six_networks_two_precisions_and_three_adrenos():
    assert len(KERNELS) >= 300
    assert {each["network"] for each in KERNELS} == set(BENCH["MODELS"])
    assert {each["precision"] for each in KERNELS} == set(BENCH["PRECISIONS"])
    assert {each["gpu"] for each in KERNELS} == set(BENCH["GPUS"])
    assert max(Counter(tuple(each[key] for key in BENCH["_ORDER"]) for each in KERNELS).values()) == 1


@pytest.mark.parametrize("rule", LEAST)
def test_the_models_are_right_about_most_kernels(rule):
    found = SHARES[rule]
    assert {key: found[key] for key in LEAST[rule] if found[key] < LEAST[rule][key]} == {}


def test_waves_follow_from_the_compilers_registers():
    right = [
        waves(TARGETS[f"adreno-{k['gpu']}"].core, k["registers"], k["threads"], k["local_bytes"], k["halves"])
        == k["waves"]
        for k in KERNELS
    ]
    assert sum(right) >= 0.95 * len(right)


def test_every_rule_has_a_model():
    assert all(BENCH["judged"](each) is not None for each in KERNELS)
    assert BENCH["judged"]({**KERNELS[0], "rule": "no rule of this name"}) is None


def test_the_page_has_the_table_of_the_file():
    assert "\n".join(BENCH["table"](KERNELS)) in PAGE
