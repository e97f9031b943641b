# SPDX-License-Identifier: Apache-2.0
"""``smartmem report``: the page in a browser shows what the files say."""

import json
from functools import reduce

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from selenium.webdriver.common.by import By

from browser import browser, console, data_of, figures, open_page, wait_for
from smartmem_tvm.cli import main

# Unit -> what a value is multiplied by to be the number that is shown; the test's own list, not the page's.
SCALES = {"count": 1, "us": 1e6, "ms": 1, "seconds": 1e3, "percent": 100, "times": 1, "error": 1}
NOTHING, TIMES = "\u2013", "\u00d7"
BYTES = {"B": 1, "kB": 1e-3, "MB": 1e-6}
HOSTILE = "</script><img src=x onerror='document.title=1'>"
WINNER = 2e-5  # seconds, of the one tuned kernel
DEVICE = "Phone <b>7</b>"


@pytest.fixture(scope="session")
def model_folder(model_path, tmp_path_factory):
    """The attention model with a sum and a relu at its end, compiled, and as if its first kernel were tuned."""
    model = onnx.load(model_path)
    last = model.graph.output[0]
    model.graph.initializer.append(numpy_helper.from_array(np.ones(8, "float32"), "bias"))
    model.graph.node.append(helper.make_node("Add", [last.name, "bias"], ["sum"], name="sum"))
    model.graph.node.append(helper.make_node("Relu", ["sum"], ["positive"], name="positive"))
    last.name = "positive"
    folder = tmp_path_factory.mktemp("report")
    onnx.save(model, folder / "attention.onnx")
    assert main(["compile", str(folder / "attention.onnx"), "-o", str(folder / "out")]) == 0
    manifest = json.loads((folder / "out" / "manifest.json").read_text())
    kernel = json.loads((folder / "out" / "explain.json").read_text())["kernels"][0]["kernel"]
    gain = {"gain": 2.5, "seconds": WINNER, "strategy": "genetic", "decisions": None}
    manifest["tuning"] |= {"tuned": 1, "gains": {kernel: gain}}
    (folder / "out" / "manifest.json").write_text(json.dumps(manifest))
    return folder / "out"


@pytest.fixture(scope="session")
def logs(model_folder, tmp_path_factory):
    """A measurement on a device with a nasty name, an ablation, and records of tuning: made up, in the real form."""
    folder = tmp_path_factory.mktemp("logs")
    kernels = json.loads((model_folder / "explain.json").read_text())["kernels"]
    times = [
        {"kernel": name, "rule": "r", "launches": number, "seconds": 1e-4 * number}
        for number, name in enumerate(dict.fromkeys(each["kernel"] for each in kernels), start=1)
    ]
    # The first kernel takes eight times its bound, the others twice; what the last may take is not known.
    for number, each in enumerate(times[:-1]):
        share = 0.5 if number else 0.125
        each |= {"bound_seconds": each["seconds"] * share, "of_roofline": share, "bound_by": "memory", "off": None}
    times[0]["off"] = HOSTILE
    measured = {
        "folder": str(model_folder),
        "key": "k",
        "device": {"name": DEVICE, "driver": HOSTILE},
        "latency_ms": {"median": 1.5, "p10": 1.25, "p90": 2.75, "p99": 3.125, "runs": 10},
        "kernels": times,
        "layout_share": 0.0,
        "replays": 5,
        "deterministic": True,
        "layers": [
            {"kernels": [times[0]["kernel"]], "wrong": "output 0"},
            {"kernels": [times[1]["kernel"]], "wrong": ""},
        ],
        "correct": False,
        "outputs": {"y": {"max_rel_err": 2e-6, "ok": True}, "z": {"max_rel_err": 3e-6, "ok": False}},
    }
    systems = {
        "-fuse": {"kernels": 9, "bytes_moved": {"activations": 4e6}, "latency_ms": {"median": 4.0}},
        "smartmem": {"kernels": 4, "bytes_moved": {"activations": 1e6}, "latency_ms": {"median": 2.0, "p90": 2.5}},
    }
    steps = [{"added": None, "system": "-fuse"}, {"added": "fuse", "system": "smartmem"}]
    row = {"model": "attention", "machine": {"cpu": "A CPU"}, "threads": 1, "systems": systems, "ablation": steps}
    run = {"run": "r", "date": "", "command": "", "target": {}, "threads": 1, "tvm": "", "schedules": 1, "device": "D"}
    tried = [
        {"record": f"c{n}", "workload": "w", "run": "r", "seconds": s, "trace": [], "arguments": [["TENSOR", "f", [3]]]}
        for n, s in enumerate(([4e-5], [], [2e-5]))
    ]
    winner = {"winner": "c2", "workload": "w", "run": "r", "seconds": WINNER, "untuned": 5e-5}
    (folder / "phone.json").write_text(json.dumps(measured))
    (folder / "bench.json").write_text(json.dumps({"format": 1, "rows": [row]}))
    lines = [run, {"workload": "w", "module": []}, *tried, winner]
    (folder / "a.records.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    return folder


@pytest.fixture(scope="session")
def chromium():
    with browser() as driver:
        yield driver


@pytest.fixture
def full(smartmem, chromium, model_folder, logs, tmp_path):
    """The page of a model with all there is, opened."""
    path = tmp_path / "report.html"
    outcome = smartmem("report", model_folder, *sorted(logs.iterdir()), "-o", path, "--json")
    assert outcome.code == 0, outcome.err
    open_page(chromium, path)
    return chromium, outcome.data


@pytest.mark.device
def test_it_loads_without_a_word_in_the_console(full):
    driver, _ = full
    assert console(driver) == []
    assert driver.title == "attention · smartmem"
    ids = [each.get_attribute("id") for each in driver.find_elements(By.TAG_NAME, "section")]
    assert ids == ["graph", "kernels", "roofline", "decisions", "tensors", "memory", "tuning", "ablation", "devices"]
    assert driver.find_elements(By.CSS_SELECTOR, "section[data-empty]") == []


@pytest.mark.device
def test_nothing_is_loaded_from_elsewhere(full):
    driver, _ = full
    loaded = driver.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in loaded if not name.startswith("data:")] == []


@pytest.mark.device
def test_every_figure_is_that_of_the_data(full):
    driver, _ = full
    data, shown = data_of(driver), figures(driver)
    parts = {path[2] if path[0] == "models" else path[0] for path, _, _ in shown}
    assert parts == {"facts", "times", "kernels", "tensors", "memory", "curves", "ablations", "devices"}
    for path, unit, text in shown:
        value = reduce(lambda inner, key: inner[key], path, data)
        if value is None:
            assert text == NOTHING, path
            continue
        number, _, suffix = text.rstrip("%" + TIMES).replace(",", "").partition(" ")
        meant = value * (BYTES[suffix] if unit == "bytes" else SCALES[unit])
        bound = abs(meant) * 0.06 if "e" in number else 0.5001 * 10 ** -len(number.partition(".")[2])
        assert abs(float(number) - meant) <= bound, (path, unit, text, value)


@pytest.mark.device
def test_the_data_are_those_of_the_files(full, model_folder, logs):
    driver, printed = full
    data = data_of(driver)
    manifest = json.loads((model_folder / "manifest.json").read_text())
    explanation = json.loads((model_folder / "explain.json").read_text())
    model = data["models"][0]
    assert model["facts"]["kernels"] == manifest["kernels"] == len(model["kernels"]) == printed["models"][0]["kernels"]
    assert model["decisions"] == explanation["decisions"]
    assert [each["views"] for each in model["kernels"]] == [each["views"] for each in explanation["kernels"]]
    assert model["memory"]["planned_bytes"] == sum(each["bytes"] for each in explanation["memory"]["storages"])
    phone = json.loads((logs / "phone.json").read_text())
    seconds = {each["kernel"]: each["seconds"] for each in phone["kernels"]}
    assert {name: each["seconds"] for name, each in model["times"][0]["kernels"].items()} == seconds
    device = next(each for each in data["devices"] if each["device"].startswith(DEVICE))
    assert (device["median"], device["p99"], device["relative_error"]) == (1.5, 3.125, 3e-6)
    assert device["model"] == "attention" and (device["correct"], device["deterministic"]) == (False, True)
    shown = driver.find_element(By.ID, "devices").text
    assert f"WRONG, same in 5 runs, kernels WRONG alone: {phone['kernels'][0]['kernel']}" in shown
    assert f"driver {HOSTILE}" in shown and device["folder"] == model_folder.name
    assert [each["kernels"] for each in data["ablations"][0]["steps"]] == [9, 4]
    assert data["curves"][0]["best"] == [4e-5, 4e-5, 2e-5] and data["curves"][0]["gain"] == 2.5
    assert data["curves"][0]["kernel"] == model["kernels"][0]["kernel"]
    assert model["kernels"][0]["tuned"]["gain"] == 2.5 and model["facts"]["tuned"] == 1


@pytest.mark.device
def test_a_click_on_a_decision_shows_its_reason(full):
    driver, _ = full
    decisions = data_of(driver)["models"][0]["decisions"]
    number, chosen = next((n, each) for n, each in enumerate(decisions) if each.get("reason"))
    section = driver.find_element(By.ID, "decisions")
    assert chosen["reason"] not in section.text
    row = driver.find_element(By.ID, f"decision-{number}")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", row)
    row.click()
    assert chosen["reason"] in section.text
    row.click()
    assert chosen["reason"] not in section.text


@pytest.mark.device
def test_a_click_on_a_tensor_says_why_it_is_where_it_is(full):
    driver, _ = full
    rows = driver.find_elements(By.CSS_SELECTOR, "#tensors tr.click")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", rows[0])
    rows[0].click()
    assert "no pass moved it" in driver.find_element(By.CSS_SELECTOR, "#tensors tr.open .why").text


@pytest.mark.device
@pytest.mark.parametrize("width", [360, 800, 1600])
def test_nothing_is_wider_than_the_window(full, width):
    driver, _ = full
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        wide, inside = driver.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
        bar, window = (driver.execute_script(f"return {what}") for what in ("nav.offsetHeight", "innerHeight"))
        assert inside == width and wide <= width
        assert bar < window / 10  # it stays in sight
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.device
def test_a_dot_for_each_kernel_that_has_a_bound(full, logs):
    """Above the lines in log-log coordinates as far as it is off; a click goes to the kernel."""
    driver, _ = full
    kernels = json.loads((logs / "phone.json").read_text())["kernels"]
    dots = {each.get_attribute("data-kernel"): each for each in driver.find_elements(By.CSS_SELECTOR, "#roofline .dot")}
    assert set(dots) == {each["kernel"] for each in kernels[:-1]} and len(dots) > 1
    tips = {name: dot.find_element(By.TAG_NAME, "title").get_attribute("textContent") for name, dot in dots.items()}
    slow = kernels[0]["kernel"]
    assert f"bound 12.5 µs by memory: 8.00{TIMES}" in tips[slow] and HOSTILE in tips[slow]
    share = kernels[0]["seconds"] / sum(each["seconds"] for each in kernels)
    text = driver.find_element(By.ID, "roofline").text
    assert f"{share:.1%} of the time is in kernels above the dashed line" in text
    lines = "return [...document.querySelectorAll('#roofline line')].filter(e => !e.classList.contains('axis'))"
    ends = driver.execute_script(f"{lines}.map(e => ['x1', 'y1', 'x2', 'y2'].map(k => Number(e.getAttribute(k))))")
    for name, dot in dots.items():
        x, y = (float(dot.get_attribute(key)) for key in ("cx", "cy"))
        once, far = (y1 + (y2 - y1) * (x - x1) / (x2 - x1) for x1, y1, x2, y2 in ends)
        assert y < far < once if name == slow else far < y < once
    driver.execute_script("arguments[0].dispatchEvent(new Event('click'))", dots[slow])
    assert slow in driver.find_element(By.CSS_SELECTOR, "#graph aside").text


@pytest.mark.device
def test_a_small_graph_leaves_no_blank(full):
    driver = full[0]
    driver.set_window_size(1500, 1400)
    driver.find_element(By.CLASS_NAME, "kernel").click()
    size = "return document.querySelector(arguments[0]).getBoundingClientRect().height"
    graph, canvas, answer = (driver.execute_script(size, each) for each in (".graph", ".canvas", "aside"))
    assert canvas <= graph <= canvas + 20  # a scroll bar, if it is too wide
    assert answer <= max(graph, 322)


@pytest.mark.device
def test_eliminated_operators_are_struck_out_beside_the_kernel_that_they_went_into(full):
    driver, _ = full
    model = data_of(driver)["models"][0]
    struck = driver.find_elements(By.CSS_SELECTOR, ".graph .op.eliminated b")
    assert len(struck) == model["facts"]["layout_eliminated"] == 4
    assert all("line-through" in each.value_of_css_property("text-decoration") for each in struck)
    kept = driver.find_elements(By.CSS_SELECTOR, ".graph .op.computed b")
    assert len(kept) == 5 and all("line-through" not in each.value_of_css_property("text-decoration") for each in kept)
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", struck[0])
    struck[0].click()
    text = driver.find_element(By.CSS_SELECTOR, "aside").text
    operator = next(each for each in model["operators"] if each["fate"] == "eliminated")
    assert operator["name"] in text and operator["map"] in text
    assert model["kernels"][operator["into"][0]]["kernel"] in text


@pytest.mark.device
def test_names_are_text_and_never_markup(full):
    driver, _ = full
    assert DEVICE in driver.find_element(By.ID, "devices").text
    assert driver.find_elements(By.TAG_NAME, "img") == []
    assert HOSTILE in json.dumps(data_of(driver))


@pytest.mark.device
def test_what_is_missing_names_the_command_that_brings_it(smartmem, chromium, model_folder, tmp_path):
    assert smartmem("report", model_folder, "-o", tmp_path / "r.html").code == 0
    open_page(chromium, tmp_path / "r.html")
    empty = {each.get_attribute("id"): each.text for each in chromium.find_elements(By.CSS_SELECTOR, "[data-empty]")}
    assert set(empty) == {"kernels", "roofline", "tuning", "ablation", "devices"}
    commands = {"kernels": "measure", "tuning": "tune", "ablation": "bench", "devices": "measure"}
    assert all(f"smartmem {command} " in empty[section] for section, command in commands.items())
    assert console(chromium) == []


@pytest.mark.device
def test_logs_alone_make_a_page(smartmem, chromium, logs, tmp_path):
    assert smartmem("report", logs / "bench.json", "-o", tmp_path / "r.html").code == 0
    open_page(chromium, tmp_path / "r.html")
    assert "smartmem compile" in chromium.find_element(By.ID, "graph").text
    assert "A CPU, 1 thread" in chromium.find_element(By.ID, "devices").text
    assert console(chromium) == []


@pytest.mark.device
@pytest.mark.slow
def test_a_large_network_stays_usable(smartmem, chromium, tmp_path):
    """Swin-T, compiled twice over: a list chooses which one is shown, and its 500 operators are there at once."""
    assert smartmem("compile", "models/swin_t.onnx", "-o", tmp_path / "swin").code == 0
    assert smartmem("report", tmp_path / "swin", tmp_path / "swin", "-o", tmp_path / "r.html").code == 0
    assert (tmp_path / "r.html").stat().st_size < 2e6
    open_page(chromium, tmp_path / "r.html")
    model = data_of(chromium)["models"][1]
    assert model["facts"]["kernels"] == 94 and model["facts"]["layout_eliminated"] == 308
    chromium.execute_script(
        "const s = document.getElementById('model'); s.value = 1; s.dispatchEvent(new Event('change'))"
    )
    wait_for(lambda: any(path[:2] == ["models", 1] for path, _, _ in figures(chromium)))
    assert len(chromium.find_elements(By.CSS_SELECTOR, ".graph .op")) == model["facts"]["operators"]
    assert len(chromium.find_elements(By.CSS_SELECTOR, ".graph .op.eliminated")) == 308
    assert len(chromium.find_elements(By.CSS_SELECTOR, ".graph .kernel")) == 94
    assert console(chromium) == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{", "is no JSON"),
        ("b.json", '{"x": 1}', "none of the results known here"),
        ("c.records.jsonl", "", "has no line of tuning records"),
        ("missing.json", None, "cannot be read"),
    ],
)
def test_files_that_are_nothing_of_ours(smartmem, tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    outcome = smartmem("report", tmp_path / name, "-o", tmp_path / "r.html")
    assert outcome.code == 2 and message in outcome.err and name in outcome.err
    assert not (tmp_path / "r.html").exists()


def test_a_folder_without_a_model(smartmem, tmp_path):
    outcome = smartmem("report", tmp_path, "-o", tmp_path / "r.html")
    assert outcome.code == 2 and "holds no compiled model" in outcome.err


def test_a_page_that_cannot_be_written(smartmem, model_folder, tmp_path):
    outcome = smartmem("report", model_folder, "-o", tmp_path / "none" / "r.html")
    assert outcome.code == 2 and "cannot be written" in outcome.err


def test_no_other_file_becomes_a_page(smartmem, model_folder):
    manifest = model_folder / "manifest.json"
    before = manifest.read_bytes()
    outcome = smartmem("report", model_folder, "-o", manifest)
    assert outcome.code == 2 and "does not end in .html" in outcome.err
    assert manifest.read_bytes() == before
