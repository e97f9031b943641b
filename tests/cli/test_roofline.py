# SPDX-License-Identifier: Apache-2.0
"""``smartmem roofline``, and bounds in ``smartmem explain --schedules``."""

import pytest

from smartmem_tvm.analysis.roofline import Speed
from smartmem_tvm.runtime import speed, speed_cpu


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """One whose figures are known, beside which no kernel is slow, or all are."""
    monkeypatch.setenv(speed.FOLDER_VARIABLE, str(tmp_path / "kept"))
    asked = []

    def measured(_target, threads, name):
        asked.append(threads)
        rate, launch = (1e9, 1e-6) if len(asked) == 1 else (1e30, 0.0)
        return Speed(name, threads, {"float32": rate}, {"exp": rate}, ((1024, rate),), ((1024, rate),), launch)

    monkeypatch.setattr(speed_cpu, "measured", measured)
    return asked


def test_a_machine_as_tables_and_for_machines(smartmem, machine):
    outcome = smartmem("roofline", "--threads", "1")
    assert outcome.code == 0 and "measured. A launch takes 1.0 us." in outcome.out
    for word in ("float32", "exp", "1 KiB", "1.0"):
        assert word in outcome.out
    data = smartmem("roofline", "--threads", "1", "--json").data
    assert machine == [1] and data["multiply_adds"] == {"float32": 1e9} and data["target"] == "cpu"
    assert smartmem("roofline", "--threads", "1", "--again", "--json").data["multiply_adds"] == {"float32": 1e30}


def test_devices_elsewhere_are_those_of_the_tables(smartmem, machine):
    outcome = smartmem("roofline", "--target", "adreno-740")
    assert "from smartmem_tvm.tables.targets" in outcome.out and not machine


def test_devices_that_nobody_knows(smartmem):
    outcome = smartmem("roofline", "--target", '{"kind": "vulkan", "max_num_threads": 256}')
    assert outcome.code == 2 and "The speed of a device for target" in outcome.err


def test_explain_shows_bounds_beside_times(smartmem, model_path):
    outcome = smartmem("explain", model_path, "--schedules", "--threads", "1")
    assert outcome.code == 0 and "of the roofline" in outcome.out and "more than 4x off the roofline:" in outcome.out
    data = smartmem("explain", model_path, "--schedules", "--threads", "1", "--json").data
    kernels = data["kernels"]
    assert all(each["of_roofline"] == pytest.approx(each["bound_seconds"] / each["seconds"]) for each in kernels)
    slow = sum(each["share"] for each in kernels if each["of_roofline"] < 0.25)
    assert data["slow_share"] == pytest.approx(slow) and data["speed"]["threads"] == 1


def test_explain_names_what_is_far_off(smartmem, model_path, machine):
    machine.append(0)  # the fast one
    outcome = smartmem("explain", model_path, "--schedules", "--threads", "1")
    assert "More than 4x off the roofline" in outcome.out and "off the roofline: 100.00%" in outcome.out


def test_explain_says_why_kernels_have_no_bounds(smartmem, model_path, monkeypatch):
    from smartmem_tvm.runtime import kernel_bounds

    def refuses(*_):
        raise kernel_bounds.Opaque("it chooses among hundreds")

    monkeypatch.setattr(kernel_bounds, "work", refuses)
    outcome = smartmem("explain", model_path, "--schedules", "--threads", "1")
    assert "in kernels without a bound: 100.00% (it chooses among hundreds)." in outcome.out
    monkeypatch.setattr(kernel_bounds, "speed_of", lambda _: None)
    outcome = smartmem("explain", model_path, "--schedules", "--threads", "1")
    assert "the speed of the device is unknown" in outcome.out and "off the roofline" not in outcome.out


def test_explain_knows_bounds_without_the_device(smartmem, model_path):
    data = smartmem("explain", model_path, "--schedules", "--target", "adreno-740", "--json").data
    assert data["not_measured"] and data["slow_share"] is None
    assert all(each["bound_seconds"] > 0 and each["of_roofline"] is None for each in data["kernels"])
