# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import smartmem_tvm as sm
from against_onnxruntime import RUNTIME, model_of
from smartmem_tvm.frontend.converters import CONVERTERS
from smartmem_tvm.frontend.converters.contrib_parts import PARTS

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))
from pages.contrib_operators import schemas

SCHEMAS = schemas()
SERVED = sorted(name.split(".")[-1] for name in CONVERTERS if name.startswith(f"{RUNTIME}."))


def test_every_converter_has_a_line():
    assert [name for name in SERVED if name in SCHEMAS and f"{RUNTIME}.{name}" not in PARTS] == []
    assert [name for name in PARTS if name not in CONVERTERS] == []


@pytest.mark.parametrize("name", [name.split(".")[-1] for name in PARTS])
def test_a_line_has_all_that_the_operator_takes(name):
    parts, schema = PARTS[f"{RUNTIME}.{name}"], SCHEMAS[name]
    assert list(parts.inputs) == [each.name for each in schema.inputs]
    assert parts.attributes == set(schema.attributes)
    assert parts.variadic == any("Variadic" in str(each.option) for each in schema.inputs)


@pytest.mark.parametrize("name", [name.split(".")[-1] for name in PARTS if PARTS[name].refused_attributes])
def test_what_an_attribute_is_by_default_is_not_refused(name):
    for key, values in PARTS[f"{RUNTIME}.{name}"].refused_attributes.items():
        stated = onnx.AttributeProto.FromString(SCHEMAS[name].attributes[key]._default_value)
        if stated.name:
            default = helper.get_attribute_value(stated)
            default = default.decode() if isinstance(default, bytes) else str(default)
            assert default in values or float(default) in [float(each) for each in values]


@pytest.mark.parametrize(
    ("names", "attributes", "reason"),
    [
        (["x", "x"], {}, "an input behind X that this version does not know"),
        (["x"], {"approximate": "tanh"}, "attribute approximate is one that this version does not know"),
    ],
)
def test_what_a_later_version_may_say_is_refused(names, attributes, reason):
    node = helper.make_node("Gelu", names, ["y"], "later", domain=RUNTIME, **attributes)
    with pytest.raises(sm.UserError, match=rf"Gelu \(node later\).*{reason}"):
        sm.from_onnx(model_of([node], {"x": np.zeros(3, "float32")}, {"y": ("float32", (3,))}))
