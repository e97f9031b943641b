# SPDX-License-Identifier: Apache-2.0
"""``smartmem phone``: start, look, stop, and what it says where it cannot."""

import pytest

from fake_adb import FakePhone
from fake_tracker import tracker_of


@pytest.fixture
def fake(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "path"), prepend=":")
    return FakePhone(tmp_path)


@pytest.mark.device
def test_from_start_to_stop(smartmem, fake):
    library = fake.binary("libtvm_runtime.so")
    with tracker_of(fake.servers) as tracker:
        wanted = ("phone", "--tracker", tracker, "--key", "pocket", "--server", fake.binary(), "--push", library)
        started = smartmem(*wanted, "--json")
        assert started.code == 0, started.err
        expected = {"serial": "SERIAL1", "address": "127.0.0.1:9091", "key": "pocket", "battery_celsius": 28.7}
        assert expected.items() <= started.data.items()
        shown = smartmem(*wanted)
        assert shown.code == 0 and f"smartmem measure DIR --tracker {tracker} --key pocket" in shown.out
        assert smartmem("phone", "--stop", "--json").data == {"serial": "SERIAL1", "stopped": True}
    assert "no server was running" in smartmem("phone", "--stop").out


def test_the_state_alone(smartmem, fake):
    fake.file("sys/class/thermal/thermal_zone0/type", "gpu")
    fake.file("sys/class/thermal/thermal_zone0/temp", "41200")
    found = smartmem("phone", "--status", "--json").data
    assert found["zones_celsius"] == {"gpu": 41.2} and "address" not in found
    shown = smartmem("phone", "--status")
    assert shown.code == 0 and "41.2 °C (gpu)" in shown.out and "not readable" in shown.out
    assert not [each for each in fake.calls if {"push", "forward", "reverse"} & set(each)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "lacks --tracker and --key and --server"),
        (("--key", "k", "--server", "missing", "--tracker", "127.0.0.1:1"), "missing is no file"),
        (("--status", "--serial", "B2"), "no phone 'B2'"),
    ],
)
def test_what_is_wrong_is_one_sentence(smartmem, fake, arguments, message):
    outcome = smartmem("phone", *arguments)
    assert outcome.code == 2 and message in outcome.err and outcome.err.count("\n") == 1
