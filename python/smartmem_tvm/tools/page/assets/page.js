// SPDX-License-Identifier: Apache-2.0
// Puts the sections together: those of one model, which a list chooses among several, and those of all.

function header(number) {
  const model = DATA.models[number];
  if (!model) return [h("h1", {}, "smartmem report")];
  const about = model.about, path = (key) => ["models", number, "facts", key];
  const card = (figures, text) => h("div", { class: "card" }, h("b", {}, figures), h("span", {}, text));
  const choice = DATA.models.length > 1 ? h("select", { id: "model", onchange: (event) => show(Number(event.target.value)) },
    DATA.models.map((each, at) => h("option", { value: at, selected: at === number ? "" : null }, `${each.name} · ${each.about.target} · ${each.folder}`))) : null;
  return [h("div", { class: "tools" }, h("h1", {}, model.name), choice),
    h("p", { class: "about" }, `compiled for ${about.target}${about.host ? " on " + about.host : ""} in ${about.precision} · ${about.inputs.join(", ")} · smartmem ${about.smartmem} on TVM ${about.tvm}`),
    h("div", { class: "cards" },
      card([figure(path("operators"), "count"), h("span", { class: "arrow" }, "→"), figure(path("kernels"), "count")], "operators → kernels"),
      card([figure(path("layout_eliminated"), "count"), h("span", { class: "arrow" }, "of"), figure(path("layout_operators"), "count")], "layout operators eliminated"),
      card(figure(path("layout_kernels"), "count"), "layout kernels left"),
      card(figure(path("planned_bytes"), "bytes"), "memory for activations"),
      card(figure(path("weight_bytes"), "bytes"), "weights"),
      card([figure(path("tuned"), "count"), h("span", { class: "arrow" }, "of"), figure(path("kernel_programs"), "count")], "kernel programs tuned"))];
}

function graphSection(model, number) {
  if (!model || !model.kernels.length) return [section("graph", "Graph, before and after", null, model
    ? "explain.json has no graphs: compile the model again with this version of `smartmem compile`."
    : "No compiled model: `smartmem compile MODEL -o DIR` makes one; give its folder to this command."), { select() {} }];
  const graph = drawGraph(model, number);
  return [section("graph", "Graph, before and after", "Above, all operators of the model, and below them the kernels that they became. In the list, from left to right: the tensors between operators, the operators, their kernel, the tensors between kernels.", null, graph.element), graph];
}

function show(number) {
  const model = DATA.models[number];
  document.getElementById("top").replaceChildren(...header(number).filter(Boolean));
  const [graphPart, graph] = graphSection(model, number);
  const select = (kind, at) => { graph.select(kind, at); document.getElementById("graph").scrollIntoView(); };
  const mine = model ? [kernelsSection(model, number, { select }), rooflineSection(model, { select }), machineSection(model), decisionsSection(model), tensorsSection(model, number), memorySection(model, number)] : [];
  const parts = [graphPart, ...mine, tuningSection(DATA), ablationSection(DATA), devicesSection(DATA)].filter(Boolean);
  document.getElementById("main").replaceChildren(...parts, h("footer", {}, "made by smartmem report; all figures are in this file, as JSON"));
  document.getElementById("nav").replaceChildren(h("div", {}, parts.map((each) => h("a", { href: `#${each.id}`, class: each.dataset.empty ? "empty" : null }, each.title_))));
}

show(0);
