# SPDX-License-Identifier: Apache-2.0
"""``smartmem devices`` without a tracker: this machine's; with one: see `test_rpc`."""

from smartmem_tvm.runtime import opencl
from smartmem_tvm.tune.host import cpu_name


def test_this_machines_devices(smartmem):
    found = smartmem("devices", "--json").data["devices"]
    assert [each["name"] for each in found if each["kind"] == "cpu"] == [cpu_name()]
    names = [each["name"] for each in found if each["kind"] == "opencl"]
    assert names == [each.name for each in opencl.devices()]
    shown = smartmem("devices")
    assert shown.code == 0 and "opencl:0 would be Row(" in shown.out and "~cpu" in shown.out


def test_a_tracker_that_is_not_there_is_one_sentence(smartmem):
    outcome = smartmem("devices", "--tracker", "127.0.0.1:1")
    assert outcome.code == 2 and "No tracker answers" in outcome.err
