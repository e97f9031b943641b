# SPDX-License-Identifier: Apache-2.0
"""The result file: there after every row, whole, and not trusted when something changed."""

import json

import pytest

from smartmem_tvm.errors import UserError
from smartmem_tvm.tools.bench.results import Results, failures, fingerprint, read

GOOD = {"model": "a", "fingerprint": "1", "systems": {"ours": {"kernels": 3}}}
HALF = {"model": "b", "fingerprint": "1", "systems": {"ours": {"kernels": 3}, "tvm": {"error": "It broke."}}}
BAD = {"model": "c", "fingerprint": "1", "error": "No such file."}


def test_rows_are_kept_while_they_hold(tmp_path):
    first = Results(tmp_path / "r.json")
    for row in (GOOD, HALF, BAD):
        first.add(row)
    second = Results(tmp_path / "r.json")
    assert second.kept("a", "1") == GOOD
    assert second.kept("a", "2") is None, "the code has changed"
    assert second.kept("b", "1") is second.kept("c", "1") is None, "what failed is measured again"
    second.add({**GOOD, "fingerprint": "2"})
    assert [(row["model"], row["fingerprint"]) for row in read(tmp_path / "r.json").values()] == [
        ("a", "2"),
        ("b", "1"),
        ("c", "1"),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_failures():
    assert [failures(row) for row in (GOOD, HALF, BAD)] == [[], ["It broke."], ["No such file."]]


def test_an_interrupted_write_keeps_the_old_file(tmp_path, monkeypatch):
    results = Results(tmp_path / "r.json")
    results.add(GOOD)

    def stop(*_args):
        raise KeyboardInterrupt

    monkeypatch.setattr("pathlib.Path.replace", stop)
    with pytest.raises(KeyboardInterrupt):
        results.add(BAD)
    assert list(read(tmp_path / "r.json")) == ["a"]
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 7, "rows": []}', '{"format": 1, "rows": [{}]}'])
def test_a_file_that_is_none_of_ours(tmp_path, text):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"r\.json .*--output"):
        Results(path)
    assert path.read_text() == text


def test_fingerprint_follows_code_model_and_settings(tmp_path):
    code, model = tmp_path / "package" / "a.py", tmp_path / "m.onnx"
    code.parent.mkdir()
    code.write_text("1")
    model.write_text("1")
    seen = {fingerprint(code.parent, model, {"threads": 1}), fingerprint(code.parent, model, {"threads": 2})}
    code.write_text("2")
    seen.add(fingerprint(code.parent, model, {"threads": 1}))
    model.write_text("2")
    seen.add(fingerprint(code.parent, model, {"threads": 1}))
    assert len(seen) == 4
    assert fingerprint(code.parent, model, json.loads('{"threads": 1}')) in seen
