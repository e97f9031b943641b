# SPDX-License-Identifier: Apache-2.0
"""Plan of a chain of rows (attention): the order of work of a thread block, and the results that stay on chip.

    product, element-wise work and statistics on its rows;  product, ...;  product, its epilogue

Between products each thread works on its own part of a row, in registers. Shared memory holds the results of a product
that element-wise work reads, the operand of the next product, and numbers per row that are read after the next product.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tvm import ir

from ....analysis.row_chain import RowChain
from ....ir.half import FLOAT, HALF, RANGES
from ....ir.kernel import Opaque, Stage
from ....ir.texels import is_texture
from ....ir.walk import loads
from ...core.expressions import uses
from ...core.reduction import combiner_of
from .chain_tile import ChainShape, KeptVector, ProductShape
from .points import ChainPoints


@dataclass(frozen=True, eq=False)
class ChainPart:
    """A product, and the stages that follow it row by row, or the one stage that is its epilogue (`finish`)."""

    product: Stage
    stages: tuple[Stage, ...]
    finish: Stage | None = None


class ChainPlan(ChainPoints):
    """The parts of a chain, and the places of its intermediate results.

    Raises
    ------
    Opaque
        If a stage reads an intermediate result in another order than it is written, or the first stage is no product.
    """

    def __init__(self, chain: RowChain):
        super().__init__(chain)
        self._check()
        self.parts = self._parts()
        self._part_of = {}
        for number, part in enumerate(self.parts):
            for stage in (part.product, *part.stages, *([part.finish] if part.finish is not None else [])):
                self._part_of[stage] = number
        self.slots: list[KeptVector] = []
        self.slot_of: dict[Stage, int] = {}
        for stage in chain.kernel.stages:
            self._keep(stage)

    # -- the form of the chain ---------------------------------------------------------------------------------------

    def _check(self) -> None:
        chain = self.chain
        stages = chain.kernel.stages
        if stages[0] not in chain.products:
            raise Opaque("the chain begins with no product")
        last = stages[-1]
        if is_texture(last.body.buffer) and not uses(last.body.indices[-1], self.columns(last)[-1:]):
            raise Opaque("the texels of the result do not lie along its rows")
        for stage in stages:
            stored = RANGES if stage is last else (HALF,)
            if str(stage.body.buffer.ty.dtype) not in (FLOAT, *stored):
                raise Opaque(f"stage {stage.name} does not compute in {FLOAT} or {HALF}")
            if stage.reduction and combiner_of(stage) is None:
                raise Opaque(f"stage {stage.name} is no sum, maximum or minimum")
            if stage.reduction and stage not in chain.products and chain.inner(stage):
                raise Opaque(f"stage {stage.name} has several statistics per row")
            for load in stage.loads:
                maker = self.makers.get(load.source)
                if maker in (None, stage) or not chain.inner(maker):
                    continue
                if self.axes(maker, chain.inner(maker)) != self.axes(stage, self.along(stage)):
                    raise Opaque(f"stage {stage.name} reads a part of a row")
        types = {str(side.ty.dtype) for product in chain.products.values() for side in (product.left, product.right)}
        sums = {str(stage.body.buffer.ty.dtype) for stage in chain.products}
        if types not in ({FLOAT}, {HALF}) or sums != {FLOAT}:
            found = " and ".join(sorted(types | sums))
            raise Opaque(f"its products and their sums are of {found}, not products of one type with sums of {FLOAT}")

    @cached_property
    def dtype(self) -> str:
        """The type that the products multiply, which is also the type of rows on chip."""
        return str(next(iter(self.chain.products.values())).right.ty.dtype)

    def _parts(self) -> tuple[ChainPart, ...]:
        runs: list[list[Stage]] = []
        for stage in self.chain.kernel.stages:
            if stage in self.chain.products:
                runs.append([])
            runs[-1].append(stage)
        parts = [ChainPart(run[0], tuple(run[1:])) for run in runs]
        last = parts[-1]
        if len(last.stages) == 1 and self._finishes(last.stages[0], last.product):
            parts[-1] = ChainPart(last.product, (), last.stages[0])
        return tuple(parts)

    def _finishes(self, stage: Stage, product: Stage) -> bool:
        axes = [self.axes(s, self.columns(s)) for s in (stage, product)]
        return not stage.reduction and axes[0] == axes[1]

    # -- places of results -------------------------------------------------------------------------------------------

    def is_vector(self, stage: Stage) -> bool:
        """Whether a stage makes more than one number per row."""
        return bool(self.chain.inner(stage))

    def leaves(self, stage: Stage) -> bool:
        """Whether the result of a stage is the result of the kernel."""
        return stage is self.chain.kernel.stages[-1]

    def is_read_later(self, stage: Stage) -> bool:
        """Whether a later part, or the epilogue of a product, reads the result of a stage."""
        number = self._part_of[stage]
        return any(self._part_of[s] > number or s is self.parts[number].finish for s in self._readers(stage))

    def _readers(self, stage: Stage) -> list[Stage]:
        others = [s for s in self.chain.kernel.stages if s is not stage]
        return [s for s in others if any(load.source.same_as(stage.body.buffer) for load in s.loads)]

    def direct(self, stage: Stage) -> Stage | None:
        """Return the stage whose unchanged result is the left operand of a product, or None."""
        left = self.chain.products[stage].left
        maker = self.makers.get(left.source) if isinstance(left, ir.TensorLoad) else None
        return maker if maker is not None and self.is_vector(maker) and maker not in self.chain.products else None

    def _keep(self, stage: Stage) -> None:
        """Give the result of a stage a slot on chip: that of a vector without later readers, if there is one."""
        number = self._part_of[stage]
        is_product = stage in self.chain.products
        finished = is_product and self.parts[number].finish is not None
        if not self.is_vector(stage) or self.leaves(stage) or finished:
            return
        if not is_product and not self.is_read_later(stage):
            return
        length = 1
        for var in self.columns(stage):
            length *= stage.extents[var]
        written = (number,) if is_product else ()
        read = tuple(self._part_of[s] for s in self._readers(stage) if s in self.chain.products)
        for slot, vector in enumerate(self.slots):
            users = [s for s, used in self.slot_of.items() if used == slot]
            free = all(self._part_of[r] <= number for s in users for r in self._readers(s)) and not is_product
            if free and vector.length == length:
                self.slots[slot] = KeptVector(length, vector.written + written, vector.read + read)
                self.slot_of[stage] = slot
                return
        self.slot_of[stage] = len(self.slots)
        self.slots.append(KeptVector(length, written, read))

    @cached_property
    def shape(self) -> ChainShape:
        """The sizes of the chain."""
        products = []
        for part in self.parts:
            columns = self.chain.width(part.product)
            matrix = loads(self.chain.products[part.product].right)
            gathered = any(loads(index) for load in matrix for index in load.indices)
            arranged = self.direct(part.product) is None
            products.append(ProductShape(columns, self.length(part.product), arranged, gathered))
        worked = [s for part in self.parts for s in part.stages]
        return ChainShape(
            self.chain.batch_count,
            self.chain.row_count,
            tuple(products),
            tuple(self.slots),
            sum(bool(s.reduction) for s in worked),
            max((self.length(s) for s in worked), default=1),
        )

    def inputs_of(self, expr) -> list:
        """Return the loads of kernel inputs in an expression."""
        return [load for load in loads(expr) if load.source not in self.makers]
