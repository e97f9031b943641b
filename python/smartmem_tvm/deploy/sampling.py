# SPDX-License-Identifier: Apache-2.0
"""Choose the next token from the scores of all tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..errors import UserError


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen.

    Attributes
    ----------
    temperature : float
        What scores are divided by before they become probabilities; 0 takes the token with the largest score, of equal
        ones the first.
    top_k : int
        Only the `top_k` tokens with the largest scores are chosen from; 0 for all.
    top_p : float
        Of those, only the most probable ones whose probabilities add up to `top_p`, from above 0 to 1.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self):
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UserError(f"temperature is {self.temperature}, and it must be a number from 0 up: give one.")
        if self.top_k < 0:
            raise UserError(f"top_k is {self.top_k}, and it counts tokens: give a number from 0 (for all) up.")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p is {self.top_p}, and it is a probability: give a number above 0, at most 1.")

    def token(self, scores: np.ndarray, random: np.random.Generator) -> int:
        """Return the number of a token.

        Parameters
        ----------
        scores : np.ndarray
            The logits, one number for each token.
        """
        if self.temperature == 0:
            return int(np.argmax(scores))
        order = np.argsort(-scores.astype("float64"), kind="stable")[: self.top_k or None]
        scaled = scores[order].astype("float64") / self.temperature
        shares = np.exp(scaled - scaled[0])
        shares /= shares.sum()
        # The first tokens that reach the sum, at least one.
        kept = int(np.searchsorted(np.cumsum(shares), self.top_p)) + 1
        shares = shares[:kept] / shares[:kept].sum()
        return int(order[random.choice(len(shares), p=shares)])
