# SPDX-License-Identifier: Apache-2.0
"""How fast this machine is: measured once, kept, and what the programs that measure it compute."""

import numpy as np
import pytest
import tvm

from smartmem_tvm.analysis.roofline import Speed
from smartmem_tvm.runtime import speed, speed_cpu, speed_gpu, speed_kernels
from smartmem_tvm.runtime.speed import speed_of
from smartmem_tvm.schedule.cpu.params import CpuParams
from smartmem_tvm.target import host_target, parse_target

CPU = host_target()


def tensors(*arrays) -> list:
    return [tvm.runtime.tensor(np.asarray(each)) for each in arrays]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache, and machines that are measured in no time."""
    monkeypatch.setenv(speed.FOLDER_VARIABLE, str(tmp_path / "kept"))
    asked = []

    def measured(_target, threads, name):
        asked.append((threads, name))
        return Speed(name, threads, {"float32": float(len(asked))}, moved=((10, 2.0),))

    monkeypatch.setattr(speed_cpu, "measured", measured)
    return asked


def test_a_machine_is_measured_once(folder, tmp_path):
    first = speed_of(CPU)
    assert speed_of(CPU) == first and len(folder) == 1 and first.measured
    assert {path.suffix for path in (tmp_path / "kept").iterdir()} == {".bin"}


def test_it_is_measured_again_when_asked(folder):
    speed_of(CPU)
    assert speed_of(CPU, again=True).multiply_adds == {"float32": 2.0}
    assert speed_of(CPU).multiply_adds == {"float32": 2.0}


def test_each_target_and_number_of_threads_has_its_own(folder, monkeypatch):
    speed_of(CPU)
    monkeypatch.setattr(tvm.runtime, "num_threads", lambda: 77)
    assert speed_of(CPU).threads == 77
    speed_of(parse_target('{"kind": "llvm", "mcpu": "x86-64"}'))
    assert len(folder) == 3


def test_what_is_damaged_is_measured_again(folder, tmp_path):
    speed_of(CPU)
    for path in (tmp_path / "kept").iterdir():
        path.write_bytes(b"x")
    speed_of(CPU)
    assert len(folder) == 2


def test_nothing_is_kept_where_the_user_wants_none(folder, monkeypatch):
    monkeypatch.setenv(speed.FOLDER_VARIABLE, "0")
    speed_of(CPU), speed_of(CPU)
    assert len(folder) == 2


def test_devices_of_other_machines_are_looked_up(folder):
    found = speed_of(parse_target("adreno-740"))
    assert (found.name, found.measured, folder) == ("adreno-740", False, [])


def test_nobody_knows_a_cpu_behind_opencl(folder):
    assert speed_of(parse_target("opencl")) is None


def test_a_device_without_a_row_has_no_speed(folder):
    assert speed_of(tvm.target.Target({"kind": "vulkan", "max_num_threads": 256})) is None


def test_a_gpu_that_cannot_be_measured_has_no_bounds(folder, monkeypatch, caplog):
    monkeypatch.setattr(speed, "_poses_as_gpu", lambda *_: False)

    def fails(*_):
        raise RuntimeError("no memory is left")

    monkeypatch.setattr(speed_gpu, "measured", fails)
    assert speed_of(parse_target("opencl")) is None
    assert "no memory is left" in caplog.text


class TestPrograms:
    """What is timed does what it is counted as."""

    def test_multiply_adds(self):
        steps, sums = 3, speed_kernels.accumulators(CPU)
        code = speed_kernels.build({"main": speed_kernels.multiply_adds(2, CPU, steps=steps)}, CPU)
        operands, result = tensors(np.array([0.5, 1], "float32"), np.zeros((2, sums), "float32"))
        code["main"](operands, result)
        np.testing.assert_allclose(result.numpy(), np.full((2, sums), 1.875))

    @pytest.mark.parametrize("name", ["exp", "pow", "rsqrt"])
    def test_functions(self, name):
        code = speed_kernels.build({"main": speed_kernels.function(name, CPU)}, CPU)
        values, rounds = speed_kernels.VALUES, speed_kernels.ROUNDS
        x = np.linspace(0.1, 2, values + rounds).astype("float32")
        given, result = tensors(x, np.zeros(values, "float32"))
        code["main"](given, result)
        numpy = {"exp": np.exp, "pow": lambda x: x**1.7, "rsqrt": lambda x: 1 / np.sqrt(x)}[name]
        np.testing.assert_allclose(result.numpy(), numpy(x[rounds - 1 : rounds - 1 + values]), rtol=1e-5)

    def test_loads_copies_and_stores(self):
        threads, chunks, rounds = 2, 3, 4
        programs = {each.__name__: each(threads, CPU) for each in (speed_kernels.loads, speed_kernels.copies)}
        programs["stores"] = speed_kernels.stores(threads, CPU)
        code = speed_kernels.build(programs, CPU)
        lanes = speed_kernels.STREAMS * CpuParams.of(CPU).lanes
        x = np.arange(threads * chunks * lanes, dtype="float32") % 97
        given, sums, copied, stored = tensors(x, *np.zeros((3, x.size), "float32"))
        code["loads"](given, sums, chunks, rounds)
        expected = rounds * x.reshape(threads, chunks, lanes).sum(1).reshape(-1)
        np.testing.assert_allclose(sums.numpy()[: threads * lanes], expected)
        code["copies"](given, copied, chunks, rounds)
        np.testing.assert_array_equal(copied.numpy(), x + 1)
        code["stores"](given, stored, chunks, rounds)
        np.testing.assert_array_equal(stored.numpy(), np.full(x.size, x[0]))


def test_this_machine(monkeypatch):
    """Figures in the order of what such machines have, from few sizes and functions."""
    monkeypatch.setattr(speed_cpu, "SIZES", (1 << 14, 1 << 20))
    monkeypatch.setattr(speed_kernels, "FUNCTIONS", ("exp",))
    found = speed_cpu.measured(CPU, 1, "this machine")
    assert found.multiply_adds["float32"] > 1e8 and found.multiply_adds["float16"] >= found.multiply_adds["float32"]
    assert 1e6 < found.calls["exp"] < found.multiply_adds["float32"]
    assert [size for size, _ in found.moved] == [1 << 14, 1 << 20] and all(rate > 1e8 for _, rate in found.moved)
    assert 0 < found.launch < 1e-2


@pytest.mark.device
def test_programs_for_a_gpu_on_opencl(monkeypatch):
    """PoCL runs them: what is timed is what was counted; its figures say nothing of a GPU."""
    monkeypatch.setattr(speed_gpu, "SIZES", (1 << 20, 1 << 22))
    monkeypatch.setattr(speed_gpu, "FUNCTIONS", ("exp", "sqrt"))
    target = parse_target("opencl").with_host("llvm")
    found = speed_gpu.measured(target, tvm.opencl(), "PoCL")
    assert found.threads is None and found.multiply_adds["float32"] > 1e6 and set(found.calls) == {"exp", "sqrt"}
    assert all(rate > 1e6 for _, rate in found.moved) and found.launch > 0
