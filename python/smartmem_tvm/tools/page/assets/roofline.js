// SPDX-License-Identifier: Apache-2.0
// The time of each kernel against the least that its device allows: a dot per kernel and device, both axes logarithmic.

const FAR = 4; // times its bound from which on a kernel counts as slow

const hasBounds = (times) => Object.values(times.kernels).some((each) => each.bound);
const timesOff = (kernel) => (kernel && kernel.bound && kernel.seconds ? kernel.seconds / kernel.bound : null);
const microseconds = (seconds) => `${+(1e6 * seconds).toPrecision(3)} µs`;

// Powers of ten, as [place, text], that lie between two values.
function decades(least, most, place) {
  const first = Math.ceil(Math.log10(least) - 1e-9), last = Math.floor(Math.log10(most) + 1e-9);
  return Array.from({ length: Math.max(last - first + 1, 0) }, (_, at) => 10 ** (first + at)).map((value) => [place(value), microseconds(value)]);
}

function rooflineSection(model, graph) {
  const bounded = model.times.map((each, at) => [each, at]).filter(([each]) => hasBounds(each));
  if (!bounded.length) return section("roofline", "Roofline", null, `No bounds of kernels: \`smartmem explain ${model.name}.onnx --schedules --json\` brings them with the times, on a machine with the device; give its output to this command too.`);
  const dots = bounded.flatMap(([each, at]) => Object.entries(each.kernels).filter(([, kernel]) => timesOff(kernel) !== null)
    .map(([name, kernel]) => ({ name, kernel, at, device: each.device, off: timesOff(kernel) })));
  const box = { left: 80, right: 900, top: 20, bottom: 520 };
  const launch = (dot, key) => dot.kernel[key] / (dot.kernel.launches || 1);
  const values = (key) => dots.map((dot) => launch(dot, key));
  const least = { bound: 0.7 * Math.min(...values("bound")), seconds: 0.7 * Math.min(...values("bound"), ...values("seconds")) };
  const most = { bound: 1.4 * Math.max(...values("bound")), seconds: 1.4 * Math.max(...values("bound"), ...values("seconds")) };
  const part = (value, key) => Math.log(value / least[key]) / Math.log(most[key] / least[key]);
  const x = (value) => box.left + (box.right - box.left) * part(value, "bound"), y = (value) => box.bottom - (box.bottom - box.top) * part(value, "seconds");
  const picture = s("svg", { class: "chart", viewBox: "0 0 1380 556" });
  axes(picture, box, decades(least.bound, most.bound, x), decades(least.seconds, most.seconds, y), "bound of a launch", "time of a launch");
  for (const times of [1, FAR]) {
    const from = Math.max(least.bound, least.seconds / times), to = Math.min(most.bound, most.seconds / times);
    picture.append(s("line", { x1: x(from), y1: y(times * from), x2: x(to), y2: y(times * to), stroke: "var(--ink)", "stroke-dasharray": times === 1 ? null : "4 4" }),
      s("text", { x: x(to) + 4, y: y(times * to) + 4 }, `${times}×`));
  }
  const largest = Math.max(...dots.map((dot) => dot.kernel.share || 0), 1e-12);
  for (const dot of dots.sort((a, b) => (b.kernel.share || 0) - (a.kernel.share || 0))) {
    const kernel = model.kernels.findIndex((each) => each.kernel === dot.name), open = kernel < 0 ? null : () => graph.select("kernel", kernel);
    picture.append(s("circle", { class: "hover dot", "data-kernel": dot.name, cx: x(launch(dot, "bound")), cy: y(launch(dot, "seconds")), r: 3 + 9 * Math.sqrt((dot.kernel.share || 0) / largest),
      fill: COLORS[dot.at % 8], opacity: 0.75, tabindex: open ? 0 : null, role: open ? "link" : null, style: open ? "cursor:pointer" : null, onclick: open || (() => {}),
      onkeydown: (event) => { if (open && event.key === "Enter") open(); } },
    tip(`${dot.name}\n${dot.device}\n${microseconds(launch(dot, "seconds"))}, bound ${microseconds(launch(dot, "bound"))} by ${dot.kernel.bound_by}: ${shown(dot.off, "times")}\n${shown(dot.kernel.share, "percent")} of the time${dot.kernel.off ? `\n${dot.kernel.off}` : ""}`)));
  }
  bounded.forEach(([each, at], row) => picture.append(s("circle", { cx: 945, cy: 30 + 26 * row, r: 5, fill: COLORS[at % 8] }), s("text", { x: 957, y: 34 + 26 * row }, each.device)));
  const slow = bounded.map(([each, at]) => {
    const share = dots.filter((dot) => dot.at === at && dot.off > FAR).reduce((sum, dot) => sum + (dot.kernel.share || 0), 0);
    return `${each.device}: ${shown(share, "percent")} of the time is in kernels above the dashed line.`;
  });
  return section("roofline", "Roofline", `Each dot is a kernel, the larger the more of the time it takes; on the line it is as fast as its device allows, on the dashed one it takes four times as long. A click goes to the kernel. ${slow.join(" ")}`, null, wide(picture));
}
