# SPDX-License-Identifier: Apache-2.0
"""TextureTrial: whether a kernel can have its textures, its time, and the decisions of PlaceTextures from both."""

import time

import pytest
import tvm_ffi

from half_networks import IMAGE, TOKENS, convolutions, transformer
from helpers import constant, legal, module, nodes, op
from smartmem_tvm import optimize, pass_registry, texture_trial
from smartmem_tvm.ir.graph import graphs, read_log
from smartmem_tvm.ir.kernel import emit
from smartmem_tvm.ir.texels import is_texture
from smartmem_tvm.ir.walk import stores
from smartmem_tvm.pipeline import Options, graph_phases, run_phases
from smartmem_tvm.planner.texture_choice import PlacementTrial, Slower, slower
from smartmem_tvm.target import parse_target
from smartmem_tvm.texture_trial import TextureTrial
from smartmem_tvm.transform import EliminateLayout, FuseOperators
from smartmem_tvm.transform.layout.place_textures.place_textures import SCOPE, PlaceTextures
from smartmem_tvm.tune.profile_store import ProfileStore

ADRENO, MALI = parse_target("adreno-740"), parse_target("mali-g57")


def layers(x):
    return op.matmul(op.nn.relu(op.matmul(x, constant(256, 256))), constant(256, 256))


def prepared():
    return FuseOperators()(EliminateLayout()(legal(layers, (1024, 256))))


def place(mod, target, accepts):
    with target:
        return PlaceTextures(target, accepts)(mod)


def log_of(mod) -> dict:
    return {entry["tensor"]: entry for entry in read_log(mod) if entry["pass"] == "PlaceTextures"}


def modelled(mod, trial) -> float:
    return sum(trial(emit(node.kernel)).modelled for graph in graphs(mod) for node in graph)


def timed(seconds: float, **known) -> PlacementTrial:
    return PlacementTrial(estimate=lambda: seconds, **known)


# -- the comparison ----------------------------------------------------------------------------------------------------


def test_the_sums_decide_and_the_reason_names_the_loser():
    buffer = {"conv": timed(6e-6), "pool": timed(4.3e-6)}
    reason = slower(buffer, {"conv": timed(5e-6), "pool": timed(7.1e-6)})
    assert isinstance(reason, Slower)
    assert reason == "modelled 12.1 us in a texture, 10.3 us in a buffer: pool takes 7.1 us instead of 4.3 us"
    assert slower(buffer, {"conv": timed(5e-6), "pool": timed(4.4e-6)}) is None


def test_no_more_kernels_are_modelled_than_it_takes():
    buffer, slow = {"conv": timed(6e-6), "pool": timed(4.3e-6), "add": timed(1e-6)}, timed(12e-6)
    asked = PlacementTrial(estimate=lambda: pytest.fail("it is asked for"))
    reason = slower(buffer, {"conv": timed(5e-6), "pool": slow, "add": asked})
    assert reason == "modelled at least 17 us in a texture, 11.3 us in a buffer: pool takes 12 us instead of 4.3 us"
    # A known time is not computed again.
    reason = slower({"add": timed(1e-6), **buffer}, {"add": asked, "pool": slow})
    assert reason == "modelled at least 12 us in a texture, 5.3 us in a buffer: pool takes 12 us instead of 4.3 us"


def test_equal_times_stay_in_a_buffer():
    assert slower({"a": timed(1e-6)}, {"a": timed(1e-6)})


def test_measured_beats_modelled_only_if_all_is_measured():
    fast, slow = timed(1e-6, measured=9e-6), timed(2e-6, measured=3e-6)
    assert slower({"a": slow}, {"a": fast}).startswith("measured 9 us in a texture, 3 us in a buffer")
    assert slower({"a": fast}, {"a": slow}) is None
    unknown = timed(2e-6)
    assert slower({"a": slow, "b": unknown}, {"a": fast, "b": unknown}) is None
    assert slower({"a": PlacementTrial()}, {"a": timed(1.0)}) is None


# -- on devices --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [ADRENO, MALI], ids=lambda target: str(target.attrs["model"]))
def test_what_is_chosen_is_no_slower_than_either_extreme(target):
    mod, trial = prepared(), TextureTrial(target)
    chosen = modelled(place(mod, target, trial), trial)
    possible = modelled(place(mod, target, lambda kernel: PlacementTrial(trial(kernel).problem)), trial)
    with target:
        assert chosen <= 1.0001 * min(possible, modelled(mod, trial))


@pytest.mark.parametrize(
    ("target", "precision"),
    [pytest.param(ADRENO, "float32", marks=pytest.mark.device), (ADRENO, "half"), (MALI, "half")],
)
def test_an_order_that_is_chosen_is_no_slower(target, precision):
    """A depthwise convolution before a norm over channels: in the norm's order, its own reads would be strided."""

    def block(x):
        y = op.nn.conv2d(x, constant(96, 1, 7, 7), padding=3, groups=96)
        y = op.nn.layer_norm(op.permute_dims(y, (0, 2, 3, 1)), constant(96), constant(96), axes=[3])
        return op.permute_dims(op.matmul(y, constant(96, 96)), (0, 3, 1, 2))

    mod, trial = module(lambda x: block(block(x)), (1, 96, 28, 28)), TextureTrial(target)
    chosen, kept = (
        modelled(optimize(mod, target, Options(precision=precision, layout=layout)), trial) for layout in (True, False)
    )
    assert chosen <= 1.0001 * kept


def test_kernels_that_were_placed_are_not_tried_again_to_be_ordered(monkeypatch):
    """No trial is kept once the passes have run, as a trial holds the code of all its kernels."""
    tried, one = [], TextureTrial._try
    monkeypatch.setattr(TextureTrial, "_try", lambda self, kernel: tried.append(kernel) or one(self, kernel))

    def build(x):
        y = op.nn.conv2d(x, constant(96, 1, 7, 7), padding=3, groups=96)
        return op.nn.layer_norm(op.permute_dims(y, (0, 2, 3, 1)), constant(96), constant(96), axes=[3])

    optimize(module(build, (1, 96, 28, 28)), ADRENO)
    assert tried and len({tvm_ffi.structural_hash(kernel) for kernel in tried}) == len(tried)
    assert not pass_registry._trials.known


def test_textures_are_faster_on_adreno_and_not_on_mali():
    """On Adreno images reach main memory faster; on Mali buffers have a cache of their own, and the wider path."""
    adreno = log_of(place(prepared(), ADRENO, TextureTrial(ADRENO)))
    mali = log_of(place(prepared(), MALI, TextureTrial(MALI)))
    first = next(iter(adreno))
    assert adreno[first]["memory"] == "texture" and mali[first]["memory"] == "buffer"
    assert mali[first]["reason"].startswith("modelled ") and " us in a buffer: " in mali[first]["reason"]


def test_a_target_that_names_no_device_has_no_times():
    generic = parse_target("qcom/adreno-opencl-texture")
    (writer, _) = nodes(prepared())
    assert TextureTrial(generic)(emit(writer.kernel)) == PlacementTrial()


def test_the_same_every_time():
    first, second = (log_of(place(prepared(), ADRENO, TextureTrial(ADRENO))) for _ in range(2))
    assert first == second
    (writer, _) = nodes(prepared())
    times = {TextureTrial(ADRENO)(emit(writer.kernel)).modelled for _ in range(3)}
    assert len(times) == 1 and 0 < times.pop() < 1


def test_equal_kernels_are_tried_once():
    asked = []
    (writer, reader) = nodes(prepared())
    trial = TextureTrial(ADRENO, times=lambda kernel: asked.append(kernel))
    for _ in range(3):
        trial(emit(writer.kernel))
    assert len(asked) == 1
    trial(emit(reader.kernel))
    assert len(asked) == 2


def test_a_time_is_worked_out_when_it_is_asked_for(monkeypatch):
    """No time is computed where all are measured, or a neighbour cannot have the texture; else once for a kernel."""
    modelled = []
    seconds = "smartmem_tvm.texture_trial.kernel_seconds"
    monkeypatch.setattr(seconds, lambda kernel, *_: modelled.append(kernel) or 1e-6)
    (writer, _) = nodes(prepared())
    trial = TextureTrial(ADRENO)(emit(writer.kernel))
    assert not modelled and trial.problem is None
    assert trial.modelled == trial.modelled == 1e-6 and len(modelled) == 1
    place(prepared(), ADRENO, TextureTrial(ADRENO, times=lambda kernel: 1e-6))
    assert len(modelled) == 1
    trial, tried = TextureTrial(ADRENO), []

    def readers_refuse(kernel):
        tried.append(kernel)
        return PlacementTrial("no") if any(map(is_texture, kernel.params[:-1])) else trial(kernel)

    assert log_of(place(prepared(), ADRENO, readers_refuse)) and tried
    assert len(modelled) == 1


@pytest.mark.parametrize(("build", "shape"), [(convolutions, IMAGE), (transformer, TOKENS)])
def test_what_is_done_on_chip_is_written_only_for_what_is_run(build, shape, monkeypatch):
    """All kernels that placement tries have the same memory accesses with on-chip work and without."""
    phases = [phase for phase in graph_phases(ADRENO) if phase.name not in ("textures", "layout")]
    with ADRENO:
        mod = run_phases(module(build, shape), phases, Options(precision="half"))
    lengths, staged = {}, texture_trial.read_singly
    monkeypatch.setattr(
        texture_trial,
        "read_singly",
        lambda func: lengths.setdefault(trial, []).append(stores(func.body)) or staged(func),
    )
    tried, trials = [], (TextureTrial(ADRENO), TextureTrial(ADRENO, measure=lambda *_: None))

    def both(kernel):
        nonlocal trial
        answers = []
        for trial in trials:
            answers.append(trial(kernel))
        tried.append(answers)
        return answers[0]

    trial = None
    place(mod, ADRENO, both)
    assert len(tried) > 10
    for outline, whole in tried:
        assert outline == whole and outline.modelled == whole.modelled is not None
    outlined, whole = (sum(map(len, lengths[each])) for each in trials)
    assert 3 * outlined < 2 * whole


def test_measured_latencies_decide():
    """Both forms of both kernels are measured: the measurements call the texture slower, unlike the model."""
    forms = []

    def listen(kernel):
        forms.append(kernel)
        return PlacementTrial()

    mod = prepared()
    place(mod, ADRENO, lambda kernel: listen(kernel))
    buffers = [emit(node.kernel) for node in nodes(mod)]
    store = ProfileStore(None, ADRENO, threads=1)
    for kernel in buffers:
        store.add(kernel, 1e-6)
    for kernel in forms:
        assert SCOPE in [param.scope() for param in kernel.params]
        store.add(kernel, 5e-6)
    entry = next(iter(log_of(place(mod, ADRENO, TextureTrial(ADRENO, store.latency))).values()))
    assert entry["memory"] == "buffer"
    assert entry["reason"].startswith("measured 10 us in a texture, 2 us in a buffer: ")


def test_a_trial_takes_less_than_half_a_second():
    kernels = [emit(node.kernel) for node in nodes(prepared())]
    trial = TextureTrial(ADRENO)
    trial(kernels[0])
    start = time.process_time()
    trial(kernels[1])
    assert time.process_time() - start < 0.5
