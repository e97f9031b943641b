# SPDX-License-Identifier: Apache-2.0
"""Where the threads of a launch go in memory: index expressions, worked out for many threads and iterations at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, prod

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, tirx

from ..ir.index_map import NotAnIndex, evaluator, flat_index
from ..ir.walk import loads
from ..planner.texture_form import TEXEL
from ..tables.targets import Row
from .access_pattern import Access, Launch, Loop, Unmodelled

_WIDEST = 16  # bytes that one instruction of a thread loads
_ALIGNMENT = 4096
# Scope of a texture -> the dimension that is the image's height: those before it are layers, those behind it the width.
_HEIGHT = {"global.texture": -3, "global.texture-weight": 0, "global.texture-nhwc": 1}


Reader = Callable[[dict], np.ndarray]
"""From values of variables, broadcastable, to those of an expression."""


@dataclass(frozen=True, eq=False)
class Site:
    """An access with its place in memory.

    Attributes
    ----------
    access : Access
    loops : tuple of Loop
        Those that are run one iteration after the other.
    lanes : tuple of Loop
        Vectorized ones around elements that lie next to each other.
    item : int
        Bytes of an element, or of a texel.
    width : int
        Elements that lie next to each other.
    base : int
        First byte of the tensor, or first sector of the image.
    """

    access: Access
    loops: tuple[Loop, ...]
    lanes: tuple[Loop, ...]
    item: int
    width: int
    base: int

    @property
    def instances(self) -> int:
        """How often one thread does it."""
        return prod(loop.extent for loop in self.loops)

    @property
    def tensor_bytes(self) -> int:
        """The size of the tensor."""
        buffer = self.access.buffer
        return prod(int(n) for n in buffer.shape) * tvm.DataType(buffer.dtype).itemsize

    @property
    def requests(self) -> int:
        """Instructions for one instance: loads of up to 16 bytes."""
        return 1 if self.access.texture else ceil(self.width * self.item / _WIDEST)

    def times(self, instances: np.ndarray) -> np.ndarray:
        """When each instance happens, in accesses of the thread before it."""
        steps = [loop.step for loop in self.loops]
        digits = _digits(instances, [loop.extent for loop in self.loops])
        return self.access.time + sum((d * s for d, s in zip(digits, steps)), np.zeros(len(instances), np.int64))

    def first_after(self, time: int) -> int:
        """The first instance that happens at `time` or later: they are in order."""
        low, high = 0, self.instances
        while low < high:
            middle = (low + high) // 2
            if self.times(np.array([middle]))[0] < time:
                low = middle + 1
            else:
                high = middle
        return low


class Grid:
    """The threads of a launch, and the memory that they share.

    Parameters
    ----------
    launch : Launch
    row : Row
        The device.
    bases : dict
        Tensor -> first byte, filled in here; the same for all launches of a kernel.
    """

    def __init__(self, launch: Launch, row: Row, bases: dict):
        self.launch, self.row = launch, row
        axes = {tag: launch.axes.get(tag, 1) for tag in launch.axes}
        self.group_axes = [tag for tag in sorted(axes, reverse=True) if not tag.startswith("threadIdx")]
        self.thread_axes = [tag for tag in sorted(axes, reverse=True) if tag.startswith("threadIdx")]
        self.groups = prod(axes[tag] for tag in self.group_axes)
        self.threads = prod(axes[tag] for tag in self.thread_axes)
        self.waves = ceil(self.threads / row.sub_group)
        loops = {loop for access in launch.accesses for loop in access.loops}
        variables = [*launch.tags, *(loop.var for loop in loops)]
        self.variables = {hash(var): var for var in variables}
        self.starts = {loop.var: _reader(loop.start, self.variables) for loop in loops}
        self._read: dict[Access, tuple[list, list]] = {}
        self.sites = [self._site(access, bases) for access in launch.accesses]

    def lines(self, site: Site, groups: np.ndarray, instances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What the cache is asked for: the distinct lines (or sectors) of each instruction of a sub-group of threads.

        Returns
        -------
        (groups, instances, waves, k) array of int
            Numbers of lines, each once for an instruction, and -1 for nothing.
        (groups, instances) array of int
            Instructions of single threads.
        """
        row = self.row
        place, happens = self._places(site, groups, instances)
        spans = place[None] if site.access.texture else _sectors(place, site.width * site.item, row.sector_bytes)
        count = happens.sum(2) * site.requests
        spans = np.where(happens, spans, -1)
        padded = np.full((*spans.shape[:3], self.waves * row.sub_group), -1, np.int64)
        padded[..., : self.threads] = spans
        shape = (len(spans), len(groups), len(instances), self.waves, row.sub_group)
        lines = np.moveaxis(padded.reshape(shape), 0, 3).reshape(*shape[1:4], len(spans) * row.sub_group)
        lines = np.sort(lines, axis=-1)
        lines[..., 1:][lines[..., 1:] == lines[..., :-1]] = -1
        return lines, count

    def _places(self, site: Site, groups: np.ndarray, instances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First byte (of an image: line) of each access as (groups, instances, threads), and whether it happens."""
        values = self._values(site, groups, instances)
        shape = (len(groups), len(instances), self.threads)
        indices, guards = self._readers(site.access)
        at, happens = [index(values) for index in indices], np.ones((), bool)
        for condition, expected in guards:
            happens = happens & (np.asarray(condition(values), bool) == expected)
        place = self._texture_line(site, at) if site.access.texture else self._byte(site, at)
        return np.broadcast_to(place, shape), np.broadcast_to(happens, shape)

    def _readers(self, access: Access) -> tuple[list[Reader], list[tuple[Reader, bool]]]:
        """Where an access goes, by dimension, and under which conditions; of an image without the number in a texel."""
        if access not in self._read:
            indices = access.indices[:-1] if access.texture else access.indices
            # What depends on data may happen.
            guards = [(condition, expected) for condition, expected in access.guards if not loads(condition)]
            self._read[access] = (
                [_reader(index, self.variables) for index in indices],
                [(_reader(condition, self.variables), expected) for condition, expected in guards],
            )
        return self._read[access]

    def _byte(self, site: Site, at: list[np.ndarray]) -> np.ndarray:
        return site.base + site.item * _row_major(at, [int(n) for n in site.access.buffer.shape])

    def _texture_line(self, site: Site, at: list[np.ndarray]) -> np.ndarray:
        shape = [int(n) for n in site.access.buffer.shape][:-1]
        height = _HEIGHT[site.access.buffer.scope()] % (len(shape) + 1)
        layer, y, x = (_row_major(at[part], shape[part]) for part in _image(height))
        rows, columns = shape[height], prod(shape[height + 1 :])
        high = self.row.texture_rows
        # Smaller texels share a line with more of their neighbours in the row.
        wide = max(1, self.row.sector_bytes // (high * site.item))
        across, down = ceil(columns / wide), ceil(rows / high)
        return site.base + (layer * down + y // high) * across + x // wide

    def _values(self, site: Site, groups: np.ndarray, instances: np.ndarray) -> dict:
        launch = self.launch
        threads = np.arange(self.threads)
        by_tag = dict(zip(self.group_axes, _digits(groups[:, None, None], self._extents(self.group_axes))))
        by_tag |= dict(zip(self.thread_axes, _digits(threads[None, None, :], self._extents(self.thread_axes))))
        values = {var: by_tag[tag] for var, tag in launch.tags.items()}
        values |= {var: start(values) for var, start in self.starts.items()}
        for loop, digit in zip(site.loops, _digits(instances[None, :, None], [each.extent for each in site.loops])):
            values[loop.var] = values[loop.var] + digit
        return values

    def _extents(self, tags: Sequence[str]) -> list[int]:
        return [self.launch.axes[tag] for tag in tags]

    def _site(self, access: Access, bases: dict) -> Site:
        item = tvm.DataType(access.buffer.dtype).itemsize
        size = prod(int(n) for n in access.buffer.shape) * item
        if access.buffer not in bases:
            bases[access.buffer] = bases.get(None, 0)
            bases[None] = bases[access.buffer] + ceil(size / _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT
        base = bases[access.buffer]
        if access.texture:
            lanes = tuple(loop for loop in access.loops if loop.kind == tirx.ForKind.VECTORIZED)
            rest = tuple(loop for loop in access.loops if loop not in lanes)
            return Site(access, rest, lanes, item * TEXEL, 1, base // self.row.sector_bytes)
        return self._vector(Site(access, access.loops, (), item, 1, base))

    def _vector(self, site: Site) -> Site:
        """The site with its vectorized loop taken as one instruction, if its elements lie next to each other."""
        if not site.loops or site.loops[-1].kind != tirx.ForKind.VECTORIZED or site.loops[-1].scalar:
            return site
        *rest, lane = site.loops
        two = np.array([0, 1])
        place, _ = self._places(site, np.arange(min(2, self.groups)), two)
        if lane.extent > 1 and not (place[:, 1] - place[:, 0] == site.item).all():
            return site
        return Site(site.access, tuple(rest), (lane,), site.item, lane.extent, site.base)


def _image(height: int) -> tuple[slice, slice, slice]:
    return slice(0, height), slice(height, height + 1), slice(height + 1, None)


def _row_major(at: Sequence[np.ndarray], shape: Sequence[int]) -> np.ndarray:
    flat = np.zeros((), np.int64)
    for index, extent in zip(at, shape):
        flat = flat * extent + index
    return flat


def _sectors(place: np.ndarray, size: int, sector: int) -> np.ndarray:
    """The sectors that `size` bytes from `place` on touch, along a new first axis; the last ones may come twice."""
    if (place % sector + size <= sector).all():  # one each: they are aligned, as most are
        return (place // sector)[None]
    count = 1 + ceil((size - 1) / sector)
    last = (place + size - 1) // sector
    return np.minimum(place // sector + np.arange(count)[:, None, None, None], last)


def _digits(flat: np.ndarray, extents: Sequence[int]) -> list[np.ndarray]:
    digits = []
    for extent in reversed(extents):
        digits.append(flat % extent)
        flat = flat // extent
    return digits[::-1]


def _reader(expr, known: dict) -> Reader:
    """The value of an index; where it is read from memory (a gather) any element is as likely as another."""
    try:
        plain = evaluator(expr, known)
    except NotAnIndex:
        return lambda values: _gathered(expr, known, values)

    def value(values: dict) -> np.ndarray:
        try:
            return plain(values)
        except NotAnIndex:
            return _gathered(expr, known, values)

    return value


def _gathered(expr, known: dict, values: dict) -> np.ndarray:
    loaded: dict = {}

    def as_variable(load: ir.TensorLoad):
        var = tirx.Var("loaded", load.ty)
        loaded[var] = load
        return var

    plain = tvm_ffi.structural_map(expr, (ir.TensorLoad, as_variable))
    try:
        anything = {var: _anything(load, known, values) for var, load in loaded.items()}
        return evaluator(plain, known)(values | anything)
    except NotAnIndex as error:
        raise Unmodelled(f"an index is no integer arithmetic: {error}") from error


def _anything(load: ir.TensorLoad, known: dict, values: dict) -> np.ndarray:
    shape = [int(n) for n in load.source.shape]
    where = np.asarray(_reader(flat_index(load.indices, shape), known)(values), np.int64)
    return (where * 2654435761 >> 7) % prod(shape)
