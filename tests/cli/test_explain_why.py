# SPDX-License-Identifier: Apache-2.0
"""``smartmem explain --why KERNEL``: for people, for machines, and what is no kernel."""

import pytest

ADRENO = ("--target", "adreno-740")


def test_the_text_has_the_kernel_its_plan_its_price_and_the_other_rules(smartmem, model_path):
    outcome = smartmem("explain", model_path, "--why", "1", "--threads", "1")
    assert outcome.code == 0, outcome.err
    for said in (
        "kernel 1 of",
        "Tensors",
        "Operators",
        "Rule: ",
        "What was decided",
        "What it takes".lower(),
        "Roofline:",
        "Time: a launch takes",
        "of which the bound is",
    ):
        assert said in outcome.out, said
    assert "Other rules, in the order in which they are asked" in outcome.out


def test_json_has_the_same_by_name_and_by_number(smartmem, model_path):
    by_number = smartmem("explain", model_path, "--why", "2", "--json", *ADRENO).data
    by_name = smartmem("explain", model_path, "--why", by_number["kernel"], "--json", *ADRENO).data
    assert by_name == by_number and by_number["number"] == 2
    assert by_number["roofline"]["device"] == "adreno-740" and by_number["clock"] > 1e8
    assert by_number["target"] == "opencl" and by_number["plan"]["decisions"]
    assert by_number["seconds"] is by_number["of_roofline"] is None and "adreno-740" in by_number["not_measured"]


def test_the_time_is_that_of_a_launch_beside_its_bound(smartmem, model_path):
    data = smartmem("explain", model_path, "--why", "1", "--threads", "1", "--json").data
    assert data["not_measured"] is None and data["seconds"] > 0
    assert data["of_roofline"] == pytest.approx(data["roofline"]["seconds"] / data["seconds"])


def test_numbers_are_those_that_explain_prints(smartmem, model_path):
    listed = smartmem("explain", model_path, "--json").data["kernels"]
    assert [each["number"] for each in listed] == [*range(1, len(listed) + 1)]
    text = smartmem("explain", model_path, "--all").out
    assert all(f"{each['number']}: {each['kernel']}" in text for each in listed)


@pytest.mark.parametrize("kernel", ["no_such_kernel", "0", "1000"])
def test_what_is_no_kernel_is_one_sentence_and_code_two(smartmem, model_path, kernel):
    outcome = smartmem("explain", model_path, "--why", kernel, *ADRENO)
    assert outcome.code == 2 and outcome.out == ""
    assert outcome.err.startswith("smartmem: error: ") and outcome.err.strip().count("\n") == 0


def test_the_nearest_names_are_offered(smartmem, model_path):
    listed = smartmem("explain", model_path, "--json").data["kernels"]
    name = listed[0]["kernel"]
    outcome = smartmem("explain", model_path, "--why", name[:-1] + "_", *ADRENO)
    assert outcome.code == 2 and "nearest names are '" in outcome.err


@pytest.mark.parametrize("option", [("--op", "matmul"), ("--all",), ("--schedules",)])
def test_what_does_nothing_beside_it_is_refused(smartmem, model_path, option):
    outcome = smartmem("explain", model_path, "--why", "1", *option)
    assert outcome.code == 2 and "--why is about one kernel" in outcome.err


def test_switched_off_schedules_are_refused(smartmem, model_path):
    outcome = smartmem("explain", model_path, "--why", "1", "--no-schedule")
    assert outcome.code == 2 and "schedules are switched off" in outcome.err
