# SPDX-License-Identifier: Apache-2.0
"""Lines survive torn ends, full disks and other processes."""

import json
import multiprocessing

import pytest

from full_disk import no_room_beyond
from smartmem_tvm.errors import UserError
from smartmem_tvm.tune.json_lines import Damage, append, mend_end, read, rewrite


def test_what_is_added_is_read_in_its_order(tmp_path):
    path = tmp_path / "new" / "file"
    append(path, [{"a": 1}, {"b": [2]}])
    append(path, [{"c": None}])
    assert read(path) == ([{"a": 1}, {"b": [2]}, {"c": None}], [])


def test_damaged_lines_are_told_and_the_others_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b'{"a": 1}\n[2]\n\xff\n\n{"b": 2}\n{"c"')
    assert read(path) == ([{"a": 1}, {"b": 2}], [Damage(2, False), Damage(3, False), Damage(6, True)])


@pytest.mark.parametrize("torn", [b'{"b', b'{"b": 2', b"2"])
def test_a_torn_end_is_mended_or_stays_a_line_of_its_own(torn, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b'{"a": 1}\n' + torn)
    append(path, [{"c": 3}])
    assert {"c": 3} in read(path)[0]
    path.write_bytes(b'{"a": 1}\n' + torn)
    assert mend_end(path) == len(torn)
    assert path.read_bytes() == b'{"a": 1}\n' and mend_end(path) == 0 and mend_end(tmp_path / "none") == 0


def test_a_last_line_may_lack_its_end(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b'{"a": 1}')
    assert mend_end(path) == 0
    append(path, [{"b": 2}])
    assert read(path) == ([{"a": 1}, {"b": 2}], [])


def test_lines_that_others_refer_to_are_written_again_when_they_are_gone(tmp_path):
    path, context = tmp_path / "file", [{"run": 1}, {"kernel": 2}]
    size = append(path, [{"a": 1}], context)
    assert size == path.stat().st_size and read(path)[0] == [*context, {"a": 1}]
    size = append(path, [{"b": 1}], context, size)
    append(path, [{"other": 1}])
    append(path, [{"c": 1}], context, size)
    assert read(path)[0][2:] == [{"a": 1}, {"b": 1}, {"other": 1}, {"c": 1}]
    rewrite(path, lambda lines: lines[1:3])
    append(path, [{"d": 1}], context, size)
    assert read(path)[0] == [{"kernel": 2}, {"a": 1}, {"run": 1}, {"d": 1}]


def test_without_room_the_file_is_left_as_it_was(tmp_path):
    path = tmp_path / "file"
    append(path, [{"a": 1}])
    with no_room_beyond(path, 5):
        with pytest.raises(UserError, match=r"file cannot be written \(File too large\): what is in the file"):
            append(path, [{"b": 2}])
        assert path.read_text() == '{"a": 1}\n'
    append(path, [{"b": 2}])
    assert read(path) == ([{"a": 1}, {"b": 2}], [])


def test_no_line_is_lost_between_processes_that_add_and_one_that_rewrites(tmp_path):
    path = tmp_path / "file"
    append(path, [{"n": -1}])
    context = multiprocessing.get_context("fork")
    adding = [context.Process(target=_add, args=(path, first)) for first in (0, 100)]
    for each in adding:
        each.start()
    while any(each.is_alive() for each in adding):
        rewrite(path, lambda lines: lines)
    for each in adding:
        each.join()
    assert sorted(line["n"] for line in read(path)[0]) == [-1, *range(50), *range(100, 150)]


def _add(path, first):
    for number in range(first, first + 50):
        append(path, [{"n": number}])


def test_a_rewrite_that_fails_leaves_the_old_lines(tmp_path):
    path = tmp_path / "file"
    append(path, [{"a": 1}])
    with pytest.raises(TypeError):
        rewrite(path, lambda lines: [*lines, {"b": object()}])
    assert read(path) == ([{"a": 1}], []) and list(tmp_path.iterdir()) == [path]
    assert rewrite(path, lambda lines: [*lines, *lines]) == (1, 2)


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UserError, match=r"Records .* are no file; give"):
        read(tmp_path)
    with pytest.raises(UserError, match="cannot be written"):
        append(tmp_path, [json.loads("{}")])
