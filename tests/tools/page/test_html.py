# SPDX-License-Identifier: Apache-2.0
"""The page as text: one file, from which no name in the data can break out."""

import json
import re

import pytest

from opencl_package import ROOT
from smartmem_tvm.tools.page.html import SCRIPTS, page

NOTHING = {"models": [], "curves": [], "ablations": [], "devices": []}


def data_in(text: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


@pytest.mark.parametrize("name", ["</script><b>", "<!--", "{{SCRIPT}}", "}}", "\u2028", "a & b", '"\\'])
def test_any_name_stays_a_name(name):
    data = {**NOTHING, "models": [{"name": name}]}
    text, plain = page(data), page({**NOTHING, "models": [{"name": "x"}]})
    assert data_in(text) == data
    assert text.count("<script") == plain.count("<script") == 2 and text.count("</script") == plain.count("</script")
    title = re.search(r"<title>(.*?) ", text, re.DOTALL)[1]
    assert "<" not in title


def test_no_address_of_a_network_but_that_of_svg():
    text = page(NOTHING)
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in text


def test_numbers_that_json_lacks_are_refused():
    with pytest.raises(ValueError, match="JSON"):
        page({**NOTHING, "devices": [float("nan")]})


def test_all_assets_are_installed_and_used():
    assets = {path.name for path in (ROOT / "python/smartmem_tvm/tools/page/assets").iterdir()}
    assert assets == {*SCRIPTS, "page.html", "page.css"}
    assert '"smartmem_tvm.tools.page": ["assets/*"]' in (ROOT / "setup.py").read_text(encoding="utf-8")
