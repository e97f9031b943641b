# SPDX-License-Identifier: Apache-2.0
"""Libraries for another CPU: objects that a linker of that CPU takes, or a library where a compiler is at hand."""

import importlib.machinery
import io
import json
import os
import shutil
import sys
import tarfile
from pathlib import Path

import pytest
import tvm
from elftools.elf.elffile import ELFFile
from tvm.support import cc

from helpers import constant, module, op
from smartmem_tvm import UserError, compile
from smartmem_tvm.deploy.compilers import CrossCompiler
from smartmem_tvm.deploy.export import check_destination, load, save
from smartmem_tvm.deploy.link import _archive, is_foreign, link_for
from smartmem_tvm.deploy.manifest import checksum
from smartmem_tvm.target import host_target, parse_target

PHONE = parse_target("adreno-740")
MANIFEST = {"inputs": [{"name": "x", "shape": [8, 64], "dtype": "float32"}], "outputs": ["y"]}
BOARD = "aarch64-linux-gnu"
BOARDS = {
    "cpu": {"kind": "llvm", "mtriple": BOARD, "num-cores": 4},
    "gpu": {"kind": "opencl", "host": {"kind": "llvm", "mtriple": "aarch64-unknown-linux-gnu"}},
}
LINKER = """\
#!/bin/sh
[ "$1" = -dumpmachine ] && echo aarch64-unknown-linux-android && exit
echo "$@" > "{log}"
while [ "$1" != -o ]; do shift; done
printf linked > "$2"
"""


@pytest.fixture(autouse=True)
def no_ndk(monkeypatch):
    for name in ("TVM_NDK_CC", "ANDROID_NDK_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def no_compilers(monkeypatch, tmp_path):
    """Neither Debian's compilers nor zig's."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ziglang", None)


def test_a_machine_without_a_compiler_links_with_zigs(no_compilers, monkeypatch):
    monkeypatch.setattr(cc, "get_cc", lambda: None)
    with pytest.raises(UserError, match="`pip install ziglang`"):
        link_for(parse_target("cpu"))
    spec = importlib.machinery.ModuleSpec("ziglang", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec if name == "ziglang" else None)
    link = link_for(parse_target("cpu"))
    assert (link.file, link.how) == ("lib.so", "")
    assert link.compiler.command[1:4] == ("-m", "ziglang", "cc")


def compiled_for(target):
    weight = constant(64, 32)
    return compile(module(lambda x: op.nn.relu(op.matmul(op.add(x, x), weight)), (8, 64)), target)


@pytest.fixture(scope="module")
def compiled():
    return compiled_for(PHONE)


def compiler(path: Path) -> Path:
    """A program that is called like a linker, and writes down how."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(LINKER.format(log=path.parent / "called"))
    path.chmod(0o755)
    return path


def elf_symbols(data: bytes, kind: str) -> dict[str, bool]:
    """The global symbols of an ELF file of AArch64: name -> whether it is defined there."""
    file = ELFFile(io.BytesIO(data))
    assert (file.elfclass, file.little_endian, file["e_machine"], file["e_type"]) == (64, True, "EM_AARCH64", kind)
    symbols = file.get_section_by_name(".dynsym" if kind == "ET_DYN" else ".symtab").iter_symbols()
    return {each.name: each["st_shndx"] != "SHN_UNDEF" for each in symbols if each["st_info"]["bind"] != "STB_LOCAL"}


def needed(data: bytes) -> set[str]:
    """The libraries that a shared object asks for."""
    dynamic = ELFFile(io.BytesIO(data)).get_section_by_name(".dynamic")
    return {each.needed for each in dynamic.iter_tags("DT_NEEDED")}


def check_library(compiled, path: Path) -> None:
    """A library has all kernels, and leaves open only what is in TVM's runtime and the C library."""
    library = path.read_bytes()
    symbols = elf_symbols(library, "ET_DYN")
    assert compiled.rules and all(symbols[f"__tvm_ffi_{name}"] for name in compiled.rules)
    assert symbols["__tvm_ffi__library_bin"]
    assert needed(library) <= {"libc.so.6", "libm.so.6"}
    runtime = {name for name, defined in symbols.items() if not defined and "tvm" in name.lower()}
    assert runtime <= {"TVMFFIErrorSetRaisedFromCStrParts", "TVMBackendParallelLaunch"}


def objects(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        return {Path(each.name).name: tar.extractfile(each).read() for each in tar if each.isfile()}


def test_objects_for_a_phone(compiled, tmp_path):
    manifest = save(compiled, tmp_path / "out", MANIFEST, {})
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "explain.json",
        "lib.tar",
        "manifest.json",
        "weights.bin",
    ]
    assert manifest == json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["library"], manifest["host"]) == ("lib.tar", "aarch64-linux-android")
    assert "aarch64-linux-android<API>-clang++ -shared -fPIC -o lib.so *.o" in manifest["link"]
    assert manifest["sha256"]["lib.tar"] == checksum(tmp_path / "out" / "lib.tar")

    symbols = {}
    for data in objects(tmp_path / "out" / "lib.tar").values():
        symbols |= elf_symbols(data, "ET_REL")
    assert compiled.rules and all(symbols[f"__tvm_ffi_{name}"] for name in compiled.rules)
    assert symbols["__tvm_ffi__library_bin"]  # the kernels' source and the code of the virtual machine
    # What is left open a phone has: TVM's runtime, and the C library.
    assert {name for name, defined in symbols.items() if not defined} <= {"TVMFFIErrorSetRaisedFromCStrParts"}


def test_the_kernels_are_in_it_as_opencl(compiled, tmp_path):
    save(compiled, tmp_path / "out", MANIFEST, {})
    binary = b"".join(objects(tmp_path / "out" / "lib.tar").values())
    assert all(f"__kernel void {name}_kernel".encode() in binary for name in compiled.rules)


@pytest.mark.parametrize("by", ["TVM_NDK_CC", "ANDROID_NDK_HOME"])
def test_an_ndk_links(compiled, tmp_path, monkeypatch, by):
    bin = tmp_path / "ndk" / "toolchains" / "llvm" / "prebuilt" / "linux-x86_64" / "bin"
    for level in (34, 21, 28):
        compiler(bin / f"aarch64-linux-android{level}-clang++")
    oldest = bin / "aarch64-linux-android21-clang++"
    monkeypatch.setenv(by, str(oldest if by == "TVM_NDK_CC" else tmp_path / "ndk"))
    assert link_for(PHONE).compiler.command == (str(oldest),)
    manifest = save(compiled, tmp_path / "out", MANIFEST, {})
    assert (manifest["library"], manifest["host"], manifest["link"]) == ("lib.so", "aarch64-linux-android", "")
    assert (tmp_path / "out" / "lib.so").read_bytes() == b"linked"
    called = (bin / "called").read_text().split()
    assert {"-shared", "-fPIC", "-lm"} < set(called)
    assert {Path(name).name for name in called if name.endswith(".o")} == {"lib0.o", "devc.o"}


@pytest.mark.parametrize("by", ["TVM_NDK_CC", "ANDROID_NDK_HOME"])
def test_an_ndk_that_is_not_there(tmp_path, monkeypatch, by):
    monkeypatch.setenv(by, str(tmp_path / "none"))
    with pytest.raises(UserError, match=by) as caught:
        check_destination(tmp_path / "out", PHONE)
    assert str(tmp_path / "none") in str(caught.value) and "\n" not in str(caught.value)


def test_this_machine_does_not_load_it(compiled, tmp_path):
    save(compiled, tmp_path / "out", MANIFEST, {})
    with pytest.raises(UserError, match=r"aarch64-linux-android.*`smartmem measure"):
        load(tmp_path / "out")


def test_this_machine_links_for_itself():
    assert link_for(host_target()).file == link_for(parse_target("opencl")).file == "lib.so"
    assert not is_foreign("") and not is_foreign(tvm.target.codegen.llvm_get_system_triple())
    assert is_foreign("riscv64-unknown-linux-gnu") and is_foreign("x86_64-linux-android")


@pytest.mark.device
@pytest.mark.parametrize("kind", BOARDS)
def test_a_board_gets_a_library(kind, tmp_path):
    compiled = compiled_for(parse_target(json.dumps(BOARDS[kind])))
    manifest = save(compiled, tmp_path / "out", MANIFEST, {})
    assert (manifest["library"], manifest["link"]) == ("lib.so", "")
    assert is_foreign(manifest["host"]) and manifest["sha256"]["lib.so"] == checksum(tmp_path / "out" / "lib.so")
    check_library(compiled, tmp_path / "out" / "lib.so")


@pytest.mark.device
def test_what_is_for_a_phone_links(compiled, tmp_path, monkeypatch):
    monkeypatch.setenv("TVM_NDK_CC", shutil.which(f"{BOARD}-g++"))  # a linker of the same CPU in the NDK's place
    manifest = save(compiled, tmp_path / "out", MANIFEST, {})
    assert (manifest["library"], manifest["host"]) == ("lib.so", "aarch64-linux-android")
    check_library(compiled, tmp_path / "out" / "lib.so")


def test_zig_links_where_debian_does_not(no_compilers, tmp_path, monkeypatch):
    (tmp_path / "ziglang").mkdir()
    log = tmp_path / "called"
    (tmp_path / "ziglang" / "__main__.py").write_text(
        f"import pathlib, sys\n"
        f"pathlib.Path({str(log)!r}).write_text(' '.join(sys.argv[1:]))\n"
        f"pathlib.Path(sys.argv[sys.argv.index('-o') + 1]).write_text('linked')\n"
    )
    (tmp_path / "ziglang" / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "ziglang")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    link = link_for(tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-unknown-linux-gnu"}))
    link.compiler.link(str(tmp_path / "lib.so"), ["a.o", "b.o"])
    assert log.read_text() == f"cc -target {BOARD} -shared -fPIC -o {tmp_path / 'lib.so'} a.o b.o -lm"
    assert (link.file, link.how) == ("lib.so", "")


def test_a_compiler_that_fails_says_why(tmp_path):
    broken = CrossCompiler(BOARD, ("/bin/sh", "-c", "echo cannot find crti.o >&2; exit 1"))
    with pytest.raises(UserError, match=rf"cannot link for {BOARD} \(cannot find crti.o\)"):
        broken.link(str(tmp_path / "lib.so"), [])
    with pytest.raises(UserError, match=r"none/cc cannot be run \(No such file"):
        CrossCompiler(BOARD, (str(tmp_path / "none" / "cc"),)).link(str(tmp_path / "lib.so"), [])


def test_without_a_compiler_both_remedies_are_named(no_compilers):
    link = link_for(parse_target(json.dumps(BOARDS["gpu"])))
    assert (link.file, link.compiler) == ("lib.tar", None)
    assert f"`apt-get install g++-{BOARD}` or `pip install ziglang`" in link.how and "NDK" not in link.how
    assert f"{BOARD}-g++ -shared -fPIC -o lib.so *.o -lm" in link.how


def test_no_linux_names_its_compiler():
    how = link_for(tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-apple-darwin"})).how
    assert "a compiler for aarch64-apple-darwin" in how and "NDK" not in how and "apt-get" not in how


def test_an_archive_has_nothing_in_it_but_the_objects(tmp_path):
    """Neither the time, nor the user, nor the order in which a folder lists them."""
    objects = [tmp_path / "lib0.o", tmp_path / "devc.o"]
    contents = []
    for time, files in ((1e9, objects), (2e9, objects[::-1])):
        for path in objects:
            path.write_bytes(path.name.encode())
            os.utime(path, (time, time))
        _archive(str(tmp_path / "lib.tar"), list(map(str, files)))
        contents.append((tmp_path / "lib.tar").read_bytes())
    assert contents[0] == contents[1]
    with tarfile.open(tmp_path / "lib.tar") as archive:
        assert {each.name: archive.extractfile(each).read() for each in archive} == {
            "devc.o": b"devc.o",
            "lib0.o": b"lib0.o",
        }
