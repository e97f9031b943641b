# SPDX-License-Identifier: Apache-2.0
"""What is seen of changed weights, on stand-ins for torch's tensors; `tests/with_torch` does it with torch."""

from types import SimpleNamespace

import numpy as np
import pytest

from smartmem_tvm.torch_backend.snapshot import Snapshot


class Tensor:
    """What is used of torch.Tensor."""

    def __init__(self, numbers, device="cpu"):
        self.numbers, self._version, self.device = np.asarray(numbers, "float32"), 0, SimpleNamespace(type=device)

    shape = property(lambda self: self.numbers.shape)

    def data_ptr(self):
        return self.numbers.ctypes.data

    def numel(self):
        return self.numbers.size

    def dim(self):
        return self.numbers.ndim

    def detach(self):
        return self

    def element_size(self):
        return self.numbers.itemsize

    def __getitem__(self, at):
        part = Tensor(0.0)
        part.numbers = self.numbers[at, ...]  # with the dots a view, of a single number too
        return part


def rewritten(tensors):
    tensors[1]._version += 1


def scaled_behind_torchs_back(tensors):
    tensors[0].numbers *= 2


def moved(tensors):
    tensors[0].numbers = tensors[0].numbers.copy()


def replaced(tensors):
    tensors[0] = Tensor(tensors[0].numbers)
    tensors[0].numbers = tensors[0].numbers


@pytest.fixture
def tensors():
    return [Tensor(np.arange(12).reshape(3, 4)), Tensor(7.0), Tensor(np.zeros((0, 2))), Tensor([1.0], "cuda")]


def test_the_same_tensors(tensors):
    assert Snapshot(tensors).holds(tensors)
    assert Snapshot([]).holds([])


@pytest.mark.parametrize("change", [rewritten, scaled_behind_torchs_back, moved, replaced])
def test_a_change(tensors, change):
    snapshot = Snapshot(tensors)
    kept = [*tensors]  # so that no address comes twice
    change(tensors)
    assert not snapshot.holds(tensors)
    assert Snapshot(tensors).holds(tensors) and kept


def test_what_is_no_number_is_no_change(tensors):
    tensors[1].numbers = np.array(np.nan, "float32")
    assert Snapshot(tensors).holds(tensors)


def test_numbers_of_a_gpu_are_not_fetched(tensors):
    snapshot = Snapshot(tensors)  # which reads no address of theirs
    tensors[3].numbers *= 2
    assert snapshot.holds(tensors)


def test_two_records_of_the_same_state_are_equal():
    tensors = [Tensor([1.0, 2.0, 3.0]), Tensor([4.0])]
    before = Snapshot(tensors)
    assert before.equals(Snapshot(tensors)) and Snapshot([]).equals(Snapshot([]))
    assert not before.equals(Snapshot(tensors[:1])) and not before.equals(Snapshot([tensors[1], tensors[0]]))
    for change in (rewritten, scaled_behind_torchs_back, moved):
        tensors = [Tensor([1.0, 2.0, 3.0]), Tensor([4.0])]
        before = Snapshot(tensors)
        change(tensors)
        assert not before.equals(Snapshot(tensors)), change.__name__
