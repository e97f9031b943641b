# SPDX-License-Identifier: Apache-2.0
"""The networks of audit.py, a table in audit_networks.json: a network a line, in each family the small ones first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from smartmem_tvm.errors import UserError
from smartmem_tvm.json_data import fits, read

TABLE = Path(__file__).resolve().parent / "audit_networks.json"
PACKAGES = ("timm", "torchvision", "transformers", "diffusers", "ultralytics")
_SHAPE = {"name": str, "family": str, "package": PACKAGES.__contains__, "make": str, "inputs": dict}
_SHAPE |= {"settings?": dict, "outputs?": [str], "method?": str, "scale?": str}
_INPUT = re.compile(r"(?:(int64|float32) )?(\d+(?:x\d+)*)(?: < (\d+))?")


@dataclass(frozen=True)
class Input:
    """What a network is called with: random numbers, whole ones below `limit`."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    limit: int = 2


@dataclass(frozen=True)
class Network:
    """A line of the table.

    Attributes
    ----------
    name, family, package : str
        For people; the package makes it.
    make : str
        What the package calls it: a model's name, or its class.
    inputs : dict
        Name -> `Input`, in order.
    settings : dict
        Of the constructor of timm's and torchvision's, of the configuration of others.
    outputs : tuple of str
        Which results, where they have names; all tensors without.
    method : str
        The part that is called, as ``decode``; the network itself without.
    scale : str
        How it differs from the published one; empty if it does not.
    """

    name: str
    family: str
    package: str
    make: str
    inputs: dict[str, Input]
    settings: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    method: str = ""
    scale: str = ""


def networks(path: Path = TABLE) -> dict[str, Network]:
    """The table: name -> network, one of each family after the other.

    Raises
    ------
    UserError
        If it is no such table, or names a network twice.
    """
    try:
        lines = read(path)
    except (OSError, ValueError) as error:
        raise UserError(f"The table of networks {path} cannot be read ({error}); give a JSON list.") from error
    if not fits(lines, [_SHAPE]):
        raise UserError(f"{path} is no list of networks; each has {', '.join(_SHAPE)} (? where it may be missing).")
    families: dict[str, list[Network]] = {}
    for line in lines:
        families.setdefault(line["family"], []).append(_network(line))
    found = [network for network in chain(*zip_longest(*families.values())) if network is not None]
    named = {network.name: network for network in found}
    if len(named) < len(found):
        twice = next(name for name in named if [network.name for network in found].count(name) > 1)
        raise UserError(f"{path} has two networks {twice}; give each a name of its own.")
    return named


def _network(line: dict) -> Network:
    inputs = {name: _input(line["name"], text) for name, text in line["inputs"].items()}
    return Network(**{**line, "inputs": inputs, "outputs": tuple(line.get("outputs", ()))})


def _input(network: str, text: object) -> Input:
    found = _INPUT.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise UserError(f"Input '{text}' of {network} is none; write 1x3x224x224 or int64 1x128 < 1000.")
    dtype, shape, limit = found.groups()
    return Input(tuple(map(int, shape.split("x"))), dtype or "float32", int(limit or 2))


def chosen(known: dict[str, Network], names: Iterable[str], families: Iterable[str]) -> list[Network]:
    """Networks by name in that order, then by family; all of them if neither is given.

    Raises
    ------
    UserError
        If there is no such network or family.
    """
    names, families = list(names), list(families)
    of_table = sorted({network.family for network in known.values()})
    for kind, wanted, there in (("network", names, list(known)), ("family", families, of_table)):
        if missing := [each for each in wanted if each not in there]:
            raise UserError(f"The audit has no {kind} '{missing[0]}'; it has {', '.join(there)}.")
    if not names and not families:
        return list(known.values())
    of_family = [each for each in known.values() if each.family in families and each.name not in names]
    return [*(known[name] for name in names), *of_family]
