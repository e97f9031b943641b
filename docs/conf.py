# SPDX-License-Identifier: Apache-2.0
"""The site of `make docs`: the pages as they are, with a table of contents, search, and the API from docstrings.

Sphinx reads from the root of the repository, so that links between docs/, README.md and benchmarks/ hold on
GitHub and on the site alike.
"""

import os
import runpy
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
FACTS = runpy.run_path(str(ROOT / "python" / "smartmem_tvm" / "_version.py"))
NAV = {
    "Start": "../README commands options python shapes decoding api limits",
    "Targets": "cpu gpu opencl adreno mali android runner remote",
    "How it works": "design glossary passes fusion frontend torch_compile layouts layout_plans textures precision "
    "quantization quantization_integers",
    "Memory and speed": "tuning explain roofline throughput memory_plan memory_budget memory_accesses compile_time",
    "Results and checks": "figures ../benchmarks/README audit wild accuracy report checking testing "
    "../benchmarks/random_graphs tvm-issues",
    "Development": "../CONTRIBUTING micro_kernels house ../CHANGELOG "
    "../native/README ../models/README ../tuning_logs/README",
}
"""Section -> its pages, those that there are; a page of docs/ that is in none gets into `REST`."""
REST = "More"

project = "smartmem_tvm"
copyright = "the authors of smartmem_tvm, Apache-2.0"
version = release = FACTS["__version__"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc"]

root_doc = "docs/index"
include_patterns = ["docs/**", "*.md", "*/README.md", "benchmarks/*.md"]
exclude_patterns = [".*", "build", "dist", "python", "tests", "scripts"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # rendered tables have headings of the third level on pages without second ones

default_role = "py:obj"  # names in docstrings link to what the page has of them
autodoc_member_order = "groupwise"
autodoc_typehints = "none"  # they stand in the docstrings
numpydoc_show_class_members = False

html_theme = "furo"
html_title = f"smartmem_tvm {version}"
html_extra_path = ["site"]
html_copy_source = False


def sections() -> dict[str, list[str]]:
    """The table of contents, with the pages that there are."""

    def exists(page: str) -> bool:
        return any((DOCS / f"{page}{suffix}").exists() for suffix in source_suffix)

    known = {page for pages in NAV.values() for page in pages.split()}
    rest = [path.stem for path in sorted(DOCS.iterdir()) if path.suffix in source_suffix and path.stem not in known]
    found = {title: [page for page in pages.split() if exists(page)] for title, pages in NAV.items()}
    return {**found, REST: [page for page in rest if page != "index"]}


def add_contents(app, docname: str, source: list[str]) -> None:
    """Give the first page its table of contents; in the file it would show as code on GitHub."""
    if docname == root_doc:
        for title, pages in sections().items():
            if pages:
                source[0] += "\n".join(["", "```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```", ""])


def add_options(app, docname: str, source: list[str]) -> None:
    """Give the page of options what each command prints."""
    if docname == "docs/options":
        from smartmem_tvm.cli import COMMANDS, build_parser

        os.environ["COLUMNS"] = "100"
        (commands,) = (each for each in build_parser()._actions if isinstance(each.choices, dict))
        for module in COMMANDS:
            source[0] += f"\n## {module.NAME}\n\n```text\n{commands.choices[module.NAME].format_help()}```\n"


def setup(app) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_contents)
    app.connect("source-read", add_options)
