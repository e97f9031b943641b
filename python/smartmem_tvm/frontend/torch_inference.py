# SPDX-License-Identifier: Apache-2.0
"""Check that a torch program is a function of its inputs: no training mode, no random numbers, no writes.

torch's exporter and TVM's importer translate other programs silently into something else: dropout into nothing, the
statistics of the batch into those kept from training, and writes into a buffer are lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from smartmem_tvm.errors import UserError

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.export.graph_signature import ExportGraphSignature
    from torch.fx import Node

_RANDOM = "nondeterministic_seeded"  # torch.Tag
_TRAINING = ("training", "train", "use_input_stats")
_CHANCE = ("p", "dropout", "dropout_p")


def check_inference(program: ExportedProgram, name: str) -> None:
    """Refuse a program in training mode, or with random numbers.

    Raises
    ------
    UserError
        Names the first operator of that kind.
    """
    for node in _nodes(program):
        if moves_statistics(node) or (draws(node) and _has_mode(node)):
            what = "moves its statistics" if moves_statistics(node) else "draws random numbers"
            raise UserError(
                f"{name} is in training mode, where '{node.name}' ({node.target}) {what}; call model.eval() before "
                f"torch.export.export."
            )
        if draws(node):
            raise UserError(
                f"{name} draws random numbers ('{node.name}', {node.target}), and a compiled model returns the same "
                f"for the same inputs; draw them outside of it, and make them an input."
            )


def check_writes(signature: ExportGraphSignature, name: str) -> None:
    """Refuse a program that writes into its buffers or inputs; `signature` is that after decompositions.

    Raises
    ------
    UserError
        Names the first buffer or input that is written.
    """
    for spec in signature.output_specs:
        if spec.kind.name == "USER_INPUT_MUTATION":
            raise UserError(
                f"{name} writes into its input '{spec.target}', and a compiled model leaves its inputs as they are; "
                f"write into a copy of it (clone()), and return that."
            )
        if spec.kind.name.endswith("_MUTATION"):
            raise UserError(
                f"{name} writes into its own tensor '{spec.target}', and a compiled model keeps nothing from one call "
                f"to the next; make it an input and an output of the model, or call model.eval() if training writes it."
            )


def draws(node: Node) -> bool:
    """Whether an operator draws random numbers that are read; dropout and attention do so in training only."""
    if all(tag.name != _RANDOM for tag in getattr(node.target, "tags", ())):
        return False
    if not node.users and not node.target._schema.is_mutable:
        return False  # layers that are skipped at random in training: torch keeps the draw, which no operator reads
    given = _arguments(node)
    is_training = all(given.get(key, True) is not False for key in _TRAINING)
    return is_training and all(given.get(key) != 0 for key in _CHANCE)


def moves_statistics(node: Node) -> bool:
    """Whether a norm computes the statistics of its input and updates its running ones."""
    given = _arguments(node)
    return given.get("running_mean") is not None and any(given.get(key) for key in _TRAINING)


def _has_mode(node: Node) -> bool:
    """Whether ``model.eval()`` may switch the random numbers off."""
    return not {*_TRAINING, *_CHANCE[1:]}.isdisjoint(_arguments(node))


def _nodes(program: ExportedProgram) -> Iterator[Node]:
    for module in program.graph_module.modules():  # also the branches of a condition and bodies of loops
        yield from module.graph.nodes


def _arguments(node: Node) -> dict[str, Any]:
    """Return the arguments of a torch operator by name, defaults included; {} for other nodes."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {}
    known = {each.name: each.default_value for each in schema.arguments if each.has_default_value()}
    return {**known, **{each.name: value for each, value in zip(schema.arguments, node.args)}, **node.kwargs}
