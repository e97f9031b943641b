# SPDX-License-Identifier: Apache-2.0
"""The search: asked for genomes to try, told how long each took.

    search = GeneticSearch(space, seed=1, seeds=[default])
    while genomes := search.ask(16):
        for genome in genomes:
            search.tell(genome, seconds_of(genome))
    genome, seconds = search.best

The population is the fastest genomes since the last restart, so the best ones always stay in it. A child has two
parents, each the winner of a tournament, or one that is only mutated. When nothing better was found for a while, the
search starts again from genomes drawn at random, and what the generations before knew is left to cross with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .genes import Genome, Value
from .space import Space

Surrogate = Callable[[Sequence[Genome]], Sequence[float]]
_ATTEMPTS = 20  # to breed a genome that was not asked yet, before the space is gone through in order


@dataclass(frozen=True)
class Failure:
    """Why there is no time for a genome.

    Attributes
    ----------
    reason : str
    candidate : bool
        The genome is to blame and will not be asked again; otherwise the machine is, and it may be.
    """

    reason: str
    candidate: bool = True


@dataclass(frozen=True)
class Settings:
    """Of a search; the numbers suit budgets of some dozens to some thousands of trials.

    Attributes
    ----------
    population : int
        Genomes that may become parents.
    first : int
        Genomes drawn at random at the beginning, and after a restart.
    tournament : int
        Genomes of which the fastest becomes a parent.
    crossing, guest : float
        Chances that a child has two parents, and that the second is a guest.
    mutation : float
        Chance that a gene of a child changes beyond the one that always does.
    pure : float
        Chance that a child of two parents is not mutated.
    patience : int
        Trials without a better one after which the search restarts.
    brood : int
        Children among which a surrogate picks one.
    doubt : float
        Share of the children that the surrogate has no say in.
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
        The same space, seed and answers give the same questions.
    seeds : iterable of mapping
        What is asked first, for instance what a model would choose; repaired to the space.
    guests : iterable of mapping
        Genomes of other kernels of the family, asked after the seeds once repaired, and crossed with as they are.
    surrogate : callable, optional
        Estimated costs of genomes, lower for better ones; it ranks a larger brood before any of it is asked. Whoever
        brings it also trains it.
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
        self._rest = space.all()  # what was not gone through in order yet
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
        """Genomes asked."""
        return len(self._asked)

    def ask(self, count: int) -> list[Genome]:
        """Up to `count` genomes to try, none of them asked before.

        Fewer, and `exhausted` is set, if the whole space has been asked.
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
        """Say what came of a genome that was asked.

        Parameters
        ----------
        outcome : float or Failure
            Seconds, a finite positive number.

        Raises
        ------
        ValueError
            If the genome was not asked, or the time is none.
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
        """Say what is known of a genome from before: it will not be asked. Genomes of other spaces are passed over."""
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

    # -- questions ---------------------------------------------------------------------------------------------------

    def _planned(self) -> Genome | None:
        """The next seed, or one of those drawn at the beginning of a population."""
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
        """The most promising of a larger brood."""
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
        """A genome not asked before, made if that succeeds soon, else the next one of the space; None: all were."""
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
        """The fastest of some of the population, which is kept in order."""
        places = self._rng.integers(len(self._population), size=self.settings.tournament)
        return self._population[int(places.min())]
