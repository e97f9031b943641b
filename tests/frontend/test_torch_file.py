# SPDX-License-Identifier: Apache-2.0
"""Files of torch where a model is wanted."""

import pytest

from smartmem_tvm.errors import UserError
from smartmem_tvm.frontend import from_onnx, read_model
from torch_stand_in import SAVED, install


@pytest.fixture
def files(monkeypatch, relu_model, tmp_path):
    (tmp_path / "m.pt2").write_bytes(SAVED)
    return install(monkeypatch, relu_model)


def test_a_program_is_a_model(files, tmp_path, relu_model):
    model = read_model(tmp_path / "m.pt2")
    assert model.program is files.program and model.name == str(tmp_path / "m.pt2")
    assert from_onnx(model).script() == from_onnx(relu_model).script()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.pt2", None, "does not exist; give a file that torch.export.save wrote"),
        (
            "cut.pt2",
            SAVED[:-1],
            r"is damaged, holds no program or one of another version of torch than 2\.13; write it",
        ),
        ("w.pth", b"", r"holds weights or a module, and not an exported program; write one with torch\.export\.save"),
        ("w.pt", SAVED, "holds weights or a module"),
    ],
)
def test_other_files_are_refused(files, tmp_path, caplog, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_model(tmp_path / name)
    assert not caplog.text and not files.exports


def test_a_folder_is_refused(files, tmp_path):
    (tmp_path / "folder.pt2").mkdir()
    with pytest.raises(UserError, match="is a folder"):
        read_model(tmp_path / "folder.pt2")


@pytest.mark.parametrize("missing", ["torch", "onnxscript"])
def test_what_is_missing_is_named(files, tmp_path, missing):
    files.missing = missing
    with pytest.raises(UserError, match=rf'm\.pt2: .* needs {missing}: run `pip install "smartmem-tvm\[torch\]"`'):
        read_model(tmp_path / "m.pt2")


def test_a_refusal_says_why_and_what_next(files, tmp_path):
    files.refusal = RuntimeError("No decompositions registered for 'det'.")
    with pytest.raises(UserError, match=r"m\.pt2: .*\(No decompositions registered for 'det'\); .*from_torch"):
        read_model(tmp_path / "m.pt2")
