# SPDX-License-Identifier: Apache-2.0
"""The places in memory that the threads of a launch access, evaluated for many threads and iterations at once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil, prod

import numpy as np
import tvm
from tvm import tirx

from ..ir.walk import loads
from ..planner.texture_form import TEXEL
from ..tables.targets import Row
from .access_pattern import Access, Launch, Loop, Unmodelled
from .index_values import Indices, NoIndex, Values

_WIDEST = 16  # bytes that one instruction of a thread loads
_ALIGNMENT = 4096
# Scope of a texture -> the dimension that is the image's height; dimensions before it are layers, those after it width.
_HEIGHT = {"global.texture": -3, "global.texture-weight": 0, "global.texture-nhwc": 1}


@dataclass(frozen=True, eq=False)
class Tensor:
    """A buffer with its shape, the bytes of an element, and its first byte in memory."""

    buffer: tirx.Var
    shape: tuple[int, ...]
    item: int
    base: int

    @property
    def size(self) -> int:
        """Size in bytes."""
        return prod(self.shape) * self.item


@dataclass(frozen=True, eq=False)
class Site:
    """An access with its place in memory.

    Attributes
    ----------
    access : Access
    loops : tuple of Loop
        The loops that run one iteration after the other.
    lanes : tuple of Loop
        The vectorized loops over contiguous elements.
    item : int
        Bytes of an element, or of a texel.
    width : int
        Number of contiguous elements.
    place : int
        Number (in `Indices`) of the expression of the first byte, or of the line of an image.
    happens : int
        Number of the condition under which the access happens.
    tensor : Tensor
    """

    access: Access
    loops: tuple[Loop, ...]
    lanes: tuple[Loop, ...]
    item: int
    width: int
    place: int
    happens: int
    tensor: Tensor

    @property
    def instances(self) -> int:
        """Number of times that one thread makes the access."""
        return prod(loop.extent for loop in self.loops)

    @property
    def requests(self) -> int:
        """Instructions for one instance: loads of up to 16 bytes."""
        return 1 if self.access.texture else ceil(self.width * self.item / _WIDEST)

    @property
    def extents(self) -> tuple[int, ...]:
        """Extents of the loops."""
        return tuple(loop.extent for loop in self.loops)

    def times(self, instances: np.ndarray) -> np.ndarray:
        """Return the time of each instance, in accesses of the thread before it."""
        steps = [loop.step for loop in self.loops]
        return self.access.time + sum((d * s for d, s in zip(_digits(instances, self.extents), steps)), 0 * instances)

    def first_after(self, time: int) -> int:
        """Return the first instance at `time` or later; instances are in time order."""
        return bisect_left(range(self.instances), time, key=self.times)


@dataclass(frozen=True, eq=False)
class Sample:
    """Numbers of thread blocks and of instances of a site, ascending."""

    groups: np.ndarray
    instances: np.ndarray


class Grid:
    """The threads of a launch, and the memory that they share.

    Parameters
    ----------
    launch : Launch
    row : Row
        The device.
    tensors : dict
        Hash of a buffer -> the tensor; the constructor adds to it, and all launches of a kernel share it.
    """

    def __init__(self, launch: Launch, row: Row, tensors: dict[int, Tensor]):
        self.launch, self.row = launch, row
        axes = {tag: launch.axes.get(tag, 1) for tag in launch.axes}
        self.group_axes = [tag for tag in sorted(axes, reverse=True) if not tag.startswith("threadIdx")]
        self.thread_axes = [tag for tag in sorted(axes, reverse=True) if tag.startswith("threadIdx")]
        self.groups = prod(axes[tag] for tag in self.group_axes)
        self.threads = prod(axes[tag] for tag in self.thread_axes)
        self.waves = ceil(self.threads / row.sub_group)
        threads = np.arange(self.threads)[None, None, :]
        self.by_thread = dict(zip(self.thread_axes, _digits(threads, self._extents(self.thread_axes))))
        starts = {loop.var: loop.start for access in launch.accesses for loop in access.loops}
        self.indices = Indices([*launch.tags, *starts])
        self.tags = list(launch.tags.values())
        guards = {hash(condition): condition for access in launch.accesses for condition, _ in access.guards}
        # A condition that depends on data is assumed to hold.
        self.conditions = {address for address, condition in guards.items() if not loads(condition)}
        with _unmodelled():
            self.starts = {var: self.indices.number(start) for var, start in starts.items()}
            sites = [self._site(access, _tensor(access.buffer, tensors)) for access in launch.accesses]
        found = {site.access: site for alike in together(sites, _is_vector) for site in self._vectors(alike)}
        self.sites = [found[access] for access in launch.accesses]

    def lines(self, sites: Sequence[Site], samples: Sequence[Sample]) -> tuple[np.ndarray, np.ndarray]:
        """Return the requests to the cache: the distinct lines (or sectors) of each instruction of a sub-group.

        Parameters
        ----------
        sites : sequence of Site
            Similar sites (`together`).
        samples : sequence of Sample
            One sample for each site, all of one size; equal samples should be the same object.

        Returns
        -------
        (sites, groups, instances, waves, k) array of int
            Numbers of lines, each once per instruction, padded with -1.
        (sites, groups, instances) array of int
            Instructions of single threads.
        """
        row, first = self.row, sites[0]
        place, happens = self._places(sites, samples)
        spans = place[None] if first.access.texture else _sectors(place, first.width * first.item, row.sector_bytes)
        count = happens.sum(3) * first.requests
        spans = np.where(happens, spans, -1)
        missing = self.waves * row.sub_group - self.threads
        if missing:
            spans = np.concatenate([spans, np.full((*spans.shape[:4], missing), -1)], axis=4)
        shape = (*spans.shape[:4], self.waves, row.sub_group)
        lines = np.moveaxis(spans.reshape(shape), 0, 4).reshape(*shape[1:5], len(spans) * row.sub_group)
        lines.sort(axis=-1)
        lines[..., 1:][lines[..., 1:] == lines[..., :-1]] = -1
        return lines, count

    def _places(self, sites: Sequence[Site], samples: Sequence[Sample]) -> tuple[np.ndarray, np.ndarray]:
        """Return the first byte (line, for an image) of each access, and whether it happens.

        Both arrays are over sites, thread blocks, instances and threads.
        """
        first = samples[0]
        shared = self._values(sites, first) if all(sample is first for sample in samples) else None
        shape = (len(sites), len(first.groups), len(first.instances), self.threads)
        place, happens = np.empty(shape, np.int64), np.empty(shape, bool)
        for number, (site, sample) in enumerate(zip(sites, samples, strict=True)):
            values = shared or self._values([site], sample)
            place[number], happens[number] = values[site.place], values[site.happens]
        return place, happens

    def _values(self, sites: Sequence[Site], sample: Sample) -> Values:
        groups, instances = sample.groups, sample.instances
        by_tag = dict(zip(self.group_axes, _digits(groups[:, None, None], self._extents(self.group_axes))))
        by_tag |= self.by_thread
        values = Values(self.indices, {number: by_tag[tag] for number, tag in enumerate(self.tags)})
        at = _digits(instances[None, :, None], sites[0].extents)
        digits = {loop.var: digit for site in sites for loop, digit in zip(site.loops, at)}
        for number, (var, start) in enumerate(self.starts.items(), start=len(self.tags)):
            values.known[number] = values[start] + digits.get(var, 0)
        return values

    def _extents(self, tags: Sequence[str]) -> list[int]:
        return [self.launch.axes[tag] for tag in tags]

    def _site(self, access: Access, tensor: Tensor) -> Site:
        indices, item, texture = self.indices, tensor.item, access.texture
        happens = indices.constant(1)
        for condition, wanted in access.guards:
            if hash(condition) in self.conditions:
                number = indices.number(condition)
                number = number if wanted else indices.part(np.logical_not, number)
                happens = indices.part(np.logical_and, happens, number)
        at = [indices.number(index) for index in (access.indices[:-1] if texture else access.indices)]
        if texture:
            lanes = tuple(loop for loop in access.loops if loop.kind == tirx.ForKind.VECTORIZED)
            rest = tuple(loop for loop in access.loops if loop not in lanes)
            return Site(access, rest, lanes, item * TEXEL, 1, self._texture_line(tensor, at), happens, tensor)
        place = self._sum(self._product(indices.row_major(at, tensor.shape), item), indices.constant(tensor.base))
        return Site(access, access.loops, (), item, 1, place, happens, tensor)

    def _texture_line(self, tensor: Tensor, at: list[int]) -> int:
        shape = tensor.shape[:-1]
        height = _HEIGHT[tensor.buffer.scope()] % (len(shape) + 1)
        layer, y, x = (self.indices.row_major(at[part], shape[part]) for part in _image(height))
        rows, columns = shape[height], prod(shape[height + 1 :])
        high = self.row.texture_rows
        # The smaller the texels, the more of a row share a line.
        wide = max(1, self.row.sector_bytes // (high * tensor.item * TEXEL))
        across, down = ceil(columns / wide), ceil(rows / high)
        line = self._sum(self._product(layer, down), self._part(y, high))
        line = self._sum(self._product(line, across), self._part(x, wide))
        return self._sum(line, self.indices.constant(tensor.base // self.row.sector_bytes))

    def _sum(self, a: int, b: int) -> int:
        return self.indices.part(np.add, a, b)

    def _product(self, a: int, factor: int) -> int:
        return self.indices.part(np.multiply, a, self.indices.constant(factor))

    def _part(self, a: int, divisor: int) -> int:
        return self.indices.part(np.floor_divide, a, self.indices.constant(divisor))

    def _vectors(self, sites: list[Site]) -> list[Site]:
        """Return similar sites with a vectorized loop over contiguous elements turned into one instruction."""
        if not _is_vector(sites[0]):
            return sites
        item, (*_, lanes) = sites[0].item, sites[0].extents
        two = Sample(np.arange(min(2, self.groups)), np.array([0, 1]))
        place, _ = self._places(sites, [two] * len(sites))
        near = (place[:, :, 1] - place[:, :, 0] == item).all((1, 2)) | (lanes == 1)
        return [
            replace(site, loops=site.loops[:-1], lanes=site.loops[-1:], width=lanes) if whole else site
            for site, whole in zip(sites, near, strict=True)
        ]


def _tensor(buffer: tirx.Var, tensors: dict[int, Tensor]) -> Tensor:
    """Return the tensor of a buffer; a new one is placed in memory after the known ones."""
    if hash(buffer) not in tensors:
        *_, last = tensors.values() or (None,)
        base = 0 if last is None else last.base + ceil(last.size / _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT
        shape = tuple(int(n) for n in buffer.shape)
        tensors[hash(buffer)] = Tensor(buffer, shape, tvm.DataType(buffer.dtype).itemsize, base)
    return tensors[hash(buffer)]


def _is_vector(site: Site) -> bool:
    """Whether the innermost loop around an access to a buffer runs over the lanes of a vector."""
    lane = site.loops[-1] if site.loops and not site.access.texture else None
    return lane is not None and lane.kind == tirx.ForKind.VECTORIZED and not lane.scalar


def together(sites: Iterable[Site], when: Callable[[Site], Hashable]) -> list[list[Site]]:
    """Group similar sites: of the same size, in loops of the same extents, and with equal `when`.

    A loop that several sites of a group share has the same depth in all of them.
    """
    found: dict[tuple, list] = {}
    for site in sites:
        places = {loop: number for number, loop in enumerate(site.loops)}
        lists = found.setdefault((site.extents, site.access.texture, site.width, site.item, when(site)), [])
        for at, alike in lists:
            if all(at.get(loop, number) == number for loop, number in places.items()):
                at.update(places)
                alike.append(site)
                break
        else:
            lists.append((places, [site]))
    return [alike for lists in found.values() for _, alike in lists]


@contextmanager
def _unmodelled() -> Iterator[None]:
    try:
        yield
    except NoIndex as error:
        raise Unmodelled(str(error)) from error


def _image(height: int) -> tuple[slice, slice, slice]:
    return slice(0, height), slice(height, height + 1), slice(height + 1, None)


def _sectors(place: np.ndarray, size: int, sector: int) -> np.ndarray:
    """Return the sectors of `size` bytes from `place` on, along a new first axis; the last one may repeat."""
    if (place % sector + size <= sector).all():  # one sector each: most accesses are aligned
        return (place // sector)[None]
    count = 1 + ceil((size - 1) / sector)
    last = (place + size - 1) // sector
    return np.minimum(place // sector + np.arange(count)[:, None, None, None, None], last)


def _digits(flat: np.ndarray, extents: Sequence[int]) -> list[np.ndarray]:
    digits = []
    for extent in reversed(extents):
        digits.append(flat % extent)
        flat = flat // extent
    return digits[::-1]
