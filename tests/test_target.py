# SPDX-License-Identifier: Apache-2.0
"""Targets by name, and the errors for unknown ones."""

import os

import pytest
import tvm

from smartmem_tvm import UserError
from smartmem_tvm.planner.texture_form import ImageLimits
from smartmem_tvm.tables.targets import TARGETS
from smartmem_tvm.target import (
    LEAST_ALIGNMENT,
    Limits,
    as_adreno,
    device_kind,
    device_of,
    has_half_arithmetic,
    has_half_storage,
    has_textures,
    host_target,
    host_triple,
    image_alignment,
    image_limits,
    is_cpu,
    is_cuda,
    is_gpu,
    is_opencl,
    model_of,
    parse_target,
    target_row,
)

PHONES = [name for name, row in TARGETS.items() if row.host]


def test_the_host_uses_all_cores_it_may():
    target = host_target()
    assert target.kind.name == "llvm"
    assert int(target.attrs["num-cores"]) == len(os.sched_getaffinity(0))
    assert target.attrs["mcpu"]


@pytest.mark.parametrize("text", [None, "cpu", "llvm"])
def test_names_of_the_host(text):
    assert str(parse_target(text)) == str(host_target())


def test_a_target_of_tvms():
    assert parse_target('{"kind": "llvm", "num-cores": 3}').attrs["num-cores"] == 3


@pytest.mark.parametrize("text", ["opencl", '{"kind": "opencl", "max_num_threads": 64}', "qcom/adreno-opencl-texture"])
def test_a_gpu_gets_a_host(text):
    target = parse_target(text)
    assert target.kind.name == "opencl" and target.host.kind.name == "llvm"
    assert is_gpu(target) and not is_gpu(host_target())
    assert has_textures(target) == ("texture" in text)


def test_this_machines_device_with_textures_is_the_same_device():
    plain, textured = parse_target("opencl"), parse_target("opencl-texture")
    assert has_textures(textured) and not has_textures(plain)
    assert textured.attrs["max_num_threads"] == plain.attrs["max_num_threads"]
    assert int(textured.attrs["texture_spatial_limit"]) >= 8192 and int(textured.attrs["texture_depth_limit"]) >= 256
    assert device_of(textured) == device_of(plain)
    adreno = as_adreno(textured)
    assert list(adreno.keys) == ["adreno", *textured.keys] and adreno.host is not None
    assert adreno.attrs["texture_depth_limit"] == textured.attrs["texture_depth_limit"]


@pytest.mark.parametrize(("text", "words"), [("gpu9000", "not known to TVM"), ("c", "neither a CPU nor a GPU")])
def test_other_targets_are_refused_in_one_sentence(text, words):
    with pytest.raises(UserError) as caught:
        parse_target(text)
    message = str(caught.value)
    assert text in message and words in message and "'cpu'" in message and "'opencl'" in message
    assert "\n" not in message


def test_cuda_is_the_device_that_is_there_or_one_in_general():
    target = parse_target("cuda")
    assert target.kind.name == "cuda" and target.host.kind.name == "llvm" and is_gpu(target)
    assert int(str(target.attrs["arch"]).removeprefix("sm_").rstrip("a")) >= 50
    assert int(target.attrs["max_shared_memory_per_block"]) >= 49152
    assert int(target.attrs["max_threads_per_block"]) == 1024
    assert target.attrs["thread_warp_size"] == 32
    assert tvm.cuda(0).exist or target.attrs["arch"] == "sm_80"


def test_an_architecture_that_is_named_is_taken():
    target = parse_target('{"kind": "cuda", "arch": "sm_90"}')
    assert target.attrs["arch"] == "sm_90" and target.host.kind.name == "llvm"


@pytest.mark.parametrize("name", PHONES)
def test_a_phone_by_name(name):
    target, row = parse_target(name), TARGETS[name]
    assert target.kind.name == "opencl" and row.family in target.keys and is_gpu(target)
    assert has_textures(target) == row.textures
    assert target.host.attrs["mtriple"] == "aarch64-linux-android"
    assert target.attrs["max_num_threads"] == target.attrs["max_threads_per_block"] == row.work_group
    assert target.attrs["max_shared_memory_per_block"] == row.local_bytes
    assert (target.attrs["texture_spatial_limit"], target.attrs["texture_depth_limit"]) == (row.image_width, 2048)
    assert target.attrs["image_base_address_alignment"] == 64 * 16  # 64 texels of four float32
    assert target_row(target) is row
    assert str(tvm.target.Target(str(target))) == str(target)  # the form in which a manifest keeps it


@pytest.mark.parametrize(("text", "name"), [(None, "cpu"), ("opencl", "opencl"), ("cuda", "h100")])
def test_rows_of_targets_without_a_model(text, name):
    assert target_row(parse_target(text)).name == name


def test_an_unknown_target_is_told_the_names():
    with pytest.raises(UserError) as caught:
        parse_target("adreno-9000")
    assert all(f"'{name}'" in str(caught.value) for name in [*PHONES, "cpu", "cuda", "opencl"])


def test_devices():
    assert device_of(host_target()) == tvm.cpu()
    assert device_of(parse_target("opencl")) == tvm.opencl(0)


@pytest.mark.parametrize(("text", "index", "words"), [("opencl", 99, "opencl device 99"), ("vulkan", 0, "vulkan")])
def test_a_device_that_is_not_there(text, index, words):
    with pytest.raises(UserError, match=words) as caught:
        device_of(parse_target(text), index)
    assert "smartmem doctor" in str(caught.value) and "\n" not in str(caught.value)


def test_opencl_has_the_limits_of_the_device_here():
    """Limits as for CUDA; but no rule makes thread blocks of more than 1024 threads, or uses over 48 KB on chip."""
    device, target = tvm.opencl(0), parse_target("opencl")
    assert target.attrs["max_num_threads"] == min(int(device.max_threads_per_block), 1024)
    assert target.attrs["max_shared_memory_per_block"] == min(int(device.max_shared_memory_per_block), 48 * 1024)


def test_a_phone_s_device_is_not_looked_for_here():
    with pytest.raises(UserError, match="target 'adreno-740' is the device of another machine"):
        device_of(parse_target("adreno-740"))


def test_a_cpu_of_another_machine_is_no_device_here():
    with pytest.raises(UserError, match="device of another machine"):
        device_of(parse_target('{"kind": "llvm", "mtriple": "aarch64-linux-gnu"}'))


@pytest.mark.parametrize(
    ("said", "work_group"),
    [
        ({}, 256),
        ({"max_threads_per_block": 128}, 128),
        ({"max_num_threads": 64}, 64),
        ({"max_num_threads": 512, "max_threads_per_block": 384}, 384),
        ({"max_num_threads": 4096, "max_threads_per_block": 4096}, 1024),
    ],
    ids=str,
)
def test_of_two_names_for_the_size_of_a_work_group_the_smaller_counts(said, work_group):
    assert Limits.of(tvm.target.Target({"kind": "opencl", **said})).work_group == work_group


@pytest.mark.parametrize("name", PHONES)
def test_limits_of_a_phone_are_those_of_its_row(name):
    limits, row = Limits.of(parse_target(name)), TARGETS[name]
    assert (limits.work_group, limits.shared_bytes, limits.registers) == (
        row.work_group,
        row.local_bytes,
        row.registers,
    )
    assert limits.processors == row.cores and limits.device is row
    assert (limits.vector, limits.shared_vector) == (4, 1)


def test_limits_where_no_device_is_named():
    cuda, opencl = Limits.of(parse_target("cuda")), Limits.of(tvm.target.Target("opencl"))
    assert cuda.device is opencl.device is None and cuda.processors == opencl.processors
    assert (cuda.vector, cuda.shared_vector, opencl.vector, opencl.shared_vector) == (4, 4, 1, 1)
    assert cuda.launch_cycles < opencl.launch_cycles
    assert opencl.at_most(64, 1 << 20) == Limits(64, opencl.shared_bytes)


@pytest.mark.parametrize(
    ("text", "kind"), [("cpu", "cpu"), ("opencl", "opencl"), ("adreno-740", "opencl"), ("cuda", "cuda")]
)
def test_what_kind_of_device_a_target_is_for(text, kind):
    target = parse_target(text)
    assert device_kind(target) == kind
    assert (is_cpu(target), is_opencl(target), is_cuda(target)) == (kind == "cpu", kind == "opencl", kind == "cuda")
    assert model_of(target) == (text if "-" in text else "")


def test_what_a_target_has_of_halves_and_images():
    adreno, opencl, cpu = map(parse_target, ("adreno-740", "opencl", None))
    assert has_half_storage(adreno) and has_half_arithmetic(adreno)
    assert has_half_storage(opencl) and not has_half_arithmetic(opencl)
    assert not has_half_storage(cpu) and not has_half_arithmetic(cpu)
    assert image_limits(adreno) == ImageLimits(16384, 16384, 2048)
    assert image_limits(tvm.target.Target({"kind": "opencl", "texture_spatial_limit": 4096})).height == 4096
    assert (image_alignment(adreno), image_alignment(cpu)) == (64 * 16, LEAST_ALIGNMENT)
    assert (host_triple(adreno), host_triple(cpu)) == ("aarch64-linux-android", "")
