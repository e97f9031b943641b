# SPDX-License-Identifier: Apache-2.0
"""Measure a compiled model on a device: latency, time of each kernel, and correctness.

Wrong results come from drivers more often than from models, so every result includes the device's name and its driver's
version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..ir.public_functions import MAIN
from ..target import device_kind
from .deployed import Deployed
from .deployed_tiles import DeployedTiles
from .inspect_devices import inspect
from .session import Session

PERCENTILES = (10, 50, 90, 99)
_HANDED_OVER = 20  # inferences whose launches are timed on the host
_EXCESS = 1.1  # factor of the median: clocks and caches vary by as much between a kernel alone and one in an inference


def measure(
    session: Session,
    folder: Path,
    arrays: Sequence[np.ndarray],
    *,
    warm_up: int = 5,
    runs: int = 50,
    replays: int = 5,
    kernels: bool = True,
    function: str | None = MAIN,
) -> tuple[dict, list[np.ndarray]]:
    """Measure a compiled folder on the device of a session.

    Parameters
    ----------
    folder : Path
        A folder of ``smartmem compile``.
    arrays : sequence of numpy.ndarray
        The model's inputs, in its order.
    warm_up, runs : int
        Untimed inferences at first, and timed ones.
    replays : int
        Inferences whose outputs have to be identical bit by bit.
    kernels : bool
        Whether each kernel is also timed by itself.
    function : str or None
        Of a model of several sizes, the function of the one that runs; None for one with an open dimension.

    Returns
    -------
    dict
        ``address``, ``key``, ``device``: facts of the device; ``threads`` of a CPU; ``latency_ms``: ``median``,
        ``p10`` ..., ``runs``; ``deterministic``; ``replays``; for a GPU ``host_ms`` (until a call returns), its
        ``launches`` and ``host_us_per_launch``, otherwise None; with `kernels` ``kernels``: ``kernel``, ``launches``,
        ``seconds`` of all of them, ``share`` of the sum, ``layout`` (it only moves data) of each, the slowest first,
        ``kernels_ms``, their sum, ``kernels_exceed`` (`exceeds`), and ``layout_share``.
    list of numpy.ndarray
        The outputs.
    """
    model = DeployedTiles(session, folder) if function is None else Deployed(session, folder, function)
    outputs = [model.run(arrays) for _ in range(max(1, replays))]
    device = device_facts(session, model)
    facts = {
        "address": session.address,
        "key": session.key,
        "device": device,
        "threads": session.threads() if device["kind"] == "cpu" else None,
        "latency_ms": percentiles(model.seconds(arrays, warm_up, runs)),
        "replays": len(outputs),
        "deterministic": len({_digest(each) for each in outputs}) == 1,
        **host_times(model, arrays, device["kind"]),
    }
    if kernels:
        facts |= shares(model.launched, model.kernel_seconds())
        facts["kernels_ms"] = sum(each["seconds"] for each in facts["kernels"]) * 1e3
        facts["kernels_exceed"] = exceeds(facts["kernels_ms"], facts["latency_ms"])
    return facts, outputs[0]


def host_times(model: Deployed | DeployedTiles, arrays: Sequence[np.ndarray], kind: str) -> dict:
    """Return the time of the host to launch an inference on a GPU; it may exceed the time of the GPU itself."""
    if kind == "cpu":
        return {"host_ms": None, "launches": None, "host_us_per_launch": None}
    seconds = model.host_seconds(arrays, _HANDED_OVER)
    launches = sum(each["launches"] for each in model.launched)
    return {"host_ms": seconds * 1e3, "launches": launches, "host_us_per_launch": seconds * 1e6 / max(1, launches)}


def device_facts(session: Session, model: Deployed | DeployedTiles) -> dict:
    """Return the facts of `devices.inspect` about the model's device and its server."""
    from tvm.target import Target

    kind = device_kind(Target(model.manifest["target"]))
    found = inspect(session)
    device = next((each for each in found["devices"] if each["kind"] == kind), {"kind": kind})
    return {**device, "server": {name: found.get(name) for name in ("tvm", "smartmem", "machine", "system", "cores")}}


def percentiles(seconds: Sequence[float]) -> dict:
    """Return milliseconds: the median and other `PERCENTILES`, minimum, maximum, and the number of runs."""
    named = {f"p{each}": float(np.percentile(seconds, each)) * 1e3 for each in PERCENTILES}
    ends = {"min": min(seconds) * 1e3, "max": max(seconds) * 1e3}
    return {"median": named.pop("p50"), **named, **ends, "runs": len(seconds)}


def shares(launched: Sequence[Mapping], seconds: Mapping[str, float]) -> dict:
    """Return the share of each kernel in the time of an inference.

    Parameters
    ----------
    launched : sequence of mapping
        The result of `deploy.signatures.launched`.
    seconds : mapping
        Seconds of one launch of each kernel.
    """
    times = [{**each, "seconds": each["launches"] * seconds[each["kernel"]]} for each in launched]
    total = sum(each["seconds"] for each in times) or 1.0
    kernels = [
        {**{name: each[name] for name in ("kernel", "launches", "layout", "seconds")}, "share": each["seconds"] / total}
        for each in sorted(times, key=lambda each: -each["seconds"])
    ]
    return {"kernels": kernels, "layout_share": sum(each["share"] for each in kernels if each["layout"])}


def exceeds(kernels_ms: float, latency_ms: Mapping[str, float]) -> bool:
    """Whether the kernels timed singly take longer than the inference itself, by more than its variation."""
    return kernels_ms > max(latency_ms["p90"], _EXCESS * latency_ms["median"])


def _digest(outputs: Sequence[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for each in outputs:
        digest.update(np.ascontiguousarray(each).tobytes())
    return digest.hexdigest()
