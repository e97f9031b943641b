// SPDX-License-Identifier: Apache-2.0
"use strict";
// What all sections use: elements, figures, tables. Names from the data only ever become text, never markup.

const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== ""));
  return element;
}
const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const tip = (text) => s("title", {}, text);

// A unit: what the value is multiplied by, how many decimals are shown, and what stands behind them.
const UNITS = {
  count: [1, 0, ""], us: [1e6, 1, " µs"], ms: [1, 2, " ms"], seconds: [1e3, 2, " ms"],
  percent: [100, 1, "%"], times: [1, 2, "×"], error: [1, -1, ""],
};
const SIZES = [[1e9, 2, " GB"], [1e6, 2, " MB"], [1e3, 1, " kB"], [1, 0, " B"]];

function shown(value, unit) {
  if (value === null || value === undefined) return "–";
  const size = SIZES.find(([least]) => value >= least) || SIZES[3];
  const [scale, decimals, suffix] = unit === "bytes" ? [1 / size[0], size[1], size[2]] : UNITS[unit];
  const number = value * scale;
  if (decimals < 0) return number === 0 ? "0" : number.toExponential(1);
  return number.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }) + suffix;
}

// A figure that knows where in the data it is from, so that a test can compare what is shown with what was meant.
function figure(path, unit) {
  let value = DATA;
  for (const key of path) value = value === null || value === undefined ? null : value[key];
  return h("span", { "data-path": JSON.stringify(path), "data-unit": unit }, shown(value, unit));
}

const shape = (dims) => (dims.length ? dims.join("×") : "scalar");
const plural = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;
const chip = (kind, text) => h("span", { class: `chip ${kind}` }, text || kind);

// What stands between two grave accents is something to type.
const prose = (text) => text.split("`").map((part, at) => (at % 2 ? h("code", {}, part) : part));
const wide = (picture) => h("div", { class: "wide" }, picture);

function section(id, title, lead, empty, ...content) {
  const body = empty ? [h("p", { class: "none" }, prose(empty))] : [lead ? h("p", { class: "lead" }, lead) : null, ...content];
  const element = h("section", { id, "data-empty": empty ? "yes" : null }, h("h2", {}, title), ...body);
  element.title_ = title;
  return element;
}

// A table whose rows are {cells, keys (to sort by), text (to search in), open (what a click shows), id, title (a tip)}.
function table(columns, rows, options) {
  const settings = Object.assign({ search: false, height: null }, options);
  const body = h("tbody");
  let order = rows.slice();
  let sorted = null;
  const counter = h("span", { class: "about" });

  function draw(words) {
    const wanted = (words || "").toLowerCase();
    const some = order.filter((row) => !wanted || (row.text || "").toLowerCase().includes(wanted));
    body.replaceChildren(...some.map(line));
    counter.textContent = some.length === rows.length ? `${rows.length}` : `${some.length} of ${rows.length}`;
  }
  function line(row) {
    const cells = row.cells.map((cell, at) => h("td", { class: columns[at].kind || null }, cell));
    if (!row.open) return h("tr", { id: row.id, title: row.title }, cells);
    const tr = h("tr", { class: "click", id: row.id, tabindex: 0 }, cells);
    let shownRow = null;
    const toggle = () => {
      if (shownRow) { shownRow.remove(); shownRow = null; tr.classList.remove("open"); return; }
      shownRow = h("tr", { class: "open" }, h("td", { colspan: columns.length }, row.open()));
      tr.classList.add("open");
      tr.after(shownRow);
    };
    tr.addEventListener("click", toggle);
    tr.addEventListener("keydown", (event) => { if (event.key === "Enter") toggle(); });
    return tr;
  }
  const input = h("input", { type: "search", placeholder: "find", oninput: () => draw(input.value) });
  const head = columns.map((column, at) => h("th", {
    class: `${column.kind || ""} sort`,
    title: "sort",
    onclick: () => {
      const down = sorted === at ? -1 : 1;
      sorted = sorted === at ? null : at;
      const key = (row) => (row.keys ? row.keys[at] : row.cells[at]);
      const rank = (a, b) => (typeof a === "number" && typeof b === "number" ? b - a : String(a).localeCompare(String(b), "en", { numeric: true }));
      order = rows.slice().sort((a, b) => down * rank(key(a) ?? "", key(b) ?? ""));
      draw(input.value);
    },
  }, column.title));
  draw("");
  return h("div", {},
    settings.search ? h("div", { class: "tools" }, input, counter, settings.tools || []) : null,
    h("div", { class: "scroll", style: settings.height ? `max-height:${settings.height}` : null },
      h("table", {}, h("thead", {}, h("tr", {}, head)), body)));
}
