// SPDX-License-Identifier: Apache-2.0
// Tables of one model: kernels by time, decisions, tensors.

function decisionText(entry) {
  const skip = new Set(["pass", "operator", "tensor", "action", "reason", "map", "into", "decided_by", "kind", "memory"]);
  const more = Object.entries(entry).filter(([key]) => !skip.has(key)).map(([key, value]) => `${key.replaceAll("_", " ")} ${JSON.stringify(value)}`);
  return [h("b", {}, entry.pass), `: ${entry.operator || entry.tensor} `, chip(actionKind(entry), entry.action || entry.memory),
    entry.into ? ` into ${[].concat(entry.into).join(", ")}` : "",
    h("div", { class: "reason-text" }, entry.reason || noReason(entry)),
    entry.decided_by ? h("div", { class: "about" }, `decided by ${entry.decided_by}`) : null,
    entry.map ? h("div", { class: "mono" }, entry.map) : null,
    more.length ? h("div", { class: "about mono" }, more.join(" · ")) : null];
}

// What a pass has no reason to write into each of its decisions.
const PASSES = {
  FoldScales: "a multiplication by constants is done on the weights of the linear layer beside it, when compiling",
  FoldNormAffine: "scale and shift of a normalisation are done on the weights of the layers that read it, when compiling",
  EliminateLayout: "its map is part of the index expressions of the kernels that it went into: nothing is copied",
  PlaceTextures: "its kernels read and write whole texels, and none of them takes longer than with a buffer",
};
const WHERE = { texture: PASSES.PlaceTextures, buffer: "no pass moved it: tensors are in buffers, in the order of their dimensions" };
const noReason = (entry) => PASSES[entry.pass] || "the pass gives no other reason than that its conditions hold";

function actionKind(entry) {
  const known = ["eliminated", "fused", "rewritten", "folded", "merged", "kept", "texture", "buffer"];
  return known.find((each) => each === (entry.action || entry.memory)) || "other";
}

function decisionsSection(model) {
  const empty = model.decisions.length ? null : "No decisions are in explain.json: `smartmem compile MODEL -o DIR` writes them.";
  const rows = model.decisions.map((each, at) => ({
    cells: [each.pass, each.operator || each.tensor || "", chip(actionKind(each), each.action || each.memory), each.decided_by || (each.rule ? `rule ${each.rule}` : "")],
    keys: [each.pass, each.operator || each.tensor || "", each.action || each.memory || "", each.decided_by || each.rule || ""],
    text: JSON.stringify(each), id: `decision-${at}`, open: () => decisionText(each),
  }));
  const passes = new Map();
  for (const each of model.decisions) passes.set(each.pass, (passes.get(each.pass) || 0) + 1);
  const lead = [...passes].map(([pass, count]) => `${pass} ${count}`).join(" · ");
  return section("decisions", "Decisions", `Every decision of the passes, in their order; click one for its reason. ${lead}.`, empty,
    table([{ title: "pass" }, { title: "operator or tensor", kind: "name" }, { title: "what was done" }, { title: "by" }], rows, { search: true, height: "52vh" }));
}

function kernelsSection(model, number, graph) {
  const times = model.times;
  const empty = times.length ? null : `No times of kernels: \`smartmem explain ${model.name}.onnx --schedules --json\` on a machine with the device, or \`smartmem measure ${model.folder} --json\`, brings them; give their output to this command too.`;
  const names = [...new Set(model.kernels.map((each) => each.kernel))];
  const others = times.flatMap((t) => Object.keys(t.kernels)).filter((name) => !names.includes(name));
  const all = [...names, ...new Set(others)].map((name) => {
    const kernel = model.kernels.find((each) => each.kernel === name) || {};
    return { name, kernel, at: model.kernels.indexOf(kernel), seconds: times.map((t) => (t.kernels[name] || {}).seconds ?? null) };
  }).sort((a, b) => (b.seconds[0] ?? -1) - (a.seconds[0] ?? -1));
  const most = Math.max(...all.map((each) => each.seconds[0] ?? 0), 1e-12);
  const columns = [{ title: "kernel", kind: "name" }, { title: "rule" }, { title: "launches", kind: "n" },
    ...times.flatMap((t) => [{ title: t.device, kind: "n" }, { title: "share", kind: "n" }, ...(hasBounds(t) ? [{ title: "of the roofline", kind: "n" }] : [])]), { title: "" }, { title: "tuned", kind: "n" }];
  const rows = all.map((each) => {
    const first = times.findIndex((t) => t.kernels[each.name]);
    const path = (i, key) => ["models", number, "times", i, "kernels", each.name, key];
    const gain = each.kernel.tuned ? figure(["models", number, "kernels", each.at, "tuned", "gain"], "times") : "–";
    const bar = h("div", { class: "bar", style: `width:${(180 * (each.seconds[0] ?? 0)) / most}px` });
    return {
      cells: [each.at < 0 ? each.name : h("span", { class: "link", onclick: () => graph.select("kernel", each.at) }, each.name), each.kernel.rule || "–",
        first < 0 ? "–" : figure(path(first, "launches"), "count"),
        ...times.flatMap((t, i) => [figure(path(i, "seconds"), "us"), figure(path(i, "share"), "percent"), ...(hasBounds(t) ? [timesOff(t.kernels[each.name]) === null ? "–" : figure(path(i, "of_roofline"), "percent")] : [])]), bar, gain],
      keys: [each.name, each.kernel.rule || "", first < 0 ? 0 : times[first].kernels[each.name].launches ?? 0,
        ...times.flatMap((t, i) => [each.seconds[i] ?? -1, each.seconds[i] ?? -1, ...(hasBounds(t) ? [(t.kernels[each.name] || {}).of_roofline ?? -1] : [])]), each.seconds[0] ?? -1, each.kernel.tuned ? each.kernel.tuned.gain : 0],
      text: `${each.name} ${each.kernel.rule || ""} ${each.kernel.members || ""}`,
    };
  });
  const totals = times.map((t, i) => [i ? "; " : "", `${t.device}: `, figure(["models", number, "times", i, "total"], "seconds")]);
  return section("kernels", "Kernels by time", times.length ? ["All launches of one inference, each kernel timed alone. In all: ", totals] : null, empty,
    table(columns, rows, { search: true, height: "60vh" }));
}

function machineSection(model) {
  const found = model.machine_codes.flatMap((each) => Object.entries(each.kernels).map(([name, code]) => ({ name, code, mesa: each.mesa })));
  if (!found.length) return null;
  const spilled = found.filter((each) => each.code.scratch > 0).length;
  const us = (code) => (code.issue_seconds === null ? -1 : code.issue_seconds * 1e6);
  const rows = found.map(({ name, code }) => ({
    cells: [name, code.registers, code.waves, code.limited_by, code.scratch, code.instructions, us(code) < 0 ? "–" : us(code).toFixed(1)],
    keys: [name, code.registers, code.waves, code.limited_by, code.scratch, code.instructions, us(code)], text: name,
  }));
  return section("machine", "Machine code", `Mesa ${found[0].mesa}: registers (of four numbers on Adreno, of 32 bits on Mali), waves of 64 threads (on Mali all threads or half), accesses of scratch memory; ${spilled} of ${found.length} kernels reach it.`, null,
    table([{ title: "kernel", kind: "name" }, { title: "registers", kind: "n" }, { title: "waves", kind: "n" }, { title: "limited by" }, { title: "scratch", kind: "n" },
      { title: "instructions", kind: "n" }, { title: "issue, us", kind: "n" }], rows, { search: true, height: "48vh" }));
}

function tensorsSection(model, number) {
  const empty = model.tensors.length ? null : "explain.json has no tensors: compile the model again with this version of `smartmem compile`.";
  const sum = (memory) => { const some = model.tensors.filter((t) => t.memory === memory); return `${plural(some.length, memory)} (${shown(some.reduce((n, t) => n + t.bytes, 0), "bytes")})`; };
  const rows = model.tensors.map((each, at) => ({
    cells: [each.tensor, each.kind, chip(each.memory), shape(each.shape), each.dtype || "–", figure(["models", number, "tensors", at, "bytes"], "bytes"),
      each.padding ? figure(["models", number, "tensors", at, "padding"], "bytes") : "–", layoutText(each), each.readers.length || "–"],
    keys: [each.tensor, each.kind, each.memory, shape(each.shape), each.dtype, each.bytes, each.padding, layoutText(each), each.readers.length],
    text: `${each.tensor} ${each.kind} ${each.memory} ${each.reason} ${each.writer} ${each.strided}`,
    open: () => [
      h("div", {}, h("b", {}, each.tensor), each.writer ? ` is written by the kernel of ${each.writer}` : each.kind === "weight" ? " is a weight" : " is given by the caller", each.readers.length ? `, read by ${each.readers.join(", ")}.` : "."),
      each.strided.length ? h("div", {}, `In another order than wanted by ${each.strided.join("; ")}.`) : null,
      h("div", { class: "why" }, each.reason || WHERE[each.memory])],
  }));
  return section("tensors", "Layouts and memory of tensors", `${sum("texture")}, ${sum("buffer")}. In a texture the last dimension is a texel of four numbers. Click a tensor for the reason.`, empty,
    table([{ title: "tensor", kind: "name" }, { title: "what" }, { title: "memory" }, { title: "shape in memory" }, { title: "type" }, { title: "size", kind: "n" },
      { title: "padding", kind: "n" }, { title: "layout" }, { title: "readers", kind: "n" }], rows, { search: true, height: "56vh" }));
}

function layoutText(tensor) {
  const moved = tensor.order && tensor.order.some((dim, at) => dim !== at);
  return [tensor.texel === null ? "" : `texel from dimension ${tensor.texel}`, moved ? `order ${tensor.order.join(",")}` : "",
    tensor.strided.length ? "strided" : ""].filter(Boolean).join(", ") || "as in the model";
}
