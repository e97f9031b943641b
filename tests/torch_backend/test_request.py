# SPDX-License-Identifier: Apache-2.0
"""The options of ``torch.compile``; nothing here needs torch."""

import pytest

from smartmem_tvm import Options, UserError
from smartmem_tvm.target import parse_target
from smartmem_tvm.torch_backend.request import Request, read_request


def test_without_options_the_device_of_the_inputs_decides():
    request = read_request()
    assert request == read_request(options=None) == Request()
    assert request.freeze and request.options == Options()
    assert request.target_for("cpu").kind.name == "llvm"
    assert request.target_for("cuda").kind.name == "cuda"
    assert request.target_for("mps") is None


def test_options_are_read():
    request = read_request(options={"target": "llvm", "freeze": False, "fuse": False, "layout": "exact"})
    assert request.target.kind.name == "llvm" and request.target_for("cuda") is request.target
    assert (request.freeze, request.options) == (False, Options(fuse=False, layout="exact"))


def test_a_target_may_be_one_of_tvm():
    target = parse_target("cpu")
    assert read_request(options={"target": target}).target is target


def test_a_precision_that_the_target_has_not_is_refused():
    request = read_request(options={"precision": "half-storage"})
    assert request.target_for("cuda") is not None
    with pytest.raises(UserError, match="half"):
        request.target_for("cpu")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"options": {"traget": "llvm"}}, "has no option 'traget': use target, freeze, rewrite, "),
        ({"options": {"freeze": "no"}}, "'freeze' .* is True or False, not 'no'"),
        ({"options": {"target": 3}}, "'target' .* not int: use 'cpu'"),
        ({"options": {"target": "nonsense"}}, "nonsense"),
        ({"options": {"target": "adreno-740"}}, "device of another machine"),
        ({"options": {"layout": "nonsense"}}, "layout 'nonsense' does not exist"),
        ({"mode": "max-autotune"}, "'mode' is not for backend 'smartmem': leave it out, and use options"),
    ],
)
def test_what_is_of_no_use_is_refused(given, message):
    with pytest.raises(UserError, match=message):
        read_request(**given)
