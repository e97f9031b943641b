# SPDX-License-Identifier: Apache-2.0
"""The genetic search: `ask` returns genomes to try, and `tell` takes the time of each.

    search = GeneticSearch(space, seed=1, seeds=[default])
    while genomes := search.ask(16):
        for genome in genomes:
            search.tell(genome, seconds_of(genome))
    genome, seconds = search.best

The population consists of the fastest genomes since the last restart, so the best ones always stay in it. A child has
two parents, each the winner of a tournament, or one parent that is mutated. If no better genome is found for a while,
the search restarts from genomes drawn at random, and the best genomes of earlier populations remain for crossover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .genes import Genome, Value
from .space import Space

Surrogate = Callable[[Sequence[Genome]], Sequence[float]]
_ATTEMPTS = 20  # attempts to breed a new genome, before the space is enumerated in order


@dataclass(frozen=True)
class Failure:
    """The reason why a genome has no time.

    Attributes
    ----------
    reason : str
    candidate : bool
        Whether the genome is at fault, and will not be tried again; otherwise the machine is, and it may be.
    """

    reason: str
    candidate: bool = True


@dataclass(frozen=True)
class Settings:
    """Settings of a search; the defaults suit budgets of some dozens to some thousands of trials.

    Attributes
    ----------
    population : int
        Number of genomes that may become parents.
    first : int
        Genomes drawn at random at the beginning, and after a restart.
    tournament : int
        Size of a tournament, whose fastest genome becomes a parent.
    crossing, guest : float
        Probabilities that a child has two parents, and that the second is a guest.
    mutation : float
        Probability that a gene of a child changes, besides the one that always does.
    pure : float
        Probability that a child of two parents is not mutated.
    patience : int
        Trials without improvement after which the search restarts.
    brood : int
        Number of children among which a surrogate picks one.
    doubt : float
        Share of the children that are chosen without the surrogate.
    """

    population: int = 12
    first: int = 8
    tournament: int = 4
    crossing: float = 0.5
    guest: float = 0.1
    mutation: float = 0.1
    pure: float = 0.3
    patience: int = 60
    brood: int = 16
    doubt: float = 0.15


class GeneticSearch:
    """A genetic search over a space of genomes.

    Parameters
    ----------
    space : Space
    seed : int
        Random seed; the same space, seed and times give the same genomes.
    seeds : iterable of mapping
        Genomes to try first, for instance the choice of a model; they are repaired to the space.
    guests : iterable of mapping
        Genomes of other kernels of the family. Their repaired forms are tried after the seeds, and the originals take
        part in crossover.
    surrogate : callable, optional
        Genomes -> estimated costs, lower for better ones. It ranks a larger brood before any of it is tried. The caller
        trains it.
    settings : Settings, optional

    Raises
    ------
    EmptySpace
        If the space has no genome.
    """

    def __init__(
        self,
        space: Space,
        seed: int,
        *,
        seeds: Iterable[Mapping[str, Value]] = (),
        guests: Iterable[Mapping[str, Value]] = (),
        surrogate: Surrogate | None = None,
        settings: Settings | None = None,
    ):
        self.space, self.surrogate, self.settings = space, surrogate, settings or Settings()
        self._rng = np.random.default_rng(seed)
        self._guests: list[Mapping[str, Value]] = list(guests)
        self._asked: set[Genome] = set()
        self._rest = space.all()  # the rest of the enumeration in order
        self._times: dict[Genome, float] = {}
        self._population: list[Genome] = []
        self._since_better = 0
        wishes = [*seeds, *self._guests]
        self._waiting = list(dict.fromkeys(space.repair(each, self._rng) for each in wishes))
        self._to_draw = max(1, self.settings.first - len(self._waiting))
        self.exhausted = False
        self.restarts = 0

    # -- the interface -----------------------------------------------------------------------------------------------

    @property
    def best(self) -> tuple[Genome, float] | None:
        """The fastest genome and its seconds; None before any was timed."""
        return min(self._times.items(), key=lambda item: item[1], default=None)

    @property
    def trials(self) -> int:
        """Number of genomes returned by `ask`, or known from before."""
        return len(self._asked)

    def ask(self, count: int) -> list[Genome]:
        """Return `count` new genomes to try.

        There are fewer, and `exhausted` is set, if no new genome is left in the space.
        """
        found: list[Genome] = []
        while len(found) < count and (genome := self._planned()) is not None:
            found.append(genome)
        missing = count - len(found)
        trusted = sum(self._rng.random() >= self.settings.doubt for _ in range(missing)) if self.surrogate else 0
        found += self._picked(trusted)
        while len(found) < count and (genome := self._child()) is not None:
            self._asked.add(genome)
            found.append(genome)
        self.exhausted = len(found) < count
        return found

    def tell(self, genome: Genome, outcome: float | Failure) -> None:
        """Report the outcome of a genome that `ask` returned.

        Parameters
        ----------
        outcome : float or Failure
            Seconds, a finite positive number, or a failure.

        Raises
        ------
        ValueError
            If `ask` did not return the genome, or the time is no finite positive number.
        """
        if genome not in self._asked:
            raise ValueError(f"{genome} was not asked for.")
        if isinstance(outcome, Failure):
            if not outcome.candidate:
                self._asked.discard(genome)
                self._waiting.append(genome)
                self.exhausted = False
                return
        elif not (outcome > 0 and np.isfinite(outcome)):
            raise ValueError(f"a time is a positive number of seconds, not {outcome}.")
        else:
            self._take(genome, float(outcome))
            return
        self._note(better=False)

    def know(self, genome: Genome, outcome: float | Failure) -> None:
        """Report an earlier outcome, so that the genome is not tried again; genomes of other spaces are ignored."""
        if self.space.holds(genome) and genome not in self._asked:
            self._asked.add(genome)
            self.tell(genome, outcome)

    # -- the population ----------------------------------------------------------------------------------------------

    def _take(self, genome: Genome, seconds: float) -> None:
        fastest = self._times[self._population[0]] if self._population else np.inf
        self._times[genome] = seconds
        self._population.append(genome)
        self._population.sort(key=self._times.__getitem__)
        del self._population[self.settings.population :]
        self._note(better=seconds < fastest)

    def _note(self, better: bool) -> None:
        self._since_better = 0 if better else self._since_better + 1
        if self._since_better >= self.settings.patience:
            self._restart()

    def _restart(self) -> None:
        """Forget the population; its best becomes a guest."""
        self._guests += self._population[:1]
        self._population.clear()
        self._to_draw = self.settings.first
        self._since_better = 0
        self.restarts += 1

    # -- new genomes -------------------------------------------------------------------------------------------------

    def _planned(self) -> Genome | None:
        """Return the next seed, or a random genome at the beginning of a population, else None."""
        while self._waiting:
            genome = self._waiting.pop(0)
            if genome not in self._asked:
                self._asked.add(genome)
                return genome
        if self._to_draw == 0:
            return None
        self._to_draw -= 1
        genome = self._new(lambda: self.space.random(self._rng))
        if genome is not None:
            self._asked.add(genome)
        return genome

    def _picked(self, count: int) -> list[Genome]:
        """Return the best children of a larger brood, by the surrogate."""
        brood: dict[Genome, None] = {}
        for _ in range(count * self.settings.brood):
            child = self._bred()
            if child not in self._asked:
                brood[child] = None
        if not brood:
            return []
        costs = np.asarray(self.surrogate(list(brood)), dtype=float)
        order = np.argsort(costs, kind="stable")[:count]
        chosen = [list(brood)[i] for i in order]
        self._asked.update(chosen)
        return chosen

    def _child(self) -> Genome | None:
        return self._new(self._bred)

    def _new(self, make: Callable[[], Genome]) -> Genome | None:
        """Return a new genome from `make`, or after some attempts the next new one of the space, else None."""
        for _ in range(_ATTEMPTS):
            genome = make()
            if genome not in self._asked:
                return genome
        return next((genome for genome in self._rest if genome not in self._asked), None)

    def _bred(self) -> Genome:
        rng, settings = self._rng, self.settings
        if not self._population:
            return self.space.random(rng)
        parent = self._winner()
        if rng.random() >= settings.crossing:
            return self.space.mutate(parent, rng, settings.mutation)
        foreign = self._guests and rng.random() < settings.guest
        mate = self._guests[rng.integers(len(self._guests))] if foreign else self._winner()
        child = self.space.cross(parent, mate, rng)
        return child if rng.random() < settings.pure else self.space.mutate(child, rng, settings.mutation)

    def _winner(self) -> Genome:
        """Return the winner of a tournament; the population is sorted by time."""
        places = self._rng.integers(len(self._population), size=self.settings.tournament)
        return self._population[int(places.min())]
