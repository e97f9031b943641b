# SPDX-License-Identifier: Apache-2.0
"""Write one self-contained HTML file: the data as JSON, and the style and scripts that show it."""

from __future__ import annotations

import html
import json
from importlib import resources

from ...json_data import as_written
from .device_times import ablations, comparison, kernel_times, machine_codes, winner_names
from .network import network
from .read_sources import Sources
from .search_curves import curves

SCRIPTS = ("core.js", "graph.js", "sections.js", "charts.js", "roofline.js", "page.js")


def report_data(sources: Sources) -> dict:
    """Return the page's data as plain data for JSON.

    Returns
    -------
    dict
        ``models``: see `page.network.network`, each with ``times`` and ``machine_codes`` of its kernels. ``curves``,
        ``ablations``, ``devices``: see `page.search_curves` and `page.device_times`.
    """
    with as_written("One of the files of the report", "make it again"):
        models = [network(*each) for each in sources.models]
        for each in models:
            each["times"] = kernel_times(sources.measurements, each)
            each["machine_codes"] = machine_codes(sources.measurements, each)
        return {
            "models": models,
            "curves": curves(sources.records, winner_names(sources.models)),
            "ablations": ablations(sources.rows),
            "devices": comparison(sources.measurements, sources.rows, models),
        }


def page(data: dict) -> str:
    """Return the page as text; it loads nothing from elsewhere."""
    names = ", ".join(each["name"] for each in data["models"])
    scripts = "\n".join(_asset(name) for name in SCRIPTS)
    # Escaped, so that no name in the data can end the element that holds it.
    content = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = {"TITLE": html.escape(names or "report"), "STYLE": _asset("page.css"), "DATA": content, "SCRIPT": scripts}
    text = _asset("page.html")
    before, *rest = text.split("{{")
    # One pass over the marks, so that inserted text is not searched for marks.
    return before + "".join(parts[mark] + after for mark, after in (each.split("}}", 1) for each in rest))


def _asset(name: str) -> str:
    text = resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if "SPDX-License-Identifier" not in line)
