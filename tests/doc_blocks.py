# SPDX-License-Identifier: Apache-2.0
"""The commands and programs of pages, and a folder where they run, with small networks named like those of models/."""

import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from gguf_files import Network

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("*/*.md"))
    if not path.is_relative_to(ROOT / "build") and not any(part.startswith(".") for part in path.parts[-2:])
)
IMAGE = (1, 3, 224, 224)
PLACEHOLDERS = {
    "HOST:PORT": "127.0.0.1:9190",
    "HOST:9190": "127.0.0.1:9190",
    "MODEL": "models/swin_t.onnx",
    "DIR": "out",
}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^ {4}((?:smartmem|make|python|pip|pytest) .*)$", re.MULTILINE)
_INLINE = re.compile(r"`(smartmem [^`]+)`")


@dataclass(frozen=True)
class Command:
    """One command of a page, as words; environment variables before it, redirections and ``&`` are left out."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page in a language."""
    return [text for name, text in _FENCE.findall(page.read_text("utf-8")) if name == language]


def name_of(page: Path) -> str:
    """A page's path below the root."""
    return page.relative_to(ROOT).as_posix()


def commands(page: Path) -> list[Command]:
    """All commands in the blocks of a page, in their order."""
    text = page.read_text("utf-8")
    lines = [line for block in blocks(page, "sh") for line in whole_lines(block)]
    found = (words(line) for line in (*lines, *_INDENTED.findall(_FENCE.sub("", text))))
    return [Command(name_of(page), each) for each in found if each]


def whole_lines(block: str) -> list[str]:
    """The lines of a block; those that a backslash or an open quotation continues are one."""
    found: list[str] = []
    begun = ""
    for line in block.replace("\\\n", " ").splitlines():
        begun += line
        try:
            shlex.split(begun, comments=True)
        except ValueError:  # no closing quotation yet
            begun += " "
            continue
        found.append(begun)
        begun = ""
    assert not begun, begun
    return found


def words(line: str) -> tuple[str, ...]:
    """Split a line into words as a shell does."""
    found = shlex.split(line, comments=True)
    for end in (place for place, each in enumerate(found) if each in ("&", ">", "|", "&&")):
        found = found[:end]
        break
    while found and re.fullmatch(r"[A-Z_]+=.*", found[0]):
        del found[0]
    if found[:3] == ["python", "-m", "smartmem_tvm"]:
        found[:3] = ["smartmem"]
    return tuple(PLACEHOLDERS.get(each, each) for each in found)


def mentions(page: Path) -> list[str]:
    """Commands of smartmem within the text of a page."""
    return [" ".join(each.split()) for each in _INLINE.findall(_FENCE.sub("", page.read_text("utf-8")))]


def small_model() -> onnx.ModelProto:
    """An image in, as large as those of models/; a convolution, layout operators, a matmul and a softmax."""
    random = np.random.default_rng(0)
    weights = {"stem": (16, 3, 1, 1), "dense": (16, 16)}
    constants = [numpy_helper.from_array(random.standard_normal(s).astype("float32"), n) for n, s in weights.items()]
    constants.append(numpy_helper.from_array(np.array([1, 16, 49]), "tokens"))
    nodes = [
        helper.make_node("Conv", ["x", "stem"], ["patches"], strides=[32, 32]),
        helper.make_node("Reshape", ["patches", "tokens"], ["rows"]),
        helper.make_node("Transpose", ["rows"], ["columns"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["columns", "dense"], ["linear"], name="linear"),
        helper.make_node("Softmax", ["linear"], ["y"], axis=-1),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", IMAGE), ("y", (1, 49, 16)))]
    graph = helper.make_graph(nodes, "small", ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def workplace(folder: Path) -> Path:
    """Return a folder with the files that the pages' commands name."""
    (folder / "models").mkdir()
    onnx.save(small_model(), folder / "model.onnx")
    for path in (ROOT / "models").rglob("*.onnx"):
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(folder / "model.onnx", copy)
    Network().write(folder / "model.gguf")
    np.savez(folder / "x.npz", x=np.zeros(IMAGE, "float32"))
    return folder
