# SPDX-License-Identifier: Apache-2.0
import importlib.util
import json
import sys
from dataclasses import asdict, fields
from pathlib import Path

import pytest
import tvm

import _smartmem_opencl
from fake_driver import fake_library, run_child
from smartmem_tvm import _version, doctor
from smartmem_tvm.deploy import link
from smartmem_tvm.doctor import Check
from smartmem_tvm.runtime import opencl
from smartmem_tvm.runtime.opencl import DeviceInfo


def by_name():
    return {check.name: check for check in doctor.diagnose()}


def test_a_machine_that_can_run_this_test_has_what_is_required():
    assert [check for check in doctor.diagnose() if check.required and not check.ok] == []


def test_whatever_is_not_ok_comes_with_a_remedy():
    checks = doctor.diagnose()
    assert len({check.name for check in checks}) == len(checks)
    for check in checks:
        assert check.detail
        assert bool(check.remedy) != check.ok


def test_the_host_processor_is_named():
    cpu = tvm.target.codegen.llvm_get_system_cpu()
    assert cpu in by_name()["llvm target"].detail


def test_a_bad_pair_is_named_and_tvm_is_not_touched(monkeypatch):
    versions = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.15.post2"}
    real = _version.metadata.version
    monkeypatch.setattr(_version.metadata, "version", lambda name: versions.get(name) or real(name))
    checks = by_name()
    assert not checks["tvm"].ok and checks["tvm"].required
    assert "apache-tvm-ffi 0.1.15.post2" in checks["tvm"].detail
    assert checks["tvm"].remedy == _version.pin_command()
    assert "llvm target" not in checks and "device cuda" not in checks


@pytest.mark.parametrize("extra", sorted(_version.EXTRAS))
def test_missing_extras_come_with_the_command_that_installs_them(monkeypatch, extra):
    monkeypatch.setattr(doctor, "ONLY_ON", {})  # as on a machine that all of them are for
    first = _version.EXTRAS[extra][0]
    module = doctor._MODULES.get(first, first)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else object())
    check = by_name()[f"extra [{extra}]"]
    assert (check.ok, check.required, check.remedy) == (False, False, f"pip install {first}")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert by_name()[f"extra [{extra}]"].ok


def test_what_links_compiled_models_is_named(monkeypatch):
    from tvm.support import cc

    monkeypatch.setattr(cc, "get_cc", lambda: "/usr/bin/g++")
    assert (by_name()["linker"].ok, by_name()["linker"].detail) == (True, "/usr/bin/g++")
    monkeypatch.setattr(cc, "get_cc", lambda: None)
    monkeypatch.setattr(link, "cross_compiler", lambda triple: None)
    check = by_name()["linker"]
    assert (check.ok, check.required) == (False, False) and "pip install ziglang" in check.remedy


def test_an_extra_that_is_for_other_machines_is_left_out(monkeypatch):
    monkeypatch.setattr(doctor, "ONLY_ON", {"pocl-binary-distribution": ("linux", "riscv64")})
    assert "extra [pocl]" not in by_name()
    assert "extra [tune]" in by_name()


def test_a_missing_library_comes_with_its_command(monkeypatch):
    real = _version.metadata.version

    def version(name):
        if name == "onnxruntime":
            raise _version.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(_version.metadata, "version", version)
    assert by_name()["onnxruntime"].remedy == "pip install onnxruntime"


def test_an_old_python_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    assert not by_name()["python"].ok and "3.10" in by_name()["python"].remedy


def test_the_limit_on_threads_is_shown(monkeypatch):
    monkeypatch.setenv("TVM_NUM_THREADS", "3")
    assert "TVM_NUM_THREADS=3" in by_name()["cpu cores"].detail


def test_a_device_without_runtime_is_told_from_one_without_driver(monkeypatch):
    real = tvm.get_global_func
    known = {"device_api.vulkan"}

    def lookup(name, allow_missing=False):
        if name in ("device_api.cuda", "device_api.vulkan"):
            return object() if name in known else None
        return real(name, allow_missing)

    monkeypatch.setattr(tvm, "get_global_func", lookup)
    checks = by_name()
    assert "no device runtime" in checks["device cuda"].detail
    assert checks["device vulkan"].detail == "no device found"
    assert checks["opencl code generation"].ok


def rows_about_opencl() -> list[dict]:
    checks = doctor.diagnose()
    assert all(check.ok for check in checks if check.required)
    names = [check.name for check in checks]
    return [asdict(check) for check in checks[names.index("opencl code generation") + 1 :]]


def opencl_rows(**variables) -> list[Check]:
    """Return the rows about OpenCL from a process of its own; the exit code must not depend on them."""
    return [Check(**row) for row in run_child(rows_about_opencl, env=variables).value]


def test_the_opencl_device_is_shown_with_its_driver():
    library, driver, device = opencl_rows()
    assert library.ok and library.detail == str(_smartmem_opencl.library_path())
    assert (driver.name, driver.ok, driver.required) == ("opencl driver", True, False)
    assert driver.detail.startswith(f"{opencl.library()}, ")
    assert (device.name, device.ok, device.required) == ("device opencl:0", True, False)
    for part in (tvm.opencl(0).device_name, "(cpu)", f"driver {opencl.devices()[0].driver}", "textures"):
        assert part in device.detail


@pytest.mark.parametrize("linker", [None, "/usr/bin/ld"])
def test_the_driver_of_the_extra_needs_a_linker(monkeypatch, linker):
    monkeypatch.delenv("SMARTMEM_OPENCL_LIBRARY", raising=False)
    monkeypatch.setattr(_smartmem_opencl, "extra_driver", lambda: Path("/site/libpocl.so"))
    monkeypatch.setattr(doctor.shutil, "which", lambda name: linker if name == "ld" else None)
    extra, system = doctor._opencl_driver("/site/libpocl.so"), doctor._opencl_driver("libOpenCL.so.1")
    assert extra.ok == (linker is not None) and extra.detail.startswith("/site/libpocl.so, of the extra [pocl]")
    assert extra.remedy == ("" if linker else "apt-get install binutils")
    assert system.ok and system.detail == "libOpenCL.so.1, the system's"


def test_a_missing_opencl_driver_comes_with_what_to_install():
    library, driver = opencl_rows(SMARTMEM_OPENCL_LIBRARY="/no/such/library.so")
    assert library.ok and (driver.name, driver.ok, driver.required) == ("opencl driver", False, False)
    assert "/no/such/library.so" in driver.detail and "SMARTMEM_OPENCL_LIBRARY" in driver.remedy


@pytest.mark.device
def test_a_driver_without_device_comes_with_what_to_install():
    none = {"SMARTMEM_OPENCL_LIBRARY": str(fake_library()), "FAKE_OPENCL_DEVICES": "0"}
    _, driver = opencl_rows(**none)
    assert not driver.ok and "finds no device" in driver.detail
    assert "install a driver" in driver.remedy


def test_a_choice_that_matches_no_device_is_named():
    _, driver = opencl_rows(SMARTMEM_OPENCL_DEVICE="no such device")
    assert not driver.ok and "no such device" in driver.detail and "SMARTMEM_OPENCL_DEVICE" in driver.remedy


def test_without_the_opencl_library_the_reason_is_the_last_row(monkeypatch):
    why = "the OpenCL library was not built: no C++ compiler was found: install one; then reinstall smartmem-tvm."
    monkeypatch.setattr(_smartmem_opencl, "load", lambda: None)
    monkeypatch.setattr(_smartmem_opencl, "problem", lambda: why)
    last = doctor.diagnose()[-1]
    assert (last.name, last.ok, last.required) == ("opencl library", False, False)
    assert last.detail == "the OpenCL library was not built: no C++ compiler was found"
    assert last.remedy == "install one; then reinstall smartmem-tvm."


def test_an_opencl_of_tvms_own_is_a_device_like_others(monkeypatch):
    monkeypatch.setattr(_smartmem_opencl, "load", lambda: None)
    library, device = doctor.diagnose()[-2:]
    assert library == Check("opencl library", True, "TVM's own", required=False)
    assert (device.name, device.ok, device.detail) == ("device opencl", True, tvm.opencl(0).device_name)


@pytest.mark.parametrize("driver, ok", [("3.1+debian", True), ("5.0", False), ("7.1", True)])
def test_an_opencl_driver_that_is_known_to_be_wrong_is_named(monkeypatch, driver, ok):
    facts = {field.name: 0 for field in fields(DeviceInfo)}
    facts |= {"name": "cpu", "platform": "Portable Computing Language", "driver": driver, "type": "cpu"}
    monkeypatch.setattr(opencl, "devices", lambda: [DeviceInfo(**facts)])
    check = by_name()["device opencl:0"]
    assert check.ok == ok and not check.required and ("PoCL 5.0" in check.remedy) != ok


def test_records_of_tuning_are_counted_and_modelled_ones_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("SMARTMEM_RECORDS", str(tmp_path / "phone.records.jsonl"))
    assert not [name for name in by_name() if "phone" in name]
    run = {"date": "", "command": "", "tvm": "0", "schedules": 1, "target": {}, "threads": None}
    lines = [
        {"run": "m", **run, "judge": "Mesa 26"},
        {"run": "d", **run},
        *({"winner": "r", "workload": each, "run": "m", "seconds": 1.0, "untuned": 2.0} for each in "abc"),
        {"winner": "r", "workload": "a", "run": "d", "seconds": 1.0, "untuned": 2.0},
    ]
    path = tmp_path / "phone.records.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    check = by_name()["tuning records phone"]
    assert check.ok and check.detail == "1 kernels measured, 2 modelled and not measured, by Mesa 26"
    path.write_text(path.read_text() + "{damaged}\n")
    check = by_name()["tuning records phone"]
    assert not check.ok and "damaged lines: 1" in check.detail and "records repair" in check.remedy
