# SPDX-License-Identifier: Apache-2.0
"""Networks of ``models/`` that torch runs besides their ONNX file: timm's, and some that the repository defines."""

from pathlib import Path
from types import ModuleType

NAMES = {
    "swin_t": "swin_tiny_patch4_window7_224",
    "vit_s16": "vit_small_patch16_224",
    "vit_b16": "vit_base_patch16_224",
    "convnext_t": "convnext_tiny",
    "resnext50": "resnext50_32x4d",
    "regnet": "regnety_032",
    "efficientvit_b3": "efficientvit_b3",
    "vgg19": "vgg19",
}
"""Name of the file without ``.onnx`` -> name of the model in timm."""


DEFINED_HERE = ("autoformer_s", "biformer_s", "cswin_s")
"""Networks of ``scripts/models/`` whose ONNX file has all weights; for the others the exporter merged some."""


def definition(path: Path) -> Path:
    """Return the path of the torch definition of a file in ``models/`` that is one of `DEFINED_HERE`."""
    return path.resolve().parent.parent / "scripts" / "models" / f"{path.stem}.py"


def has_definition(path: Path) -> bool:
    """Whether the torch network of a model file is available."""
    return path.stem in NAMES or (path.stem in DEFINED_HERE and definition(path).is_file())


def import_timm() -> ModuleType:
    """Import timm even if its torchvision was built for another torch.

    The library of a CUDA build does not load with a torch for the CPU. timm only uses torchvision's Python code, which
    only needs declarations of the library's operators.

    Raises
    ------
    ImportError
        If timm is not installed.
    """
    try:
        import timm
    except RuntimeError:
        import torch

        import_timm.library = torch.library.Library("torchvision", "FRAGMENT")  # keeps its declarations alive
        for name in ("nms", "qnms"):
            import_timm.library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import timm
    return timm
