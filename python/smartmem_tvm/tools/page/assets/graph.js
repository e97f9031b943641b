// SPDX-License-Identifier: Apache-2.0
// The graph: operators of the model on the left, one line each, grouped by the kernel on the right that they ended in.
// The lines beside them are tensors; one that is read much later keeps its column until then.

const FATES = {
  computed: "computed in the kernel",
  eliminated: "layout operator, eliminated: the kernel reads or writes through it",
  rewritten: "merged with another, or folded into weights",
  constant: "computed when compiling, or no longer needed",
};
const LINE = 18, GAP = 10, LANE = 11, TALL = 38, OPS = 400, CARD = 390;
const color = (fate) => `var(--${fate === "gone" ? "constant" : fate})`;

// The short picture: all operators as cells, below them the kernels that they became.
function genome(model, choose) {
  const count = Math.max(model.operators.length, 1), width = 1380, cell = width / count;
  const picture = s("svg", { class: "genome", viewBox: `0 0 ${width} 74`, preserveAspectRatio: "none" });
  const gap = Math.min(1, cell * 0.25);
  model.operators.forEach((each, at) => picture.append(s("rect", {
    x: at * cell, y: 4, width: Math.max(cell - gap, 0.4), height: 28, fill: color(each.fate),
    onclick: () => choose("operator", at) }, tip(`${each.operator} ${each.name}: ${each.fate}`))));
  model.kernels.forEach((each, at) => {
    const [first, last] = each.operators;
    if (last > first) picture.append(s("path", {
      d: `M${first * cell + 0.6} 36V40H${last * cell - 0.6}V36`, fill: "none", stroke: "var(--faint)", "stroke-width": 0.8 }));
    if (last > first) picture.append(s("rect", {
      x: first * cell + 0.6, y: 44, width: Math.max((last - first) * cell - 1.2, 0.8), height: 26, rx: 2,
      fill: each.outputs.some((t) => t.memory === "texture") ? "var(--texture)" : "var(--computed)", opacity: 0.35 + 0.65 * heat(model, each),
      onclick: () => choose("kernel", at) }, tip(`${each.kernel} → ${each.result}: ${plural(each.members.length, "operator")}`)));
  });
  return picture;
}

// Share of a kernel's launch in the first measurement, of the largest; 1 where none was measured.
function heat(model, kernel) {
  if (!model.times.length) return 1;
  const launch = (name) => { const t = model.times[0].kernels[name]; return t ? t.seconds / (t.launches || 1) : 0; };
  model.hottest = model.hottest || Math.max(...model.kernels.map((each) => launch(each.kernel)), 1e-12);
  return launch(kernel.kernel) / model.hottest;
}

function drawGraph(model, number) {
  const aside = h("aside", {}, h("p", { class: "about" }, "Click an operator or a kernel to see what became of it, and why."));
  const scroller = h("div", { class: "graph" });
  const state = { small: false, ops: [], kernels: [], tops: [] };
  const lanesBefore = 1 + Math.max(0, ...model.operators.map((each) => each.lane));
  const lanesAfter = 1 + Math.max(0, ...model.kernels.map((each) => each.lane));
  const left = 14 + lanesBefore * LANE, card = left + OPS + 18, right = card + CARD + 12;

  function select(kind, at) {
    for (const each of scroller.querySelectorAll(".on")) each.classList.remove("on");
    const element = (kind === "operator" ? state.ops : state.kernels)[at];
    const kernel = state.kernels[kind === "operator" ? model.operators[at].kernel : at];
    for (const each of [element, kernel]) if (each) each.classList.add("on");
    const target = element || kernel;
    const top = parseFloat(target.style.top) - scroller.clientHeight / 2;
    const inside = target.offsetTop > scroller.scrollTop && target.offsetTop < scroller.scrollTop + scroller.clientHeight - 20;
    if (!inside) scroller.scrollTo({ top: Math.max(top, 0) });
    aside.replaceChildren(...(kind === "operator" ? aboutOperator : aboutKernel)(model, number, at, select).flat(Infinity).filter(Boolean));
    aside.scrollTop = 0;
  }

  function build() {
    const canvas = h("div", { class: "canvas" });
    const picture = s("svg", {});
    state.ops = []; state.kernels = []; state.tops = [];
    const middle = [];
    let y = 8;
    model.kernels.forEach((kernel, at) => {
      const [first, last] = state.small ? [0, 0] : kernel.operators;
      const height = Math.max((last - first) * LINE, TALL);
      for (let op = first; op < last; op++) {
        const each = model.operators[op], top = y + (op - first) * LINE;
        middle[op] = top + LINE / 2;
        state.ops[op] = h("div", { class: `op ${each.fate}`, style: `top:${top}px;left:${left}px;width:${OPS}px`, onclick: () => select("operator", op) },
          h("b", {}, each.operator), " ", h("small", {}, `${each.name} ${shape(each.shape)}`));
        canvas.append(state.ops[op]);
      }
      state.tops[at] = y;
      state.kernels[at] = kernelCard(model, kernel, at, state.small ? 8 : card, y, height, () => select("kernel", at));
      canvas.append(state.kernels[at]);
      y += height + GAP;
    });
    if (!state.small) edges(picture, model.operators, (op) => middle[op], (lane) => 10 + (lanesBefore - 1 - lane) * LANE, left - 2, 1);
    const x0 = state.small ? 8 + CARD + 12 : right;
    edges(picture, model.kernels, (at) => state.tops[at] + TALL / 2, (lane) => x0 + lane * LANE, x0 - 12, -1);
    const width = x0 + lanesAfter * LANE + 16;
    picture.setAttribute("width", width);
    picture.setAttribute("height", y);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${y}px`;
    aside.style.setProperty("--tall", `${Math.max(y + 2, 320)}px`); // no longer than the graph beside it, unless that is tiny
    canvas.prepend(picture);
    scroller.replaceChildren(canvas);
    find(input.value);
  }

  function find(words) {
    const wanted = words.toLowerCase();
    const hit = (text) => !wanted || text.toLowerCase().includes(wanted);
    let first = null;
    const mark = (element, found) => { if (element) { element.classList.toggle("dim", !found); if (wanted && found && !first) first = element; } };
    model.operators.forEach((each, at) => mark(state.ops[at], hit(`${each.operator} ${each.name}`)));
    model.kernels.forEach((each, at) => mark(state.kernels[at], hit(`${each.kernel} ${each.result} ${each.rule}`)));
    if (first) scroller.scrollTo({ top: parseFloat(first.style.top) - 60 });
  }

  const input = h("input", { type: "search", placeholder: "find an operator, tensor, kernel or rule", oninput: () => find(input.value) });
  const fold = h("button", { onclick: () => { state.small = !state.small; fold.textContent = state.small ? "show operators" : "kernels only"; build(); } }, "kernels only");
  build();
  const textured = model.kernels.some((each) => each.outputs.some((t) => t.memory === "texture"));
  const legend = h("div", { class: "legend" }, [...Object.entries(FATES).map(([fate, text]) => [color(fate), text]), ...(textured ? [["var(--texture)", "kernel that writes a texture"]] : [])]
    .map(([shade, text]) => h("span", {}, h("i", { style: `background:${shade}` }), text)));
  return { select, element: h("div", {}, genome(model, select), legend, h("div", { class: "tools" }, input, fold), h("div", { class: "split" }, scroller, aside)) };
}

function kernelCard(model, kernel, at, left, top, height, onclick) {
  const outputs = kernel.outputs.map((each) => `${shape(each.shape)} ${each.dtype}`).join(", ");
  const texture = kernel.outputs.some((each) => each.memory === "texture");
  return h("div", { class: `kernel${texture ? " texture" : ""}`, style: `top:${top}px;left:${left}px;width:${CARD}px;height:${height}px`, onclick },
    h("div", {}, h("b", {}, kernel.kernel)),
    h("div", { class: "what" }, `${at + 1} · ${kernel.result} ${outputs}${texture ? " texture" : ""}${kernel.rule ? " · " + kernel.rule : ""}`),
    h("div", { class: "what" }, `computes ${kinds(kernel.members)}`),
    kernel.views.length ? h("div", { class: "what gone" }, `${plural(kernel.views.length, "layout operator")} eliminated: ${kinds(kernel.views)}`) : null,
    h("div", { class: "what" }, `reads ${kernel.reads.join(", ") || "nothing"}${kernel.weight_bytes ? `, and ${shown(kernel.weight_bytes, "bytes")} of weights` : ""}`),
    model.times.length ? h("div", { class: "heat", style: `width:${100 * heat(model, kernel)}%` }) : null);
}

// Kinds of operators in their order, with their numbers where they repeat.
function kinds(labels) {
  const counted = new Map();
  for (const label of labels) {
    const kind = label.split(" ")[0].replace(/\d+(\[\d+\])?$/, "");
    counted.set(kind, (counted.get(kind) || 0) + 1);
  }
  return [...counted].map(([kind, count]) => (count > 1 ? `${count} ${kind}` : kind)).join(", ");
}

// One path for all tensors: a dot at each node, down its column, and from there to each reader.
function edges(picture, nodes, y, x, port, side) {
  const readers = nodes.map(() => []);
  nodes.forEach((node, at) => node.inputs.forEach((source) => readers[source].push(at)));
  const parts = [];
  nodes.forEach((node, at) => {
    const column = x(node.lane), top = y(at);
    parts.push(`M${port} ${top}H${column}`);
    const below = readers[at].filter((reader) => reader > at);
    if (!below.length) return;
    const end = y(Math.max(...below));
    for (const reader of below) {
      const other = x(nodes[reader].lane);
      if (other !== column) parts.push(`M${column} ${y(reader) - 7}Q${column} ${y(reader)} ${column + side * 6} ${y(reader)}H${port}`);
    }
    const straight = below.some((reader) => nodes[reader].lane === node.lane);
    parts.push(`M${column} ${top}V${straight ? end : end - 7}`);
  });
  picture.append(s("path", { d: parts.join("") }));
}

function decisionsOn(model, names) {
  const known = new Set(names);
  const name = (label) => { const found = /^\S+ ([^(]+)\(/.exec(label); return found ? found[1] : label; };
  return model.decisions.map((each, at) => [each, at]).filter(([each]) => known.has(name(each.operator || each.tensor || "")));
}

function reasons(model, names) {
  const found = decisionsOn(model, names);
  return found.length ? [h("h3", {}, "Decisions"), found.map(([each]) => h("div", { class: "why" }, decisionText(each)))] : [];
}

function aboutOperator(model, number, at, select) {
  const each = model.operators[at], kernel = model.kernels[each.kernel];
  const into = each.into.map((k) => h("li", {}, h("span", { class: "link", onclick: () => select("kernel", k) }, `${model.kernels[k].kernel} → ${model.kernels[k].result}`)));
  return [h("h3", {}, `${each.operator} ${each.name}`), chip(each.fate === "gone" ? "constant" : each.fate),
    h("dl", {}, h("dt", {}, "result"), h("dd", {}, `${shape(each.shape)} ${each.dtype}`),
      each.map ? [h("dt", {}, "map"), h("dd", { class: "mono" }, each.map)] : null,
      !into.length && kernel ? [h("dt", {}, "beside"), h("dd", {}, kernel.kernel)] : null),
    each.reason ? h("div", { class: "why" }, each.reason) : null,
    into.length ? [h("h3", {}, each.fate === "computed" ? "Computed in" : "Went into"), h("ul", {}, into)] : [],
    ...reasons(model, [each.name])];
}

function aboutKernel(model, number, at, select) {
  const each = model.kernels[at];
  const source = (name) => { const k = model.kernels.findIndex((o) => o.outputs.some((t) => t.name === name)); return k < 0 ? name : h("span", { class: "link", onclick: () => select("kernel", k) }, name); };
  const readers = model.kernels.map((k, i) => [k, i]).filter(([k]) => k.inputs.includes(at));
  const times = model.times.map((t, i) => t.kernels[each.kernel] ? [h("dt", {}, t.device), h("dd", {},
    figure(["models", number, "times", i, "kernels", each.kernel, "seconds"], "us"), t.kernels[each.kernel].launches > 1 ? ` in ${t.kernels[each.kernel].launches} launches` : "")] : null);
  return [h("h3", {}, each.kernel),
    h("dl", {}, h("dt", {}, "number"), h("dd", {}, `${at + 1} of ${model.kernels.length}`),
      each.outputs.map((t) => [h("dt", {}, "writes"), h("dd", {}, `${t.name}: ${shape(t.shape)} ${t.dtype} `, chip(t.memory))]),
      h("dt", {}, "reads"), h("dd", {}, each.reads.map((name, i) => [i ? ", " : "", source(name)])),
      readers.length ? [h("dt", {}, "read by"), h("dd", {}, readers.map(([k, i], n) => [n ? ", " : "", h("span", { class: "link", onclick: () => select("kernel", i) }, k.result)]))] : null,
      each.weights.length ? [h("dt", {}, "weights"), h("dd", {}, figure(["models", number, "kernels", at, "weight_bytes"], "bytes"), ` in ${each.weights.length}`)] : null,
      each.rule ? [h("dt", {}, "schedule"), h("dd", { title: each.family }, each.rule)] : null,
      each.tuned ? [h("dt", {}, "tuned"), h("dd", {}, figure(["models", number, "kernels", at, "tuned", "gain"], "times"), ` by ${each.tuned.strategy}`)] : null,
      times),
    h("h3", {}, plural(each.members.length, "operator") + " computed"), h("ul", {}, each.members.map((m) => h("li", {}, m))),
    each.views.length ? [h("h3", {}, plural(each.views.length, "layout operator") + " read or written through"), h("ul", {}, each.views.map((m) => h("li", { class: "eliminated" }, m)))] : [],
    ...reasons(model, [each.result, ...each.members.map((m) => (/^\S+ ([^(]+)\(/.exec(m) || [0, m])[1])])];
}
