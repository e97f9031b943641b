# SPDX-License-Identifier: Apache-2.0
"""What devices are, over our server, over TVM's own, and which row of the table fits each."""

import dataclasses

import pytest
import tvm

from opencl_package import environment
from rpc_processes import device, started, tracker, until
from smartmem_tvm.remote.about import local_devices, tvm_version
from smartmem_tvm.remote.inspect_devices import fitted, row_for, row_text, tracker_devices
from smartmem_tvm.remote.keys import tracker_state
from smartmem_tvm.remote.session import request
from smartmem_tvm.remote.wire import parse_address
from smartmem_tvm.runtime import opencl
from smartmem_tvm.tables.targets import TARGETS
from smartmem_tvm.tune.host import cpu_name

_SAME = ("index", "name", "vendor", "platform", "version", "driver", "type", "compute_units", "half", "images")


@pytest.mark.parametrize(
    ("kind", "name", "row", "exact"),
    [
        ("opencl", "QUALCOMM Adreno(TM) 740", "adreno-740", True),
        ("opencl", "QUALCOMM Adreno(TM)", "opencl", False),
        ("opencl", "QUALCOMM Adreno(TM) 7400", "opencl", False),
        ("opencl", "Mali-G57 r0p1", "mali-g57", True),
        ("opencl", "Mali-G76", "mali-g76", True),
        ("opencl", "NVIDIA H100 80GB HBM3", "opencl", False),
        ("cuda", "NVIDIA H100 80GB HBM3", "h100", True),
        ("cuda", "NVIDIA A100-SXM4-40GB", "h100", False),
        ("cpu", "AMD EPYC", "cpu", False),
        ("vulkan", "QUALCOMM Adreno(TM) 740", None, False),
    ],
)
def test_the_row_of_a_device(kind, name, row, exact):
    found, is_exact = row_for(kind, name)
    assert (found and found.name, is_exact) == (row, exact)


def test_what_a_driver_tells_otherwise_is_said():
    told = {"kind": "opencl", "index": 0, "name": "QUALCOMM Adreno(TM) 740", "max_work_group_size": 1024}
    told["driver"] = "OpenCL 3.0 QUALCOMM build: 0615.0 Compiler E031.41.03.36"
    found = fitted({**told, "image2d_width": 8192, "half": True})
    assert (found["row"], found["exact"], found["measured"]) == ("adreno-740", True, {"image_width": 8192})
    assert found["compiler"] == "E031.41.03.36"
    assert row_text(found) == 'Row("qualcomm-adreno-tm-740", "opencl", image_width=8192)'


def test_a_row_as_text_is_a_row():
    for each in map(fitted, local_devices()):
        row = eval(row_text(each), {"Row": type(TARGETS["cpu"])})
        assert dataclasses.asdict(row).items() >= each["measured"].items()
        assert row.kind in ("llvm", "opencl", "cuda", "vulkan")


def test_all_free_devices_of_a_tracker_are_asked(tmp_path, shared_tracker):
    address = shared_tracker.address
    with device(tmp_path, shared_tracker, "pair") as first, device(tmp_path, shared_tracker, "pair") as second:
        until(lambda: (state := tracker_state(parse_address(address)).get("pair")) and state.free == 2)
        found = tracker_devices(address)["pair"]
        assert {each["address"] for each in found["found"]} == {first.address, second.address}
        assert (found["devices"], found["free"], found["busy"]) == (2, 2, 0)
        for each in found["found"]:
            assert each["tvm"] == tvm_version() and {"cpu", "opencl"} <= set(each["kinds"])
            cpu, cl = each["devices"][0], next(one for one in each["devices"] if one["kind"] == "opencl")
            assert (cpu["kind"], cpu["name"], cpu["row"]) == ("cpu", cpu_name(), "cpu")
            # The other sizes follow the memory that was free when PoCL started.
            here = dataclasses.asdict(opencl.devices()[0])
            assert here.keys() <= cl.keys()
            assert {name: cl[name] for name in _SAME} == {name: here[name] for name in _SAME}
        with request(address, "pair", 10) as session:
            found = tracker_devices(address)["pair"]
            assert (found["free"], found["busy"], len(found["found"])) == (1, 1, 1)
            assert found["found"][0]["address"] != session.address


def test_tvms_own_server_tells_less_and_no_version(tmp_path):
    with tracker(tmp_path) as trackers:
        command = ("-m", "tvm.exec.rpc_server", "--host", "127.0.0.1", "--port", "20000", "--port-end", "30000")
        options = ("--tracker", trackers.address, "--key", "plain")
        path = environment(tmp_path)["PYTHONPATH"]
        with started(tmp_path, *options, program=command, PYTHONPATH=path) as plain:
            until(lambda: (state := tracker_state(parse_address(trackers.address)).get("plain")) and state.free)
            [found] = tracker_devices(trackers.address)["plain"]["found"]
            plain.end_all()
    assert found["tvm"] is None and {"cpu", "opencl"} <= set(found["kinds"])
    cl = next(each for each in found["devices"] if each["kind"] == "opencl")
    here = tvm.opencl(0)
    assert (cl["name"], cl["driver"]) == (here.device_name, here.driver_version)
    assert (cl["max_work_group_size"], cl["row"]) == (here.max_threads_per_block, "opencl")
    assert cl["measured"]["local_bytes"] == here.max_shared_memory_per_block and "image_width" not in cl["measured"]
