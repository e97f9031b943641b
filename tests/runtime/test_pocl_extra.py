# SPDX-License-Identifier: Apache-2.0
"""The driver of ``pip install 'smartmem-tvm[pocl]'``, on machines whose own loader finds no device or is not there.

What else is installed does not matter: the first folder of the linker's path stands for the system.
"""

import shutil
from dataclasses import asdict

import numpy as np
import pytest

import _smartmem_opencl
from fake_driver import fake_library, run_child
from opencl_child import load
from opencl_sources import cache, compiled

LOADER = "libOpenCL.so.1"


def system(folder, kind: str, **variables: str) -> dict[str, str]:
    """Variables of a process on a machine with no loader, with one that finds nothing, or with one device."""
    folder.mkdir()
    if kind == "no loader":
        (folder / LOADER).touch()  # that is no library
    else:
        shutil.copy(fake_library(), folder / LOADER)
    devices = "1" if kind == "a device" else "0"
    return {"LD_LIBRARY_PATH": str(folder), "FAKE_OPENCL_DEVICES": devices, **variables}


def network(operator: str):
    """A convolution, or a matmul, with what it is to give."""
    from tvm import relax

    random = np.random.default_rng(0)
    shapes = {"conv2d": [(1, 8, 14, 14), (16, 8, 3, 3)], "matmul": [(48, 96), (96, 32)]}[operator]
    x, weight = (random.standard_normal(shape).astype("float32") for shape in shapes)
    builder, data = relax.BlockBuilder(), relax.Var("x", relax.TensorType(x.shape, "float32"))
    operators = {"conv2d": relax.op.nn.conv2d, "matmul": relax.op.matmul}
    with builder.function("main", [data]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(operators[operator](data, relax.const(weight))))
        builder.emit_func_output(result)
    if operator == "matmul":
        return builder.get(), x, x @ weight
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    return builder.get(), x, np.einsum("nchwij,ocij->nohw", windows, weight)


def error(operator: str, target: str) -> float:
    """How far a network is from numpy, relative to the largest number; it reads textures if the target has them."""
    import smartmem_tvm as sm
    from smartmem_tvm.target import parse_target

    module, x, expected = network(operator)
    compiled = sm.compile(module, parse_target(target))
    assert any(reads.whole for reads in compiled.texel_reads.values()) == (target == "opencl-texture")
    found = np.asarray(compiled.run(x))
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def results():
    """The driver, what `doctor` says of it, and small networks: in buffers, and in textures."""
    load()
    from smartmem_tvm import doctor
    from smartmem_tvm.runtime import opencl

    assert opencl.problem() is None
    rows = {check.name: asdict(check) for check in doctor.diagnose()}
    errors = [error("matmul", "opencl"), error("conv2d", "opencl-texture")]
    return [device.driver for device in opencl.devices()], rows, errors


def test_it_computes_in_buffers_and_in_textures(tmp_path):
    drivers, rows, errors = run_child(results, env=system(tmp_path / "system", "no loader")).value
    assert drivers == ["3.0-rc2"]
    assert rows["extra [pocl]"]["ok"] and rows["opencl driver"]["ok"] and rows["device opencl:0"]["ok"]
    assert max(errors) < 1e-5


def found():
    load()
    from smartmem_tvm import doctor

    rows = {check.name: check for check in doctor._opencl()}
    return [rows[name].detail for name in ("opencl driver", "device opencl:0")]


@pytest.mark.parametrize("kind", ["no loader", "no device"])
def test_it_is_found_without_a_variable(kind, tmp_path):
    driver, device = run_child(found, env=system(tmp_path / "system", kind)).value
    assert driver == f"{_smartmem_opencl.extra_driver()}, of the extra [pocl]"
    assert "driver 3.0-rc2" in device


def test_the_systems_loader_comes_first(tmp_path):
    driver, device = run_child(found, env=system(tmp_path / "system", "a device")).value
    assert driver == f"{LOADER}, the system's"
    assert device.startswith("Fake device 0")


def test_it_is_used_beside_the_systems_where_it_is_named(tmp_path):
    driver = str(_smartmem_opencl.extra_driver())
    env = system(tmp_path / "system", "a device", SMARTMEM_OPENCL_LIBRARY=driver)
    library, device = run_child(found, env=env).value
    assert library == f"{driver}, named by SMARTMEM_OPENCL_LIBRARY"
    assert "driver 3.0-rc2" in device


def version_and_kernels(*names: str):
    load()
    from smartmem_tvm.runtime import opencl

    return [opencl.devices()[0].version, compiled(*names)]


def test_workers_compile_for_it_and_for_a_cpu_that_it_gets_right(tmp_path):
    names = [f"k{i}" for i in range(5)]
    folder = tmp_path / "kept"
    env = cache(folder, **system(tmp_path / "system", "no loader"), SMARTMEM_OPENCL_JOBS="2")
    version, count = run_child(version_and_kernels, *names, env=env).value
    assert not version.endswith(("-generic", "avx512", "-znver4", "-icelake-server"))
    assert count == len(list(folder.iterdir())) == 5
    assert run_child(version_and_kernels, *names, env=env).value == [version, 0]


def test_a_driver_that_does_not_open_is_named_with_its_remedy(tmp_path):
    package, folder = tmp_path / "pocl_binary_distribution", tmp_path / "pyopencl" / ".libs"
    for each in (package, folder):
        each.mkdir(parents=True)
    (package / "__init__.py").touch()
    (folder / "libpocl-1.so").touch()
    env = system(tmp_path / "system", "no loader")
    message = run_child(problem_of_another, str(tmp_path), env=env).value
    assert message.startswith(f"the OpenCL library {folder}/libpocl-1.so cannot be opened (")
    assert message.endswith("`pip install --force-reinstall --no-deps pocl-binary-distribution`.")


def test_without_the_extra_it_is_the_remedy(tmp_path):
    (tmp_path / "pocl_binary_distribution").mkdir()
    (tmp_path / "pocl_binary_distribution" / "__init__.py").touch()
    missing = run_child(problem_of_another, str(tmp_path), env=system(tmp_path / "1", "no loader")).value
    empty = run_child(problem_of_another, str(tmp_path), env=system(tmp_path / "2", "no device")).value
    assert missing.startswith(f"the OpenCL library {LOADER} cannot be opened (")
    assert empty.startswith("the OpenCL library finds no device: ")
    assert all(message.endswith("`pip install 'smartmem-tvm[pocl]'`.") for message in (missing, empty))


def problem_of_another(folder: str) -> str:
    """What is wrong where another copy of the distribution, or none, is what Python finds first."""
    import sys

    sys.path.insert(0, folder)
    import tvm

    found = _smartmem_opencl.extra_driver()
    tvm.get_global_func("smartmem.opencl.extra_driver")(str(found or ""))
    return str(tvm.get_global_func("smartmem.opencl.problem")())
