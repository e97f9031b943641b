# SPDX-License-Identifier: Apache-2.0
"""Inputs cut into tiles: right from a folder, by name, in sessions; a sentence for inputs that do not fit."""

import json

import numpy as np
import pytest
import tvm

import smartmem_tvm
from open_models import N, compiled, drawn, expected, layers, model, sentence, weights
from smartmem_tvm import UserError
from smartmem_tvm.cli import main
from smartmem_tvm.deploy import export, inference_session

FLOATS = model(
    [("MatMul", ["x", "w"], "m", {}), ("Softmax", ["m"], "s", {"axis": 1}), ("MatMul", ["s", "w"], "y", {})],
    [1, N, 24],
    {"w": weights(24, 24)},
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("open")
    (place / "m.onnx").write_bytes(layers().SerializeToString())
    assert main(["compile", str(place / "m.onnx"), "--shape", "x:2..9,16", "-o", str(place / "out")]) == 0
    return place / "out"


@pytest.fixture(scope="module")
def loaded(folder):
    return export.load(folder)


@pytest.mark.parametrize("items", range(2, 10))
def test_by_place_by_name_and_in_a_session(loaded, items):
    x = drawn(layers(), items, items)
    wanted = expected(layers(), x)
    session = loaded.session()
    for found in (loaded.run(x), loaded.run(x=x), loaded.run({"x": x}), session.run(x), loaded.run_whole([x])):
        np.testing.assert_allclose(found[0], wanted, rtol=1e-4, atol=1e-5)


def test_arrays_of_other_strides_and_tensors(loaded):
    import tvm

    x = drawn(layers(), 7)
    wanted = expected(layers(), x)
    for given in (np.asfortranarray(x), tvm.runtime.tensor(x), x.tolist()):
        array = given if not isinstance(given, list) else np.asarray(given, "float32")
        np.testing.assert_allclose(loaded.run(array)[0], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((10, 16), r"Input 'x' has shape 10x16, and this model takes 'x' \(2\.\.9\)x16"),
        ((1, 16), "give as many items as it takes"),
        ((3, 15), r"takes 'x' \(2\.\.9\)x16, and 'x' 3x15 came"),
        ((3, 16, 1), "and 'x' 3x16x1 came"),
        ((), "and 'x' scalar came"),
    ],
)
def test_shapes_that_do_not_fit(loaded, shape, words):
    with pytest.raises(UserError, match=words):
        loaded.run(np.zeros(shape, "float32"))


def test_other_mistakes_have_their_own_sentences(loaded):
    with pytest.raises(UserError, match="has dtype float64"):
        loaded.run(np.zeros((5, 16)))
    with pytest.raises(UserError, match="takes 1 input"):
        loaded.run()
    with pytest.raises(UserError, match="No size of this model takes 'x' 5x16"):  # `bind` has no tiles
        loaded.session().bind({"x": np.zeros((5, 16), "float32")})


def test_the_least_time_covers_any_number(loaded):
    group = loaded._session().tiles._groups[0]
    costs = {each["items"]: each["cost"] for each in loaded.open[0]["tiles"]}
    for count in range(1, 40):
        cover = group.cover(count)
        assert sum(cover) >= count and sum(cover) - max(cover) < count
        assert sum(costs[each] for each in cover) <= min(-(-count // each) * cost for each, cost in costs.items())


def test_a_manifest_with_other_tiles_is_refused(folder, tmp_path):
    import shutil

    shutil.copytree(folder, tmp_path / "out")
    file = tmp_path / "out" / "manifest.json"
    manifest = json.loads(file.read_text())
    for change, words in (({"axis": 5, "each": 1}, "no items where its model has them"), ({"axis": 0}, "not the one")):
        manifest["open"][0]["inputs"] = [change]
        file.write_text(json.dumps(manifest))
        with pytest.raises(UserError, match=words):
            export.load(tmp_path / "out").run(np.zeros((3, 16), "float32"))


def test_compiled_and_loaded_have_the_same_tiles(loaded):
    compiled = smartmem_tvm.compile(smartmem_tvm.from_onnx(layers(), {"x": ("2..9", 16)}))
    assert compiled.open == loaded.open and compiled.session().tiles is not None


@pytest.mark.parametrize("proto", [sentence(), FLOATS])
def test_lengths_through_memory_that_the_device_reads(proto, monkeypatch):
    """Here both are this machine's memory. What former calls left behind the length is not seen."""
    taken = []
    monkeypatch.setattr(inference_session, "pinned_memory", lambda device: taken.append(device) or tvm.cpu())
    found = compiled(proto, "3..13")
    random, kept = np.random.default_rng(3), []
    for length in (13, 3, 4, *random.integers(3, 14, 6)):
        for call in found._first._host_calls.values():
            for array in list(call.inputs.values())[:-1]:
                array[...] = np.nan if array.dtype.kind == "f" else 1
        x = drawn(proto, int(length), int(length))
        (got,), wanted = found.run(x), expected(proto, x)
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
        kept.append((got, got.copy()))
    assert len(taken) == len(found._first._host_calls) > 1
    for got, before in kept:
        np.testing.assert_array_equal(got, before)  # results are the caller's
    with pytest.raises(UserError, match="float16"):
        found.run(np.asarray(x, "float16"))
    (got,) = found.run(tvm.runtime.tensor(x))  # no array: the general way
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
