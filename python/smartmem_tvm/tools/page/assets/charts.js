// SPDX-License-Identifier: Apache-2.0
// Pictures: memory over time, curves of tuning, what each technique brings, devices side by side.

// Told apart in print and by colour-blind readers: Okabe and Ito's palette.
const COLORS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#7e5bc4"];

// Round steps of an axis from `least` to `most`.
function ticks(most, count, least = 0) {
  const raw = (most - least) / count, power = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw) || raw;
  const first = Math.ceil(least / step - 1e-9), last = Math.floor(most / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, at) => +((first + at) * step).toPrecision(12));
}

function axes(picture, box, xs, ys, xText, yText) {
  for (const [value, text] of ys) picture.append(
    s("line", { class: "axis", x1: box.left, x2: box.right, y1: value, y2: value }),
    s("text", { x: box.left - 6, y: value + 4, "text-anchor": "end" }, text));
  for (const [value, text] of xs) picture.append(s("text", { x: value, y: box.bottom + 15, "text-anchor": "middle" }, text));
  picture.append(s("text", { x: (box.left + box.right) / 2, y: box.bottom + 31, "text-anchor": "middle" }, xText), s("text", { x: 4, y: 11 }, yText));
}

// Storages as bands, one above the other; in each the tensors that lie in it, from their first step to their last.
function memorySection(model, number) {
  const plan = model.memory, steps = plan.steps.length;
  const empty = steps ? null : "explain.json has no memory plan: compile the model again with this version of `smartmem compile`.";
  if (empty) return section("memory", "Memory over time", null, empty);
  const box = { left: 70, right: 1360, top: 20, bottom: 330 };
  const most = Math.max(plan.planned_bytes, 1);
  const x = (step) => box.left + ((box.right - box.left) * step) / steps, y = (bytes) => box.bottom - ((box.bottom - box.top) * bytes) / most;
  const picture = s("svg", { class: "chart", viewBox: "0 0 1380 366" });
  axes(picture, box, ticks(steps, Math.min(steps, 12)).map((at) => [x(at), at]), ticks(most, 5).map((bytes) => [y(bytes), `${+(bytes / 1e6).toPrecision(3)} MB`]), "launches, in the order of execution", "bytes planned; each block is a tensor in its storage");
  let base = 0;
  plan.storages.forEach((storage, at) => {
    picture.append(s("rect", { x: box.left, y: y(base + storage.bytes), width: box.right - box.left, height: y(base) - y(base + storage.bytes), fill: COLORS[at % 8], opacity: 0.1 }));
    for (const each of plan.tensors.filter((t) => t.storage === at)) picture.append(s("rect", {
      class: "hover", x: x(each.first) + 0.5, y: y(base + Math.min((each.offset || 0) + each.bytes, storage.bytes)), width: Math.max(x(each.last + 1) - x(each.first) - 1, 1), height: Math.max(y(0) - y(Math.min(each.bytes, storage.bytes)), 0.8), fill: COLORS[at % 8], opacity: 0.75 },
      tip(`${shape(each.shape)} ${each.dtype}, ${shown(each.bytes, "bytes")}\nwritten by launch ${each.first}: ${plan.steps[each.first]}\nlast used by launch ${each.last}: ${plan.steps[each.last]}`)));
    base += storage.bytes;
  });
  const line = plan.live.map((bytes, at) => `${at ? "L" : "M"}${x(at)} ${y(bytes)}H${x(at + 1)}`).join("");
  picture.append(s("path", { d: line, fill: "none", stroke: "var(--ink)", "stroke-width": 1.6 }));
  const path = (key) => ["models", number, "memory", key];
  return section("memory", "Memory over time",
    [figure(path("planned_bytes"), "bytes"), ` in ${plural(plan.storages.length, "storage")} for ${plural(plan.tensors.length, "tensor")}; in use at once at most `, figure(path("live_bytes"), "bytes"),
      " (the black line). Weights take ", figure(path("weight_bytes"), "bytes"), " more."], null, wide(picture));
}

function tuningSection(data) {
  const lead = "How many times faster than untuned the best candidate of each kernel was after each one tried; a dot is the winner, measured in turns with the untuned kernel.";
  if (!data.curves.length) return section("tuning", "Tuning", null, "No records of tuning: `smartmem tune MODEL --records FILE.records.jsonl` searches; give its file to this command too.");
  const reference = (each) => each.untuned || each.best.find((best) => best !== null);
  const drawn = data.curves.map((each, at) => [each, at]).filter(([each]) => reference(each));
  const box = { left: 50, right: 900, top: 20, bottom: 330 };
  const longest = Math.max(2, ...drawn.map(([each]) => each.best.length));
  const speed = (each, best) => (best === null || best === undefined ? null : reference(each) / best);
  const most = 1.08 * Math.max(1.2, ...drawn.map(([each]) => Math.max(each.gain || 0, speed(each, each.best.at(-1)) || 0)));
  const values = drawn.flatMap(([each]) => [each.gain || 1, ...each.best.map((best) => speed(each, best) ?? 1)]);
  const least = Math.max(0, Math.min(1, ...values) - 0.15 * (most - Math.min(1, ...values)));
  const x = (trial) => box.left + ((box.right - box.left) * trial) / longest, y = (value) => box.bottom - ((box.bottom - box.top) * (value - least)) / (most - least);
  const picture = s("svg", { class: "chart", viewBox: "0 0 1380 366" });
  axes(picture, box, ticks(longest, Math.min(longest, 10)).map((at) => [x(at), at]), ticks(most, 6, least).map((value) => [y(value), `${+value.toPrecision(3)}×`]), "candidates tried", "times as fast as untuned");
  picture.append(s("line", { x1: box.left, x2: box.right, y1: y(1), y2: y(1), stroke: "var(--ink)", "stroke-dasharray": "2 3" }));
  drawn.slice().reverse().forEach(([each, at]) => {
    const named = at < COLORS.length, stroke = named ? COLORS[at] : "var(--line)";
    let text = "";
    each.best.forEach((best, trial) => {
      const value = speed(each, best);
      if (value !== null) text += text ? `V${y(value)}H${x(trial + 1)}` : `M${x(trial)} ${y(value)}H${x(trial + 1)}`;
    });
    if (text) picture.append(s("path", { class: "hover", d: text, fill: "none", stroke, "stroke-width": named ? 2 : 1.2 }, tip(each.kernel)));
    if (each.gain) picture.append(s("circle", { cx: x(each.best.length), cy: y(each.gain), r: 3.5, fill: stroke }, tip(`${each.kernel}: ${shown(each.gain, "times")}`)));
    if (named) picture.append(s("circle", { cx: 925, cy: 30 + 26 * at, r: 5, fill: stroke }),
      s("text", { x: 937, y: 34 + 26 * at }, each.kernel.length > 62 ? `${each.kernel.slice(0, 60)} …` : each.kernel));
  });
  const rows = data.curves.map((each, at) => {
    const path = (key) => ["curves", at, key], last = ["curves", at, "best", each.best.length - 1];
    const failed = each.seconds.filter((one) => one === null).length;
    return {
      cells: [each.kernel, each.device, each.strategy, each.seconds.length, failed, figure(path("untuned"), "us"), figure(each.winner ? path("winner") : last, "us"), each.gain ? figure(path("gain"), "times") : "–"],
      keys: [each.kernel, each.device, each.strategy, each.seconds.length, failed, each.untuned ?? 0, each.winner ?? each.best.at(-1) ?? 0, each.gain ?? 0], text: `${each.kernel} ${each.device} ${each.file}`,
    };
  });
  return section("tuning", "Tuning", lead, null, wide(picture), table([{ title: "kernel, or its tensors", kind: "name" }, { title: "device" }, { title: "strategy" }, { title: "candidates", kind: "n" }, { title: "failed", kind: "n" },
    { title: "untuned", kind: "n" }, { title: "best", kind: "n" }, { title: "gain", kind: "n" }], rows, { search: true, height: "40vh" }));
}

const ABLATION = [["kernels", "kernels", "count"], ["activations", "activations moved", "bytes"], ["median", "latency", "ms"]];

function ablationSection(data) {
  if (!data.ablations.length) return section("ablation", "What each technique brings", null, "No ablation: `smartmem bench MODEL --ablation -o FILE.json` compiles without the techniques and adds one by one; give its file to this command too.");
  const blocks = data.ablations.map((each, at) => [h("h3", {}, each.model), h("div", { class: "scroll" }, h("table", {},
    h("thead", {}, h("tr", {}, h("th", {}, "technique"), ABLATION.map(([, title]) => [h("th", { class: "n" }, title), h("th", { style: "width:20%" })]))),
    h("tbody", {}, each.steps.map((step, n) => h("tr", {}, h("td", {}, step.added ? `+ ${step.added.replaceAll("_", " ")}` : "none of these"), ABLATION.map(([key, , unit]) => {
      const most = Math.max(...each.steps.map((other) => other[key] || 0), 1e-12);
      return [h("td", { class: "n" }, figure(["ablations", at, "steps", n, key], unit)),
        h("td", {}, h("div", { class: "bar", style: `width:${(100 * (step[key] || 0)) / most}%;background:${COLORS[n % 8]}` }))];
    }))))))]);
  return section("ablation", "What each technique brings", "Techniques added one by one, from the top down; shorter is better.", null, blocks);
}

const twoLines = (text, more) => [text, more ? h("div", { class: "small" }, more) : null];

function devicesSection(data) {
  const empty = data.devices.length ? null : "No network was timed: `smartmem measure DIR --tracker HOST:PORT --key KEY --json` on each device, or `smartmem bench MODEL -o FILE.json`, brings latencies; give their output to this command too.";
  const verdict = (value, good, bad) => (value === null ? [] : value ? [good] : [bad]);
  const alone = (wrong) => (wrong ? [wrong.length ? `kernels WRONG alone: ${wrong.join(", ")}` : "each kernel correct alone"] : []);
  const checks = (each) => [...verdict(each.correct, "correct", "WRONG"), ...verdict(each.deterministic, `same in ${each.replays ?? "all"} runs`, "runs DIFFER"), ...alone(each.wrong)].join(", ") || "–";
  const blocks = [...new Set(data.devices.map((each) => each.model))].map((model) => {
    const mine = data.devices.map((each, at) => [each, at]).filter(([each]) => each.model === model);
    const most = Math.max(...mine.map(([each]) => each.median || 0), 1e-12);
    const rows = mine.map(([each, at]) => {
      const path = (key) => ["devices", at, key];
      const bar = h("div", { class: "bar", style: `width:${(200 * (each.median || 0)) / most}px;background:${each.system === "smartmem" ? "var(--accent)" : "var(--buffer)"}` });
      return {
        cells: [twoLines(each.device, each.driver && `driver ${each.driver}`), twoLines(each.system, each.folder), figure(path("median"), "ms"), bar, figure(path("p10"), "ms"), figure(path("p90"), "ms"), figure(path("p99"), "ms"), figure(path("kernels"), "count"), figure(path("layout_share"), "percent"), figure(path("relative_error"), "error"), checks(each)],
        title: each.file,
        keys: [each.device, each.system, each.median ?? 0, each.median ?? 0, each.p10 ?? 0, each.p90 ?? 0, each.p99 ?? 0, each.kernels ?? 0, each.layout_share ?? 0, each.relative_error ?? 0, checks(each)],
      };
    });
    return [h("h3", {}, model), table([{ title: "device" }, { title: "system" }, { title: "median", kind: "n" }, { title: "" }, { title: "p10", kind: "n" }, { title: "p90", kind: "n" }, { title: "p99", kind: "n" }, { title: "kernels", kind: "n" },
      { title: "layout share", kind: "n" }, { title: "error", kind: "n" }, { title: "outputs" }], rows)];
  });
  return section("devices", "Devices side by side", "Latency of one inference.", empty, blocks);
}
