# SPDX-License-Identifier: Apache-2.0
"""The cache of compiled kernels: whole files, the right ones, and not too many."""

import logging
import os
import time

import pytest

from smartmem_tvm import UserError
from smartmem_tvm.deploy.binary_cache import BinaryCache, cache_of


@pytest.fixture
def cache(tmp_path):
    return BinaryCache(tmp_path / "some" / "folder", megabytes=1)


def test_what_is_stored_comes_back_for_its_key_only(cache):
    assert cache.load("a", "b") is None
    cache.store(b"code", "a", "b")
    assert cache.load("a", "b") == b"code"
    assert cache.load("ab", "") is None and cache.load("a") is None


def test_a_damaged_file_counts_as_missing_and_is_named(cache, caplog):
    cache.store(b"some code", "key")
    (path,) = cache.folder.iterdir()
    for damaged in (path.read_bytes()[:-1], b"", path.read_bytes()[:-1] + b"X"):
        path.write_bytes(damaged)
        caplog.clear()
        assert cache.load("key") is None
        assert not path.exists() and not cache.has("key")
        assert f"{path} is damaged: what it held is made anew." in caplog.text
    assert cache.load("other") is None and "other" not in caplog.text
    cache.store(b"some code", "key")
    assert cache.load("key") == b"some code"


def test_has_looks_for_a_file_and_keeps_it_young(cache):
    assert not cache.has("key") and not BinaryCache(None).has("key")
    cache.store(b"code", "key")
    (path,) = cache.folder.iterdir()
    os.utime(path, (1, 1))
    assert cache.has("key") and path.stat().st_mtime > 1


def test_clear_deletes_whole_files(cache):
    assert cache.clear() == 0 and BinaryCache(None).clear() == 0
    for number in range(3):
        cache.store(b"code", str(number))
    (cache.folder / "1.unfinished").write_bytes(b"co")
    assert cache.clear() == 3 and cache.load("0") is None
    assert [each.name for each in cache.folder.iterdir()] == ["1.unfinished"], "another process writes it"


def test_the_least_recently_used_go(cache):
    for number in range(5):
        cache.store(bytes(200_000), str(number))
        (newest,) = set(cache.folder.iterdir()) - {
            path for path in cache.folder.iterdir() if path.stat().st_mtime < 1e6
        }
        os.utime(newest, (number, number))
    cache.prune()
    assert all(cache.load(str(number)) is not None for number in range(5)), "under the limit nothing goes"
    for path in cache.folder.iterdir():
        os.utime(path, (1, 1))
    assert cache.load("3") is not None  # used now
    cache.store(bytes(300_000), "5")
    cache.prune()
    assert cache.load("3") is not None and cache.load("5") is not None
    left = sum(path.stat().st_size for path in cache.folder.iterdir())
    assert left <= cache.limit * 3 // 4


def test_unfinished_files_of_the_dead_go(cache):
    cache.store(b"code", "key")
    dead, alive = cache.folder / "1.unfinished", cache.folder / "2.unfinished"
    for path in (dead, alive):
        path.write_bytes(b"co")
    os.utime(dead, (time.time() - 7200,) * 2)
    cache.prune()
    assert not dead.exists() and alive.exists() and cache.load("key") == b"code"


def test_a_folder_that_cannot_be_written_costs_one_warning(tmp_path, caplog):
    file = tmp_path / "file"
    file.write_text("")
    cache = BinaryCache(file / "folder")
    with caplog.at_level(logging.WARNING):
        cache.store(b"code", "a")
        cache.store(b"code", "b")
    assert len(caplog.records) == 1 and str(file) in caplog.text
    assert cache.load("a") is None
    cache.prune()


def test_no_folder_keeps_nothing():
    cache = BinaryCache(None)
    cache.store(b"code", "a")
    cache.prune()
    assert cache.load("a") is None


def test_the_environment_chooses(monkeypatch, tmp_path):
    for name in ("V", "V_MB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert str(cache_of("V", "cuda").folder) == "/home/me/.cache/smartmem_tvm/cuda"
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert str(cache_of("V", "cuda").folder) == "/caches/smartmem_tvm/cuda"
    monkeypatch.setenv("V", str(tmp_path))
    monkeypatch.setenv("V_MB", "2")
    found = cache_of("V", "cuda")
    assert found.folder == tmp_path and found.limit == 2 << 20
    monkeypatch.setenv("V", "0")
    assert cache_of("V", "cuda").folder is None
    for wrong in ("0", "many", "-1", "1.5", ""):
        monkeypatch.setenv("V_MB", wrong)
        with pytest.raises(UserError, match=r"V_MB is '.*' and must be a whole number"):
            cache_of("V", "cuda")
