# SPDX-License-Identifier: Apache-2.0
"""Waves and registers of a core: figures that Mesa's compiler gave for kernels (docs/adreno.md)."""

import pytest

from smartmem_tvm.schedule.gpu.machine import Processor
from smartmem_tvm.schedule.gpu.waves import allotted, doubled, most_registers, spills, waves
from smartmem_tvm.tables.targets import TARGETS, Row


def core(name: str):
    return TARGETS[name].core


# registers, threads, local memory of a kernel -> waves of 64 threads, as Mesa 26.2.6 says
COMPILED = [
    ("adreno-740", 48, 64, 8432, 4),
    ("adreno-740", 48, 256, 16624, 4),
    ("adreno-740", 48, 128, 19552, 2),
    ("adreno-740", 32, 64, 6384, 6),
    ("adreno-740", 24, 64, 6384, 8),
    ("adreno-740", 19, 128, 0, 10),
    ("adreno-740", 13, 128, 0, 14),
    ("adreno-740", 12, 128, 0, 16),
    ("adreno-740", 9, 256, 1024, 20),
    ("adreno-740", 8, 128, 0, 24),
    ("adreno-740", 6, 128, 512, 32),
    ("adreno-660", 48, 64, 8432, 2),
    ("adreno-660", 32, 256, 16624, 4),
    ("adreno-660", 21, 128, 0, 6),
    ("adreno-660", 12, 128, 0, 10),
    ("adreno-660", 9, 256, 1024, 14),
    ("adreno-660", 4, 128, 0, 32),
    ("adreno-618", 48, 256, 0, 4),
    ("adreno-610", 32, 64, 0, 1),
    ("adreno-610", 12, 256, 0, 4),
    ("adreno-830", 12, 256, 0, 16),
]


@pytest.mark.parametrize(("name", "registers", "threads", "local_bytes", "expected"), COMPILED)
def test_waves_of_kernels(name, registers, threads, local_bytes, expected):
    assert waves(core(name), registers, threads, local_bytes) == expected


@pytest.mark.parametrize(
    ("name", "threads", "expected"),
    [
        *(("adreno-740", threads, 48) for threads in (64, 128, 256)),
        *(("adreno-660", threads, most) for threads, most in ((64, 48), (128, 32), (256, 32), (512, 16))),
        *(("adreno-610", threads, most) for threads, most in ((64, 48), (128, 24), (256, 12))),
        *(("mali-g57", threads, 2) for threads in (64, 512)),
    ],
)
def test_the_most_registers_of_a_block(name, threads, expected):
    """A block whose threads wait for each other must fit in a core."""
    assert most_registers(core(name), threads) == expected
    assert waves(core(name), expected, threads) * core(name).wave >= threads
    numbers = expected * core(name).unit
    assert not spills(core(name), numbers, threads) and spills(core(name), numbers + 1, threads)


@pytest.mark.parametrize("row", [row for row in TARGETS.values() if row.core], ids=lambda row: row.name)
def test_registers_are_rounded_up_to_what_costs_no_wave(row: Row):
    for threads in (64, 128, 256):
        for local_bytes in (0, 6384, 11000):
            for numbers in range(1, 4 * 48, 7):
                given = allotted(row.core, numbers, threads, local_bytes)
                least = min(-(-numbers // row.core.unit), most_registers(row.core, threads))
                held = waves(row.core, given, threads, local_bytes)
                assert given >= least and held == waves(row.core, least, threads, local_bytes)


def test_a_wave_is_doubled_where_it_holds_more_threads():
    assert doubled(core("adreno-740"), 6, 128) and not doubled(core("adreno-740"), 6, 64)
    assert not doubled(core("adreno-740"), 19, 128)  # ten waves of 64 are more than four of 128
    assert not doubled(core("adreno-830"), 6, 128)


def test_a_processor_of_a_phone_holds_blocks_by_its_waves():
    phone = Processor.of(TARGETS["adreno-740"])
    assert phone.resident(64, 8432, 140) == 3  # local memory: registers would leave four
    assert phone.resident(64, 0, 140) == 4
    assert phone.resident(256, 0, 140) == 1
    assert phone.resident(128, 0, 24) == 16
    assert Processor.of(TARGETS["opencl"]).core is None
