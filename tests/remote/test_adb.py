# SPDX-License-Identifier: Apache-2.0
"""Which phone adb has, and what it says when it does not do what it is asked."""

from pathlib import Path

import pytest

import smartmem_tvm
from fake_adb import FakePhone
from smartmem_tvm.errors import UserError
from smartmem_tvm.remote import adb

HEAD = "List of devices attached\n"


@pytest.fixture
def fake(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "path"), prepend=":")
    return FakePhone(tmp_path)


def test_the_only_phone_is_found(fake):
    assert adb.find() == adb.find("SERIAL1") == adb.Phone("SERIAL1")
    assert fake.calls == [["devices", "-l"]] * 2


def test_one_of_several_is_chosen(fake):
    fake.table(devices=f"{HEAD}A1 device usb:1\nB2 device usb:2\nC3 offline usb:3\n")
    assert adb.find("B2").serial == "B2"
    with pytest.raises(UserError, match=r"several phones \(A1, B2, C3\): choose one with --serial\."):
        adb.find()
    with pytest.raises(UserError, match="no phone 'D4': give --serial one of A1, B2, C3"):
        adb.find("D4")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("", "finds no phone: plug one in and turn on USB debugging"),
        ("A1 unauthorized usb:1\n", "A1 is unauthorized: unlock it and accept"),
        ("A1 offline usb:1\n", "A1 is offline: plug it in again"),
        ("A1 no permissions (missing udev rules?); see [http]\n", "A1 is not accessible: .* udev rule"),
        ("A1 recovery usb:1\n", "A1 is recovery: start Android"),
    ],
)
def test_a_phone_that_is_not_ready(fake, rows, message):
    fake.table(devices=HEAD + rows)
    with pytest.raises(UserError, match=message):
        adb.find()


def test_without_adb_the_message_says_where_it_comes_from(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="platform-tools"):
        adb.find()


def test_an_adb_that_hangs_is_given_up(fake, monkeypatch):
    fake.table(hang="devices")
    monkeypatch.setattr(adb, "SECONDS", 0.5)
    with pytest.raises(adb.AdbError, match=r"`adb devices -l` did not answer in 0\.5 s"):
        adb.find()


def test_what_adb_complains_of_is_shown(fake, tmp_path):
    fake.table(fail={"push": "no space left on device"})
    with pytest.raises(adb.AdbError, match=r"`adb -s SERIAL1 push .* failed \(adb: error: no space left on device\)"):
        adb.find().push(tmp_path / "table", "/data/local/tmp/table")


def test_files_are_read_as_far_as_they_may_be(fake):
    fake.file("sys/a/one", "1\n")
    fake.file("sys/a/two", "")
    assert adb.find().read("/sys/a/*", "/sys/b/*") == {"/sys/a/one": "1", "/sys/a/two": None}


def test_a_port_of_another_phone_is_left_alone(fake):
    phone = adb.find()
    fake.file("ports-forward-9091", "OTHER tcp:9091 tcp:9091")
    phone.forward(9090)
    with pytest.raises(adb.AdbError, match="cannot rebind"):
        phone.forward(9091)
    phone.unforward(range(9090, 9100))
    assert fake.ports == ["ports-forward-9091"]


def test_nothing_else_calls_adb():
    root = Path(smartmem_tvm.__file__).parent
    callers = {path.name for path in root.rglob("*.py") if '["adb"' in path.read_text("utf-8")}
    assert callers == {"adb.py"}
