# SPDX-License-Identifier: Apache-2.0
"""A file is written as a whole or not at all, and no other file is lost by it."""

import os

import pytest

from smartmem_tvm.errors import UserError
from smartmem_tvm.whole_file import check_output, whole


def test_a_file_appears_when_all_is_written(tmp_path):
    path = tmp_path / "page.html"
    with whole(path) as partial:
        partial.write_text("new")
        assert not path.exists() and partial.suffix == ".html"
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]
    with pytest.raises(ZeroDivisionError), whole(path) as partial:
        partial.write_text("torn")
        1 / 0  # noqa: B018
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_a_link_stays_one(tmp_path):
    link, file = tmp_path / "link", tmp_path / "folder" / "file"
    file.parent.mkdir()
    file.write_text("old")
    link.symlink_to(file)
    with whole(link) as partial:
        partial.write_text("new")
    assert link.is_symlink() and file.read_text() == "new"


def test_places_that_cannot_be_written(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path, pipe, tmp_path / "none" / "r.json", tmp_path / ("r" * 300)):
        with pytest.raises(UserError, match="cannot be written"), whole(path) as partial:
            partial.write_text("new")
    assert pipe.is_fifo()


def test_what_is_read_is_not_written_over(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_text("model")
    (tmp_path / "same.onnx").hardlink_to(path)
    for same in (path, tmp_path / "same.onnx", tmp_path / ".." / tmp_path.name / "model.onnx"):
        with pytest.raises(UserError, match="is what is read, and would be lost"):
            check_output(same, source=path)
    check_output(tmp_path / "other.onnx", source=path)


@pytest.mark.device
def test_names_say_what_is_in_a_file(tmp_path):
    with pytest.raises(UserError, match=r"model\.onnx does not end in \.html"):
        check_output(tmp_path / "model.onnx", ending=".html")
