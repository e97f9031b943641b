# SPDX-License-Identifier: Apache-2.0
"""Built OpenCL kernels on disk: found by the next process, never a wrong one, and no error of the cache is an error."""

import os
import resource
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fake_driver import run_with_fake
from opencl_child import load, problem_of
from opencl_sources import POCL, cache, compiled, seen_by_driver


def entries() -> list[Path]:
    return sorted(Path(os.environ["SMARTMEM_OPENCL_CACHE"]).glob("*.clprogram"))


def test_another_process_compiles_nothing(tmp_path):
    env = cache(tmp_path / "new" / "folder")
    assert run_with_fake(seen_by_driver, "a", "b", "c", env=env).value == [3, 3, 0]
    assert run_with_fake(seen_by_driver, "a", "b", "c", env=env).value == [0, 0, 3]
    assert run_with_fake(seen_by_driver, "c", "d", env=env).value == [1, 1, 1], (
        "one kernel is known from the other module"
    )


def test_another_driver_device_or_platform_compiles_anew(tmp_path):
    other = [{"driver": "2.0"}, {"device_names": "Other GPU"}, {"platform_names": "Other"}]
    counts = [run_with_fake(compiled, "a", env=cache(tmp_path), **settings).value for settings in ({}, *other, {})]
    assert counts == [1, 1, 1, 1, 0]


def with_options() -> list[int]:
    counts = []
    for options in "-cl-mad-enable", "", "-cl-mad-enable", "-w":
        os.environ["SMARTMEM_OPENCL_OPTIONS"] = options
        counts.append(compiled("a"))
    return counts


def test_other_options_compile_anew(tmp_path):
    assert run_with_fake(with_options, env=cache(tmp_path)).value == [1, 1, 0, 1]


def without_a_cache():
    return [compiled("a"), compiled("a"), str(load().get_global_func("smartmem.opencl.cache_folder")())]


def test_the_cache_can_be_turned_off():
    assert run_with_fake(without_a_cache, env={"SMARTMEM_OPENCL_CACHE": "0"}).value == [1, 1, ""]


def cache_folders() -> list[str]:
    folder = load().get_global_func("smartmem.opencl.cache_folder")
    found = []
    for variables in {"HOME": "/home/me"}, {"HOME": "/home/me", "XDG_CACHE_HOME": "/cache"}, {}, {"OURS": "/x"}:
        for name, key in ("HOME", "HOME"), ("XDG_CACHE_HOME", "XDG_CACHE_HOME"), ("SMARTMEM_OPENCL_CACHE", "OURS"):
            os.environ[name] = variables.get(key, "")
        found.append(str(folder()))
    return found


def test_the_folder_is_the_users_unless_one_is_named():
    expected = ["/home/me/.cache/smartmem_tvm/opencl", "/cache/smartmem_tvm/opencl", "", "/x"]
    assert run_with_fake(cache_folders).value == expected


def fnv(data: bytes) -> str:
    """FNV-1a of 128 bits, what an entry's file is named by and its binary checked with."""
    state = 0x6C62272E07BB014262B821756295C58D
    for byte in data:
        state = (state ^ byte) * 0x1000000000000000000013B % (1 << 128)
    return f"{state:032x}"


def refused(whole: bytes) -> bytes:
    """A whole entry with a binary that the driver does not know."""
    at, binary = whole.index(b"FAKE BINARY"), b"OTHER BINARY"
    changed = whole[:at].replace(fnv(whole[at:]).encode(), fnv(binary).encode())
    return changed.replace(struct.pack("<Q", len(whole) - at), struct.pack("<Q", len(binary))) + binary


def damaged(whole: bytes) -> dict[str, bytes]:
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    return {
        "empty": b"",
        "torn in the header": whole[:20],
        "torn": whole[:-5],
        "too long": whole + b"x",
        "a flipped bit": bytes(flipped),
        "foreign": b"something else\n" * 100,
        "of another source": whole.replace(b"a[0] = 1;", b"a[0] = 2;", 1),
        "refused by the driver": refused(whole),
    }


def damage_done() -> dict[str, list[int]]:
    """For each damage, what is compiled when it is found, and after that."""
    compiled("a")
    (path,) = entries()
    whole = path.read_bytes()
    counts = {}
    for name, content in damaged(whole).items():
        path.write_bytes(content)
        counts[name] = [compiled("a"), int(path.read_bytes() == whole), compiled("a")]
    return counts


def test_a_damaged_file_is_compiled_anew_and_replaced(tmp_path):
    counts = run_with_fake(damage_done, env=cache(tmp_path)).value
    assert len(counts) == 8
    assert {name: count for name, count in counts.items() if count != [1, 1, 0]} == {}


def test_without_a_writable_folder_there_is_one_warning_and_no_cache(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    outcome = run_with_fake(compiled, "a", "b", env=cache(tmp_path / "file"))
    assert outcome.value == 2
    assert outcome.stderr.count("compiled OpenCL kernels are not kept") == 1
    assert f"writing into {tmp_path / 'file'} failed" in outcome.stderr
    assert "set SMARTMEM_OPENCL_CACHE to another folder, or to 0 for none." in outcome.stderr


def test_workers_do_not_start_without_a_writable_folder(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    names = [f"k{i}" for i in range(6)]
    outcome = run_with_fake(seen_by_driver, *names, env=cache(tmp_path / "file"), platform_names=POCL)
    assert outcome.value == [6, 6, 0]
    assert outcome.stderr.count("compiled OpenCL kernels are not kept") == 1


def test_a_wrong_limit_is_an_error_with_every_driver(tmp_path):
    env = cache(tmp_path, SMARTMEM_OPENCL_CACHE_MB="much")
    for platform in ("Fake platform", POCL):
        message = run_with_fake(problem_of_compiling, env=env, platform_names=platform).value
        assert message == "SMARTMEM_OPENCL_CACHE_MB is 'much' and must be a whole number, at least 1."


def problem_of_compiling() -> str:
    return problem_of(lambda: compiled(*"abcdef"))


def full_disk() -> list[int]:
    compiled("a")
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, resource.RLIM_INFINITY))
    counts = [compiled("b"), compiled("c"), compiled("a")]
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return counts


def test_a_full_disk_leaves_no_half_files(tmp_path):
    outcome = run_with_fake(full_disk, env=cache(tmp_path))
    assert outcome.value == [1, 1, 0]
    assert len(list(tmp_path.iterdir())) == 1
    assert outcome.stderr.count("are not kept") == 1 and "File too large" in outcome.stderr


def test_processes_share_the_folder(tmp_path):
    names = [f"k{i}" for i in range(12)]

    def process(_):
        return run_with_fake(compiled, *names, env=cache(tmp_path), build_ms=20).value

    with ThreadPoolExecutor(3) as pool:
        assert all(count in range(13) for count in pool.map(process, range(3)))
    assert len(list(tmp_path.iterdir())) == 12
    assert process(None) == 0


def fill(count: int) -> list[list[str]]:
    """Kernels of 200 KB, the first one used again and again: what is left of them, and of other files."""
    folder = Path(os.environ["SMARTMEM_OPENCL_CACHE"])
    folder.mkdir(exist_ok=True)
    old = time.time() - 7200
    for name in "notes.txt", "unfinished-abc123":
        (folder / name).write_text("x" * 500_000)
        os.utime(folder / name, (old, old))
    for i in range(count):
        compiled(f"k{i}", body="/*" + "x" * 200_000 + "*/")
        compiled("k0", body="/*" + "x" * 200_000 + "*/")
    kept = b"".join(path.read_bytes() for path in entries())
    left = [f"k{i}" for i in range(count) if f"void k{i}(".encode() in kept]
    return [left, sorted(path.name for path in folder.iterdir() if path.suffix != ".clprogram")]


def test_the_least_recently_used_go_when_the_folder_is_full(tmp_path):
    kernels, others = run_with_fake(fill, 9, env=cache(tmp_path, SMARTMEM_OPENCL_CACHE_MB="2")).value
    assert sum(path.stat().st_size for path in tmp_path.glob("*.clprogram")) <= 2 << 20
    assert kernels[0] == "k0" and kernels[-1] == "k8" and 3 <= len(kernels) < 9
    assert others == ["notes.txt"], "only our own files are deleted, abandoned ones too"
