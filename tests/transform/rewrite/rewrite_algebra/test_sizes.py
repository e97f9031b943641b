# SPDX-License-Identifier: Apache-2.0
"""Sizes that are known only at run time: what makes them known stays where a block is rewritten."""

import numpy as np
import tvm
from tvm import relax
from tvm.script import from_source

from smartmem_tvm.ir.walk import collect
from smartmem_tvm.pipeline import Options, phases_of, run_phases
from smartmem_tvm.transform import RewriteAlgebra

# A part of `x`, as long as a tensor says; beside it something that has a cheaper form.
MODULE = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((4, 3), "float32"), sizes: R.Tensor((2,), "int64"), y: R.Tensor((2, 5), "float32")):
        n = T.int64()
        with R.dataflow():
            shape = R.tensor_to_shape(sizes)
            known = R.match_cast(shape, R.Shape([n, 3]))
            nothing = R.null_value()
            part = R.memory.view(x, R.shape([n, 3]), nothing, R.tuple())
            square = R.multiply(y, y)
            out = (part, square)
            R.output(out)
        return out
"""


def test_a_cast_of_a_shape_stays():
    mod = relax.transform.DecomposeOpsForInference()(from_source(MODULE))
    new = RewriteAlgebra()(mod)
    assert "square" in new["main"].script() and "multiply" not in new["main"].script()
    assert len(collect(new, relax.MatchCast)) == len(collect(mod, relax.MatchCast)) > 0


def test_the_sizes_are_right():
    target = tvm.target.Target("llvm")
    with target:
        lowered = run_phases(from_source(MODULE), phases_of(None), Options())
    main = relax.VirtualMachine(relax.build(lowered, target, relax_pipeline=None), tvm.cpu())["main"]
    x, y = np.arange(12, dtype="float32").reshape(4, 3), np.arange(10, dtype="float32").reshape(2, 5)
    part, square = main(*map(tvm.runtime.tensor, (x, np.array([2, 3]), y)))
    np.testing.assert_array_equal(part.numpy(), x[:2])
    np.testing.assert_array_equal(square.numpy(), y * y)
