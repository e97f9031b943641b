# SPDX-License-Identifier: Apache-2.0
"""A server is put on a phone, found by the tracker, and ended; and what is said where that fails."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fake_adb import FakePhone
from fake_tracker import tracker_of
from smartmem_tvm.errors import UserError
from smartmem_tvm.remote import adb, phone
from smartmem_tvm.remote.wire import parse_address


@pytest.fixture
def fake(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "path"), prepend=":")
    return FakePhone(tmp_path)


@pytest.fixture
def wanted(fake):
    with tracker_of(fake.servers) as address:
        yield phone.Start(parse_address(address), "pocket", fake.binary())
    phone.stop(adb.Phone("SERIAL1"))


def test_a_server_is_started_and_ended(fake, wanted):
    library = fake.binary("libtvm_runtime.so")
    device = adb.find()
    # The first port is one that the server cannot have.
    assert phone.start(device, replace(wanted, further=[library])) == "127.0.0.1:9091"
    tracker = wanted.tracker[1]
    forwards = [f"ports-forward-{port}" for port in range(9090, 9100)]
    assert fake.ports == [*forwards, f"ports-reverse-{tracker}"]
    folder = fake.root / "data/local/tmp/smartmem"
    assert (folder / library.name).read_bytes() == library.read_bytes()
    options = "--host=127.0.0.1 --port=9090 --port-end=9100"
    options += f" --tracker=127.0.0.1:{tracker} --custom-addr=127.0.0.1 --key=pocket"
    assert (folder / "log").read_text() == f"starting server {options}\n"
    server = Path("/proc") / (folder / "pid").read_text().strip()
    assert server.exists()
    assert phone.stop(device) is True and fake.ports == []
    assert phone.stop(device) is False
    assert not server.exists() or "\nState:\tZ" in (server / "status").read_text()


def test_a_second_start_ends_the_first_server(fake, wanted):
    device = adb.find()
    phone.start(device, wanted)
    first = (fake.root / "data/local/tmp/smartmem/pid").read_text()
    assert phone.start(device, wanted) == "127.0.0.1:9091"
    assert (fake.root / "data/local/tmp/smartmem/pid").read_text() != first


def test_a_number_that_is_another_programs_by_now_is_left_alone(fake):
    fake.file("data/local/tmp/smartmem/pid", "1")
    assert phone.stop(adb.find()) is False


@pytest.mark.device
@pytest.mark.parametrize(
    ("says", "message"),
    [
        (
            'library "libtvm_runtime.so" not found',
            r'ended before it registered \(library "libtvm_runtime.so" not found\): .* --push',
        ),
        ("\\n", r"ended before it registered \(starting server --host"),
    ],
)
def test_a_server_that_ends_at_once_shows_its_last_line(fake, wanted, says, message):
    fake.table(says=says)
    with pytest.raises(UserError, match=message):
        phone.start(adb.find(), wanted)
    assert fake.ports == []


def test_a_server_that_registers_nowhere_is_given_up(fake, wanted, monkeypatch):
    monkeypatch.setattr(phone, "START_SECONDS", 0.5)
    monkeypatch.setattr(phone, "_listed", lambda *_: None)
    with pytest.raises(UserError, match=r"did not register in 0\.5 s"):
        phone.start(adb.find(), wanted)
    assert phone.stop(adb.find()) is False and fake.ports == []


def test_a_push_that_fails_leaves_no_ports(fake, wanted):
    fake.table(fail={"push": "no space left on device"})
    with pytest.raises(UserError, match="no space left"):
        phone.start(adb.find(), wanted)
    assert fake.ports == []


def test_a_port_that_is_taken_here(fake, wanted):
    fake.file("ports-forward-9095", "OTHER tcp:9095 tcp:9095")
    with pytest.raises(UserError, match=r"Port 9095 of this machine is not free .* --port"):
        phone.start(adb.find(), wanted)
    assert fake.ports == ["ports-forward-9095"]


def test_a_device_of_the_tracker_is_not_taken_for_the_phone(fake, wanted, monkeypatch):
    fake.servers.write_text(json.dumps([["server:other", "127.0.0.1", 9092]]))
    monkeypatch.setattr(phone, "GONE_SECONDS", 0.3)
    with pytest.raises(UserError, match=r"another device at 127\.0\.0\.1:9092: give --port"):
        phone.start(adb.find(), wanted)


def test_a_server_for_another_cpu_is_refused_before_it_is_pushed(fake, wanted):
    other = replace(wanted, server=fake.binary(abi="x86_64"))
    with pytest.raises(UserError, match=r"another CPU \(ELF machine 62\) than phone SERIAL1, which is arm64-v8a"):
        phone.start(adb.find(), other)
    with pytest.raises(UserError, match="no ELF program"):
        phone.start(adb.find(), replace(wanted, server=fake.root / "table"))
    assert not [each for each in fake.calls if "push" in each] and fake.ports == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tracker": ("192.0.2.1", 9190)}, "smartmem rpc tracker --port 9190"),
        ({"tracker": ("127.0.0.1", 1)}, "No tracker answers"),
        ({"key": "my phone"}, "'my phone' is no key"),
        ({"port": 65530}, "Ports from 65530 do not exist"),
        ({"further": [Path("missing.so")]}, "missing.so is no file"),
    ],
)
def test_what_cannot_work_is_one_sentence(fake, wanted, change, message):
    with pytest.raises(UserError, match=message):
        phone.start(adb.find(), replace(wanted, **change))
    assert fake.ports == []


def test_facts_and_state_are_read(fake):
    device = adb.find()
    assert phone.facts(device) == {"serial": "SERIAL1", "model": "Some Phone", "abi": "arm64-v8a", "android": "14"}
    thermal = "sys/class/thermal/thermal_zone"
    for zone, (name, value) in enumerate({"gpu": "41200", "skin": "33", "modem": "", "odd": "n/a"}.items()):
        fake.file(f"{thermal}{zone}/type", name)
        fake.file(f"{thermal}{zone}/temp", value)
    fake.file("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "1804800")
    fake.file("sys/devices/system/cpu/cpu7/cpufreq/scaling_cur_freq", "")
    fake.file("sys/class/kgsl/kgsl-3d0/gpuclk", "680000000")
    assert phone.state(device) == {
        "battery_celsius": 28.7,
        "zones_celsius": {"gpu": 41.2, "skin": 33.0, "modem": None, "odd": None},
        "cpu_mhz": {"cpu0": 1804.8, "cpu7": None},
        "gpu_mhz": 680.0,
    }


def test_a_phone_that_tells_nothing_is_no_error(fake):
    fake.program("bin/dumpsys", "exit 1")
    nothing = {"battery_celsius": None, "zones_celsius": {}, "cpu_mhz": None, "gpu_mhz": None}
    assert phone.state(adb.find()) == nothing
