# SPDX-License-Identifier: Apache-2.0
"""Libraries for another CPU: objects that a linker of that CPU takes, or a library where an NDK is at hand."""

import json
import struct
import tarfile
from pathlib import Path

import pytest
import tvm

from helpers import constant, module, op
from smartmem_tvm import UserError, compile
from smartmem_tvm.deploy.export import check_destination, checksum, load, save
from smartmem_tvm.deploy.link import is_foreign, link_for
from smartmem_tvm.deploy.target import host_target, parse_target

PHONE = parse_target("adreno-740")
MANIFEST = {"inputs": [{"name": "x", "shape": [8, 64], "dtype": "float32"}], "outputs": ["y"]}
ELF64, LITTLE, RELOCATABLE, AARCH64 = 2, 1, 1, 183
SYMBOLS, STRINGS_OF = 2, 6  # section type, and the place of its link in the header
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


@pytest.fixture(scope="module")
def compiled():
    weight = constant(64, 32)
    return compile(module(lambda x: op.nn.relu(op.matmul(op.add(x, x), weight)), (8, 64)), PHONE)


def compiler(path: Path) -> Path:
    """A program that is called like a linker, and writes down how."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(LINKER.format(log=path.parent / "called"))
    path.chmod(0o755)
    return path


def elf_symbols(data: bytes) -> dict[str, bool]:
    """The global symbols of a relocatable ELF file of AArch64: name -> whether it is defined there."""
    assert data[:6] == b"\x7fELF" + bytes([ELF64, LITTLE])
    kind, machine = struct.unpack_from("<HH", data, 16)
    assert (kind, machine) == (RELOCATABLE, AARCH64)
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(count)]
    (symbols,) = [each for each in sections if each[1] == SYMBOLS]
    start = sections[symbols[STRINGS_OF]][4]
    found = {}
    for offset in range(symbols[4], symbols[4] + symbols[5], 24):
        name, info, _other, section = struct.unpack_from("<IBBH", data, offset)
        if info >> 4:
            found[data[start + name : data.index(b"\0", start + name)].decode()] = section != 0
    return found


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
        symbols |= elf_symbols(data)
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
    assert link_for(PHONE).compiler == str(oldest)
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
    with pytest.raises(UserError, match=r"aarch64-linux-android.*lib\.tar on the device, over TVM RPC"):
        load(tmp_path / "out")


def test_this_machine_links_for_itself():
    assert link_for(host_target()).file == link_for(parse_target("opencl")).file == "lib.so"
    assert not is_foreign("") and not is_foreign(tvm.target.codegen.llvm_get_system_triple())
    assert is_foreign("riscv64-unknown-linux-gnu") and is_foreign("x86_64-linux-android")


def test_another_cpu_without_an_ndk_names_its_compiler():
    how = link_for(tvm.target.Target({"kind": "llvm", "mtriple": "riscv64-unknown-linux-gnu"})).how
    assert "a compiler for riscv64-unknown-linux-gnu" in how and "NDK" not in how
