# SPDX-License-Identifier: Apache-2.0
"""A tiny model to measure."""

from pathlib import Path

import onnx
import pytest

from attention_model import attention_model


@pytest.fixture(scope="session")
def model_path(tmp_path_factory) -> Path:
    """The attention model with fixed sizes, as a file."""
    path = tmp_path_factory.mktemp("models") / "attention.onnx"
    onnx.save(attention_model(), path)
    return path
