# SPDX-License-Identifier: Apache-2.0
"""What came of many cases: a table of verdicts, causes of faults, and what is refused most."""

from __future__ import annotations

from collections import Counter, defaultdict

from rich.console import Console
from rich.table import Table

from . import check

_CAUSES = 20


class Report:
    """Counts verdicts."""

    def __init__(self):
        self.kinds: Counter[str] = Counter()
        self.causes: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.undrawn: Counter[str] = Counter()
        self.noise: Counter[str] = Counter()
        self.seconds = self.loose = 0.0
        self.nodes = 0

    def add(self, seed: int, verdict: dict) -> None:
        """One more."""
        self.kinds[verdict["kind"]] += 1
        self.seconds += verdict["seconds"]
        self.loose += verdict["loose"]
        self.nodes += verdict["nodes"]
        self.undrawn.update(verdict.get("drawn", {}))
        if verdict["noise"].strip():
            self.noise[check.general(verdict["noise"])[:100]] += 1
        if verdict["kind"] != check.OK:
            self.causes[verdict["kind"]][verdict["cause"]].append(seed)

    @property
    def total(self) -> int:
        """How many verdicts."""
        return sum(self.kinds.values())

    @property
    def faults(self) -> int:
        """How many of them are faults."""
        return sum(self.kinds[kind] for kind in check.FAULTS)

    def line(self) -> str:
        """All of it in one line."""
        counts = ", ".join(f"{count} {kind}" for kind, count in self.kinds.most_common())
        return f"{self.total} graphs: {counts}"

    def show(self, console: Console) -> None:
        """All of it."""
        for kind, causes in self.causes.items():
            self._show_causes(console, kind, causes)
        if self.noise:
            console.print("printed on the way: " + "; ".join(f"{n}x {what}" for what, n in self.noise.most_common(5)))
        console.print("not drawn, by operator: " + ", ".join(f"{op} {n}" for op, n in self.undrawn.most_common(12)))
        per = max(self.total, 1)
        console.print(
            f"{self.line()}; {self.nodes / per:.1f} nodes and {self.seconds / per:.2f} s each, "
            f"{self.loose / per:.2%} of the numbers too loose to judge"
        )

    @staticmethod
    def _show_causes(console: Console, kind: str, causes: dict[str, list[int]]) -> None:
        table = Table("graphs", "seeds", "cause", title=f"{kind}: {len(causes)} causes", title_justify="left")
        for cause, seeds in sorted(causes.items(), key=lambda item: -len(item[1]))[:_CAUSES]:
            table.add_row(str(len(seeds)), " ".join(map(str, sorted(seeds)[:3])), cause)
        console.print(table, markup=False)
