# SPDX-License-Identifier: Apache-2.0
"""What the pages of results are made with: where they stand, tables, figures, and the conditions of a measurement."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smartmem_tvm.tools.bench.columns import geometric_mean, latency
from smartmem_tvm.tools.bench.results import failures, read, write
from smartmem_tvm.whole_file import whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PACKAGES = ("apache-tvm", "onnxruntime")


@dataclass(frozen=True)
class Part:
    """A page, or what stands in it between ``<!-- MARK -->`` and ``<!-- /MARK -->``.

    Attributes
    ----------
    page : str
        Below the root of the repository.
    mark : str
        Empty for the whole page.
    make : callable
        Makes the text from the committed results.
    """

    page: str
    mark: str
    make: Callable[[], str]

    @property
    def path(self) -> Path:
        """Where the page is."""
        return ROOT / self.page

    def rendered(self) -> str:
        """The whole page with this part made anew."""
        if not self.mark:
            return self.make()
        begin, end = f"<!-- {self.mark} -->\n", f"<!-- /{self.mark} -->"
        before, _, rest = self.path.read_text(encoding="utf-8").partition(begin)
        return f"{before}{begin}{self.make()}\n{end}{rest.partition(end)[2]}"

    def write(self) -> None:
        """Make it anew in its file."""
        write(self.path, self.rendered())


def content(name: str) -> Any:
    """A result file of this folder."""
    return json.loads((HERE / name).read_text(encoding="utf-8"))


def rows(name: str) -> list[dict]:
    """The rows of a result file of ``smartmem bench``."""
    return list(read(HERE / name).values())


def table(titles: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """A table of a page."""
    cells = [titles, ["---"] * len(titles), *lines]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in cells)


def figure(value: float | None, form: str = "{:.2f}x") -> str:
    """A figure, by itself how many times; a dash where there is none."""
    return "-" if value is None else form.format(value)


def facts(row: Mapping, system: str) -> dict:
    """What is known of a system of a row."""
    return row["systems"].get(system, {})


def milliseconds(row: Mapping, system: str) -> float | None:
    """The median latency of a system of a row."""
    return latency(facts(row, system))


def mean_of_known(values: Iterable[float | None], form: str) -> str:
    """The geometric mean of the values that there are; `form` takes it and their number."""
    known = [value for value in values if value]
    return form.format(geometric_mean(known), len(known)) if known else ""


def threads(count: int | str) -> str:
    """A number of threads."""
    return f"{count} thread{'s' * (int(count) != 1)}"


def host(machine: Mapping) -> str:
    """CPU, cores and operating system."""
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['os']}"


def versions(machine: Mapping, names: Iterable[str] = PACKAGES) -> str:
    """The versions of packages."""
    return ", ".join(f"{name} {machine[name]}" for name in names)


def dates(measured: Iterable[Mapping]) -> str:
    """The days of measurements, in order."""
    return ", ".join(sorted({each["date"] for each in measured}))


def not_measured(measured: Iterable[Mapping], more: Iterable[str] = ()) -> list[str]:
    """A paragraph of what failed; none if nothing did."""
    lines = [f"{row['name']}: {sentence}" for row in measured for sentence in failures(row)]
    lines = [f"- {line}" for line in (*lines, *more)]
    return ["Not measured:\n\n" + "\n".join(lines)] if lines else []


def places(measured: Iterable[Mapping], describe: Callable[[Mapping], str]) -> dict[str, list[str]]:
    """What `describe` says of rows -> the names of those of which it says the same."""
    found: dict[str, list[str]] = {}
    for row in measured:
        found.setdefault(describe(row), []).append(row["name"])
    return found


def chart(size: tuple[float, float], salt: str) -> Figure:
    """An empty picture; with the same figures in it, its file is the same, too."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = salt
    return Figure(figsize=size, layout="constrained")


def save(picture: Figure, path: Path) -> None:
    """Write a picture."""
    with whole(path) as partial:
        picture.savefig(partial, metadata={"Date": None})
