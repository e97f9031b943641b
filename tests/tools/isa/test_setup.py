# SPDX-License-Identifier: Apache-2.0
"""Get Mesa: what is said before something is fetched, and refusals of machines that cannot have it."""

import subprocess
import types
from pathlib import Path

import pytest

from smartmem_tvm import mesa_folder
from smartmem_tvm.errors import UserError
from smartmem_tvm.tools.isa import setup

_URI = "'http://mirror/debian/pool/main/{0}' {0} {1} SHA256:0\n"
URIS = "Reading package lists...\n" + "".join(
    _URI.format(file, size)
    for file, size in (
        ("mesa-opencl-icd_26.2.6-1_amd64.deb", 9_000_000),
        ("libllvm22_1%3a22.1.8-3_amd64.deb", 31_000_000),
    )
)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine whose programs all exist and are only noted; returns (what is run, the sources of apt)."""
    run, sources = [], tmp_path / "etc"
    sources.mkdir()
    (tmp_path / "keys").touch()

    def call(command, _problem):
        run.append(command)
        return URIS if "--print-uris" in command else ""

    monkeypatch.setenv(mesa_folder.FOLDER_VARIABLE, str(tmp_path / "mesa"))
    monkeypatch.setattr(setup, "machine_problem", lambda *_: None)
    monkeypatch.setattr(setup, "_KEYS", tmp_path / "keys")
    monkeypatch.setattr(setup, "_SOURCES", sources)
    monkeypatch.setattr(setup, "_call", call)
    monkeypatch.setattr(setup, "enter", lambda: ["enter"])
    monkeypatch.setattr(setup.shutil, "which", lambda name: f"/usr/bin/{name}")
    done = subprocess.CompletedProcess([], 0)
    monkeypatch.setattr(setup.subprocess, "run", lambda *_, **__: done)
    return run, sources


def test_sizes_are_said_before_anything_is_fetched(machine, tmp_path):
    run, _ = machine
    said = []
    found = setup.set_up(lambda sentence: said.append((sentence, len(run))))
    assert [before for _, before in said] == [0, 2]  # the list; after `update` and `--print-uris`, the packages
    assert "2 packages of Debian, 40 MB" in said[1][0] and "Mesa 26.2.6-1" in said[1][0]
    assert "--download-only" in run[2] and found["fetched_bytes"] == 40_000_000
    assert found["packages"]["libllvm22"] == "1:22.1.8-3"
    assert mesa_folder.mesa_folder() == tmp_path / "mesa"
    assert (tmp_path / "mesa/version.txt").read_text() == "26.2.6-1\n"
    assert run[-1][0] == "/usr/bin/cc" and Path(run[-1][-2]).is_file()


def test_nothing_is_written_outside_the_folder(machine, tmp_path):
    run, _ = machine
    setup.set_up(lambda _: None)
    for command in run:
        if command[0] == "apt-get":
            places = [part.partition("=")[2] for part in command if part.startswith("-oDir::")]
            assert len(places) == 6 and all(each.startswith(str(tmp_path)) or each == "/dev/null" for each in places)


def test_mali_has_packages_of_another_architecture_and_an_emulator(machine, tmp_path, monkeypatch):
    run, _ = machine
    found = types.SimpleNamespace(command=("/usr/bin/aarch64-cc",))
    monkeypatch.setattr(setup, "cross_compiler", lambda _: found)
    said = []
    setup.set_up(said.append, mesa_folder.MALI)
    assert "20 MB" in said[0] and all("qemu-user:amd64" in command for command in run if "install" in command)
    assert (tmp_path / "mesa/mali/version.txt").read_text() == "26.2.6-1\n"
    assert "-oAPT::Architecture=arm64" in run[0] and run[-1][:3] == ["/usr/bin/aarch64-cc", "-x", "c"]
    monkeypatch.setattr(setup, "cross_compiler", lambda _: None)
    with pytest.raises(UserError, match="under qemu, and needs a compiler for aarch64-linux-gnu"):
        setup.set_up(said.append, mesa_folder.MALI)


def test_the_mirror_is_that_of_this_machine(machine):
    _, sources = machine
    assert setup.mirror() == "http://deb.debian.org/debian/"
    (sources / "sources.list").write_text("deb http://ubuntu.example/ubuntu noble main\n")
    assert setup.mirror() == "http://deb.debian.org/debian/"
    (sources / "sources.list.d").mkdir()
    (sources / "sources.list.d/debian.sources").write_text("Types: deb\nURIs: https://near.example/debian\n")
    assert setup.mirror() == "https://near.example/debian/"


@pytest.mark.parametrize(
    ("missing", "remedy"),
    [("apt-get", "apt-get install apt"), ("dpkg-deb", "apt-get install dpkg"), ("cc gcc clang", "apt-get install gcc")],
)
def test_programs_that_are_missing(machine, monkeypatch, missing, remedy):
    monkeypatch.setattr(setup.shutil, "which", lambda name: None if name in missing.split() else f"/usr/bin/{name}")
    monkeypatch.setattr(setup, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=remedy):
        setup.set_up(lambda _: None)


def test_users_that_may_have_no_root_folder(machine, monkeypatch):
    monkeypatch.setattr(setup, "enter", lambda: None)
    with pytest.raises(UserError, match="run as root, or allow user namespaces"):
        setup.set_up(lambda _: None)
    monkeypatch.setattr(setup, "enter", lambda: ["enter"])
    refused = subprocess.CompletedProcess([], 1)
    monkeypatch.setattr(setup.subprocess, "run", lambda *_, **__: refused)
    with pytest.raises(UserError, match="run as root, or allow user namespaces"):
        setup.set_up(lambda _: None)


def test_a_suite_without_mesa(machine, monkeypatch):
    monkeypatch.setattr(setup, "_call", lambda *_: "")
    with pytest.raises(UserError, match="has no mesa-opencl-icd at present"):
        setup.set_up(lambda _: None)


def test_debians_keys(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(setup, "_KEYS", tmp_path / "none")
    with pytest.raises(UserError, match="debian-archive-keyring"):
        setup.set_up(lambda _: None)


def test_what_fails_is_told_with_its_last_line():
    with pytest.raises(UserError, match=r"It fails \(second\); see to it"):
        setup._call(["sh", "-c", "echo first; echo second; exit 3"], "It fails")


def test_other_machines(monkeypatch):
    monkeypatch.setattr(mesa_folder.sys, "platform", "darwin")
    assert "Linux on x86-64 only" in mesa_folder.machine_problem()
    with pytest.raises(UserError, match="Linux on x86-64 only"):
        setup.set_up(lambda _: None)


@pytest.mark.parametrize(("user", "words"), [(0, ["chroot"]), (1000, ["unshare", "chroot"])])
def test_how_the_folder_becomes_the_root(monkeypatch, user, words):
    monkeypatch.setattr(mesa_folder.os, "geteuid", lambda: user)
    monkeypatch.setattr(mesa_folder.shutil, "which", lambda name, path: f"/sbin/{name}")
    assert [Path(each).name for each in mesa_folder.enter() if each.startswith("/")] == words
    monkeypatch.setattr(mesa_folder.shutil, "which", lambda name, path: None if name == words[0] else f"/sbin/{name}")
    assert mesa_folder.enter() is None
