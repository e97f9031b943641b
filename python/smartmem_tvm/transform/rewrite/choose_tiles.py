# SPDX-License-Identifier: Apache-2.0
"""ChooseTiles: of a model with an open batch, the functions of those tiles that the target gains by."""

from __future__ import annotations

import json

import tvm

from ...analysis.item_cost import cost, tile_items
from ...analysis.items import ItemWork
from ...ir.several_sizes import TILE, size_functions, tile_of


@tvm.transform.module_pass(opt_level=0, name="smartmem.ChooseTiles")
class ChooseTiles:
    """Leave out the tiles that gain nothing on the target, and note the predicted time of the others.

    Before::

        main_0: 1 image; main_1: 2 images; main_2: 3 images; ...; main_11: 64 images

    After, of a convolutional network on a CPU, where one image keeps all cores busy::

        main_0: 1 image

    The front end knows no target, and makes a function for each tile. On a CPU a larger tile reads weights less often;
    on a GPU it also has more work for a launch (`analysis.item_cost`). Functions of positions, and modules without an
    open batch, stay as they are. Refused is nothing.

    Parameters
    ----------
    target : tvm.target.Target, optional
        The target, a CPU by default.
    """

    def __init__(self, target: tvm.target.Target | None = None):
        self.target = target

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Apply to the functions of the tiles of `mod`."""
        facts = {name: tile_of(mod[name]) for name in size_functions(mod)}
        facts = {name: each for name, each in facts.items() if each is not None and "work" in each}
        new = mod.clone() if facts else mod
        for name, each in facts.items():
            gvar, work = mod.get_global_var(name), ItemWork.of(each.pop("work"))
            if each["items"] not in tile_items(work, each["most"], self.target):
                del new[gvar]
                continue
            facts_then = {**each, "cost": cost(work, each["items"], self.target)}
            new.update_func(gvar, mod[name].with_attr(TILE, json.dumps(facts_then)))
        return new
