# SPDX-License-Identifier: Apache-2.0
"""Rolling up: what repeats becomes a loop; what differs, or is a result, stays outside of it."""

import pytest
from tvm import tirx

from smartmem_tvm.ir.chain import Chain, Steps, read_chain, stages_of, write_chain
from smartmem_tvm.ir.kernel import Stage
from smartmem_tvm.ir.roll import roll

SIZE = 5


def buffer(name, *shape):
    return tirx.decl_buffer(shape or (SIZE,), "float32", name, layout=None)


def stage(out, value):
    """``out[i] = value(i)``."""
    i = tirx.Var("i", "int64")
    iterator = tirx.IterVar((0, tirx.const(SIZE, "int64")), i, 0)
    return Stage(out.name, (iterator,), tirx.BufferStore(out, value(i), [i]))


def steps(count, x, first, back=1, of=lambda step: step):
    """h[t] = tanh(h[t - back]) + x[of(t)], and what each of them is written to."""
    made = [first] * back
    stages = []
    for step in range(count):
        out, before = buffer(f"h{step}"), made[-back]
        at = of(step)
        stages.append(stage(out, lambda i, b=before, t=at: tirx.tanh(b[i]) + x[tirx.const(t, "int64"), i]))
        made.append(out)
    return stages, made[back:]


def loop_of(items):
    (loop,) = [item for item in items if isinstance(item, Steps)]
    return loop


def test_a_state_that_is_read_a_step_later_has_two_places():
    stages, _ = steps(10, buffer("x", 10, SIZE), buffer("h"))
    items = roll(stages, [])
    loop = loop_of(items)
    assert (loop.first, loop.last, len(list(stages_of(items)))) == (1, 10, 2)
    assert [int(n) for n in loop.stages[0].outputs[0].shape] == [2, SIZE]
    assert "x[step, i]" in str(loop.stages[0].body)


@pytest.mark.parametrize("back", [1, 2, 3])
def test_as_many_places_as_steps_that_are_read_again(back):
    stages, _ = steps(12, buffer("x", 12, SIZE), buffer("h"), back)
    loop = loop_of(roll(stages, []))
    assert loop.first == back and int(loop.stages[0].outputs[0].shape[0]) == back + 1


def test_what_is_read_behind_the_loop_keeps_its_place():
    stages, made = steps(10, buffer("x", 10, SIZE), buffer("h"))
    last, early = made[-1], made[4]
    behind = stage(buffer("y"), lambda i: last[i] * early[i])
    items = roll([*stages, behind], [behind.outputs[0]])
    assert int(loop_of(items).stages[0].outputs[0].shape[0]) == 6
    assert isinstance(items[-1], Stage)


def test_places_that_move_by_more_than_one_and_backwards():
    stages, _ = steps(9, buffer("x", 40, SIZE), buffer("h"), of=lambda step: 30 - 3 * step)
    assert "x[30 - step * 3, i]" in str(loop_of(roll(stages, [])).stages[0].body).replace("T.int64(", "").replace(
        ")", ""
    )


def test_results_are_written_outside():
    stages, made = steps(10, buffer("x", 10, SIZE), buffer("h"))
    items = roll(stages, [made[-1]])
    assert loop_of(items).last == 9 and items[-1].outputs[0].same_as(made[-1])


def test_steps_that_read_uneven_places_are_written_out():
    stages, _ = steps(8, buffer("x", 70, SIZE), buffer("h"), of=lambda step: step * step)
    assert all(isinstance(item, Stage) for item in roll(stages, []))


def test_few_steps_are_written_out():
    stages, _ = steps(4, buffer("x", 10, SIZE), buffer("h"))
    assert len(roll(stages, [])) == 4


def test_a_chain_is_read_as_it_was_written():
    x, h, y = buffer("x", 10, SIZE), buffer("h"), buffer("y")
    stages, made = steps(10, x, h)
    items = roll([*stages, stage(y, lambda i: made[-1][i] + made[0][i])], [y])
    chain = Chain((x, h), (y,), tuple(items))
    again = read_chain(write_chain(chain))
    assert [b.name for b in again.inputs] == ["x", "h"] and [b.name for b in again.outputs] == ["y"]
    assert [type(item) for item in again.items] == [type(item) for item in chain.items]
    assert len(again.own) == len(chain.own) == 1
    assert read_chain(tirx.PrimFunc([], tirx.Evaluate(tirx.const(0, "int32")))) is None
