# SPDX-License-Identifier: Apache-2.0
"""Links of all pages work on GitHub and on the site; the site and its first page have every page of docs/."""

import re
import runpy

import pytest

from doc_blocks import PAGES, ROOT, name_of

DOCS = ROOT / "docs"
CONF = runpy.run_path(str(DOCS / "conf.py"))
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def headings(text: str) -> set[str]:
    """Return the anchors of a page, as GitHub and MyST make them from its headings."""
    plain = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", plain, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", _CODE.sub("", page.read_text("utf-8")))
    for link in (each for each in links if "://" not in each):
        file, _, anchor = link.partition("#")
        there = page.parent / file if file else page
        assert there.exists(), link
        assert not anchor or anchor in headings(there.read_text("utf-8")), link


def test_the_site_has_every_page_once():
    listed = [page for pages in CONF["sections"]().values() for page in pages]
    assert len(set(listed)) == len(listed)
    expected = {path.stem for path in DOCS.iterdir() if path.suffix in (".md", ".rst")} - {"index"}
    assert {page for page in listed if not page.startswith("../")} == expected


def test_the_first_page_leads_to_every_page():
    text = (DOCS / "index.md").read_text("utf-8")
    expected = {path.name for path in DOCS.iterdir() if path.suffix in (".md", ".rst")} - {"index.md"}
    assert expected - set(re.findall(r"\]\(([\w.-]+)", text)) == set()


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) < 120
