// Draws the figures from the JSON in this page. Nothing is loaded from anywhere else.
"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);
const tip = document.getElementById("tip");
const hidden = new Set(); // names of lines that were switched off, in every figure
const chosen = {}; // figure id -> which of its choices is shown

// --- small helpers ------------------------------------------------------------------------------

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function draw(parent, tag, attributes = {}, text = "") {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== "") node.textContent = text;
  parent.append(node);
  return node;
}

function svgIn(node, width, height) {
  const svg = draw(node, "svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img" });
  return svg;
}

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colour = (i) => `var(--c${i % 10})`;
const widthOf = (node) => Math.max(200, node.clientWidth); // a window may have no width yet
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const short = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);

function number(value, unit = "") {
  const size = Math.abs(value);
  const digits = unit === "%" ? 1 : size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: unit === "%" ? 1 : 0 }) + (unit && ` ${unit}`);
}

function showTip(event, text) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = event.clientX + 14 + box.width > innerWidth ? event.clientX - box.width - 14 : event.clientX + 14;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${clamp(event.clientY - box.height - 12, 4, innerHeight - box.height - 4)}px`;
}

function hover(node, say) {
  const move = (event) => {
    const text = say(event);
    if (text) showTip(event, text);
    else tip.hidden = true;
  };
  node.addEventListener("pointermove", move);
  node.addEventListener("pointerdown", move);
  node.addEventListener("pointerleave", () => { say(null); tip.hidden = true; });
}

function nice(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw) || 10 * power;
  const ticks = [];
  for (let t = Math.ceil(low / step - 1e-9) * step; t <= high + 1e-9 * step; t += step) ticks.push(Math.abs(t) < step * 1e-9 ? 0 : t);
  return ticks;
}

function buttons(node, names, current, pick) {
  node.replaceChildren(...names.map((name, i) => {
    const button = make("button", { type: "button", "aria-pressed": i === current }, name);
    button.addEventListener("click", () => pick(i));
    return button;
  }));
}

function canvasIn(node, width, height) {
  const scale = devicePixelRatio || 1;
  const canvas = make("canvas", { width: Math.round(width * scale), height: Math.round(height * scale), role: "img" });
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  node.append(canvas);
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return [canvas, context];
}

function classColour(i, count) {
  const dark = document.documentElement.dataset.theme === "dark";
  if (count <= 10) return style(`--c${i}`);
  const hue = (i * 360) / count;
  return `hsl(${hue} ${dark ? 70 : 68}% ${dark ? [66, 56, 76][i % 3] : [46, 36, 56][i % 3]}%)`;
}

// --- lines --------------------------------------------------------------------------------------

function lines(figure, plot, controls) {
  const choices = figure.data.choices;
  const at = clamp(chosen[figure.id] || 0, 0, choices.length - 1);
  const again = figure.again || (() => render(figure));
  if (choices.length > 1) buttons(controls, choices.map((c) => c.name), at, (i) => { chosen[figure.id] = i; again(); });
  const { series, unit } = choices[at];
  const shown = series.filter((s) => !hidden.has(s.name));
  const width = widthOf(plot), height = clamp(width * 0.56, 210, 320);
  const box = { left: 46, right: 10, top: 10, bottom: 32 };
  const svg = svgIn(plot, width, height);
  const every = (shown.length ? shown : series).flatMap((s) => s.points);
  const xs = every.map((p) => p[0]), ys = every.flatMap((p) => p.slice(1));
  let [low, high] = [Math.min(...ys), Math.max(...ys)];
  const pad = (high - low || Math.abs(high) || 1) * 0.07;
  [low, high] = [low - pad, high + pad];
  if (unit === "%") [low, high] = [Math.max(0, low), Math.min(100, high)];
  else if (Math.min(...ys) >= 0) low = Math.max(0, low);
  if (high === low) high = low + 1;
  const x0 = Math.min(0, ...xs), x1 = Math.max(...xs, x0 + 1);
  const X = (x) => box.left + ((x - x0) / (x1 - x0)) * (width - box.left - box.right);
  const Y = (y) => height - box.bottom - ((y - low) / (high - low)) * (height - box.top - box.bottom);
  for (const t of nice(low, high, 5)) {
    draw(svg, "line", { x1: box.left, x2: width - box.right, y1: Y(t), y2: Y(t), style: "stroke:var(--grid)" });
    draw(svg, "text", { x: box.left - 7, y: Y(t) + 4, "text-anchor": "end" }, number(t).replace(/\.0$/, ""));
  }
  for (const t of nice(x0, x1, width < 420 ? 4 : 6)) draw(svg, "text", { x: X(t), y: height - 12, "text-anchor": "middle" }, t.toLocaleString("en"));
  draw(svg, "text", { x: 0, y: height - 12 }, figure.data.x);
  if (unit) draw(svg, "text", { x: 0, y: box.top + 1 }, unit);
  for (const [x, text] of figure.data.marks) {
    if (x <= x0 || x >= x1) continue;
    draw(svg, "line", { x1: X(x), x2: X(x), y1: box.top, y2: height - box.bottom, style: "stroke:var(--faint);stroke-dasharray:2 4" });
  }
  for (const s of shown) {
    if (s.points[0].length > 2) {
      const band = [...s.points.map((p) => [p[0], Math.min(p[3], high)]), ...[...s.points].reverse().map((p) => [p[0], Math.max(p[2], low)])];
      draw(svg, "path", { d: `M${band.map((p) => `${X(p[0])},${Y(p[1])}`).join("L")}Z`, style: `fill:${colour(s.colour)};opacity:.15` });
    }
  }
  for (const s of shown) {
    const path = s.points.map((p) => `${X(p[0]).toFixed(1)},${Y(p[1]).toFixed(1)}`).join("L");
    draw(svg, "path", { d: `M${path}`, style: `fill:none;stroke:${colour(s.colour)};stroke-width:2.2;stroke-linejoin:round;stroke-linecap:round${s.dash ? ";stroke-dasharray:5 5" : ""}` });
    if (s.points.length < 30) for (const p of s.points) draw(svg, "circle", { cx: X(p[0]), cy: Y(p[1]), r: 2.6, style: `fill:${colour(s.colour)}` });
  }
  for (const [x, text] of figure.data.marks) {
    const halo = "paint-order:stroke;stroke:var(--panel);stroke-width:4px;stroke-linejoin:round";
    if (x > x0 && x < x1) draw(svg, "text", { x: X(x) + 5, y: height - box.bottom - 6, style: halo }, text);
  }
  const guide = draw(svg, "line", { y1: box.top, y2: height - box.bottom, style: "stroke:var(--faint)", visibility: "hidden" });
  const steps = [...new Set(shown.flatMap((s) => s.points.map((p) => p[0])))];
  draw(svg, "rect", { x: 0, y: 0, width, height, fill: "transparent" });
  hover(svg, (event) => {
    if (!event || !steps.length) { guide.setAttribute("visibility", "hidden"); return ""; }
    const x = event.clientX - svg.getBoundingClientRect().left;
    const near = steps.reduce((a, b) => (Math.abs(X(b) - x) < Math.abs(X(a) - x) ? b : a));
    guide.setAttribute("x1", X(near));
    guide.setAttribute("x2", X(near));
    guide.setAttribute("visibility", "visible");
    const here = shown.map((s) => [s, s.points.find((p) => p[0] === near)]).filter(([, p]) => p).sort((a, b) => b[1][1] - a[1][1]);
    const said = here.map(([s, p]) => `${s.name}: ${number(p[1], unit)}${p.length > 2 ? ` ± ${number(p[3] - p[1])}` : ""}`);
    return [`${figure.data.x} ${near.toLocaleString("en")}`, ...said].join("\n");
  });
  if (series.length > 1) {
    plot.append(make("div", { class: "legend" }, ...series.map((s) => {
      const item = make("button", { type: "button", "aria-pressed": !hidden.has(s.name) }, make("i", { class: "dot", style: `background:${colour(s.colour)}` }), s.name);
      item.addEventListener("click", () => { if (!hidden.delete(s.name)) hidden.add(s.name); renderAll(); });
      return item;
    })));
  }
}

// --- bars ---------------------------------------------------------------------------------------

function stacks(figure, plot) {
  const rows = figure.data.rows, names = rows[0].parts.map((p) => p.name);
  const width = widthOf(plot), each = 50, svg = svgIn(plot, width, rows.length * each + 4);
  const most = Math.max(...rows.map((r) => r.parts.reduce((sum, p) => sum + p.seconds, 0)));
  rows.forEach((row, r) => {
    const whole = row.parts.reduce((sum, p) => sum + p.seconds, 0);
    draw(svg, "text", { x: 0, y: r * each + 13, style: "fill:var(--soft)" }, `${short(row.name, Math.floor(width / 9))}: ${number(whole, "s").replace(".0 s", " s")}`);
    let x = 0;
    row.parts.forEach((part, i) => {
      const wide = (part.seconds / most) * width;
      const bar = draw(svg, "rect", { x, y: r * each + 19, width: Math.max(0, wide - 1), height: 20, rx: 3, style: `fill:${colour(i)}` });
      const share = `${Math.round((100 * part.seconds) / whole)} %`;
      if (wide > 42) draw(svg, "text", { x: x + wide / 2, y: r * each + 33, "text-anchor": "middle", style: "fill:var(--panel);font-weight:600;pointer-events:none" }, share);
      hover(bar, (event) => event && `${row.name}\n${part.name}: ${number(part.seconds)} s, ${share}`);
      x += wide;
    });
  });
  plot.append(make("div", { class: "legend" }, ...names.map((name, i) => make("span", {}, make("i", { class: "dot", style: `background:${colour(i)}` }), name))));
}

function histogram(figure, plot) {
  const { edges, bars } = figure.data;
  const width = widthOf(plot), height = clamp(width * 0.5, 190, 290), bottom = 22, top = 8, left = 40;
  const svg = svgIn(plot, width, height), count = edges.length - 1;
  const totals = edges.slice(0, -1).map((_, i) => bars.reduce((sum, bar) => sum + bar.counts[i], 0));
  const most = Math.max(...totals, 1), Y = (n) => height - bottom - (n / most) * (height - bottom - top);
  for (const t of nice(0, most, 4)) {
    draw(svg, "line", { x1: left, x2: width, y1: Y(t), y2: Y(t), style: "stroke:var(--grid)" });
    draw(svg, "text", { x: left - 6, y: Y(t) + 4, "text-anchor": "end" }, t.toLocaleString("en"));
  }
  const wide = (width - left) / count, colours = bars.length > 1 ? ["var(--c0)", "var(--c1)"] : ["var(--c0)"];
  for (let i = 0; i < count; i++) {
    let below = 0;
    bars.forEach((bar, b) => {
      const n = bar.counts[i];
      if (n) draw(svg, "rect", { x: left + i * wide + 1, y: Y(below + n), width: wide - 2, height: Y(below) - Y(below + n), rx: 1.5, style: `fill:${colours[b]}` });
      below += n;
    });
    const area = draw(svg, "rect", { x: left + i * wide, y: 0, width: wide, height: height - bottom, fill: "transparent" });
    const range = `confidence ${Math.round(100 * edges[i])} to ${Math.round(100 * edges[i + 1])} %`;
    hover(area, (event) => event && [range, ...bars.map((bar) => `${bar.name}: ${bar.counts[i].toLocaleString("en")}`)].join("\n"));
  }
  for (const t of [0, 0.25, 0.5, 0.75, 1]) draw(svg, "text", { x: left + t * (width - left), y: height - 5, "text-anchor": t === 1 ? "end" : t ? "middle" : "start" }, `${100 * t} %`);
  if (bars.length > 1) plot.append(make("div", { class: "legend" }, ...bars.map((bar, b) => make("span", {}, make("i", { class: "dot", style: `background:${colours[b]}` }), bar.name))));
}

function shares(figure, plot) {
  const { classes, steps, true: truth, distance } = figure.data, C = classes.length;
  const holder = make("div"), beside = make("div"), choices = make("div", { class: "controls" }), over = make("div");
  beside.append(choices, over);
  plot.append(make("div", { class: "panels" }, holder, beside));
  lines({ id: "prior over time", data: figure.data.over_time, again: () => render(figure) }, over, choices);
  const width = widthOf(holder), long = Math.max(...classes.map((c) => c.length));
  const named = (width - 36) / C >= 13, turned = named && long * 7 > (width - 36) / C;
  const bottom = named ? (turned ? Math.min(100, 12 + long * 6) : 20) : 8, left = 34, top = 8, height = 230 + bottom;
  const svg = svgIn(holder, width, height);
  const most = Math.max(...figure.data.shares.flat(), ...(truth || [0])) * 1.08 || 1;
  const Y = (y) => height - bottom - (y / most) * (height - bottom - top), wide = (width - left) / C;
  for (const t of nice(0, most, 4)) {
    draw(svg, "line", { x1: left, x2: width, y1: Y(t), y2: Y(t), style: "stroke:var(--grid)" });
    draw(svg, "text", { x: left - 6, y: Y(t) + 4, "text-anchor": "end" }, t);
  }
  draw(svg, "text", { x: 0, y: 10 }, "%");
  const bars = classes.map((name, c) => {
    const x = left + c * wide, bar = draw(svg, "rect", { x: x + wide * 0.14, width: wide * 0.72, rx: Math.min(3, wide / 5), style: "fill:var(--c0)" });
    if (truth) draw(svg, "line", { x1: x + wide * 0.04, x2: x + wide * 0.96, y1: Y(truth[c]), y2: Y(truth[c]), style: `stroke:var(--ink);stroke-width:${C > 40 ? 1.2 : 2.2}` });
    if (named && turned) draw(svg, "text", { transform: `translate(${x + wide / 2 + 4},${height - bottom + 8}) rotate(-90)`, "text-anchor": "end" }, short(name, 15));
    else if (named) draw(svg, "text", { x: x + wide / 2, y: height - 5, "text-anchor": "middle" }, name);
    return bar;
  });
  let at = steps.length - 1;
  draw(svg, "rect", { x: left, y: 0, width: width - left, height, fill: "transparent" });
  hover(svg, (event) => {
    if (!event) return "";
    const c = Math.floor((event.clientX - svg.getBoundingClientRect().left - left) / wide);
    if (c < 0 || c >= C) return "";
    return [classes[c], `estimated: ${number(figure.data.shares[at][c], "%")}`, ...(truth ? [`labels: ${number(truth[c], "%")}`] : [])].join("\n");
  });
  const said = make("span"), input = make("input", { type: "range", min: 0, max: steps.length - 1, value: at, "aria-label": "evaluation" });
  const move = () => {
    at = Number(input.value);
    bars.forEach((bar, c) => { const y = Y(figure.data.shares[at][c]); bar.setAttribute("y", y); bar.setAttribute("height", Math.max(0, height - bottom - y)); });
    said.textContent = `step ${steps[at].toLocaleString("en")}${distance ? `, ${number(distance[at], "%")} off` : ""}`;
  };
  input.addEventListener("input", move);
  move();
  holder.append(make("div", { class: "slider" }, input, said));
}

// --- pixels -------------------------------------------------------------------------------------

function mix(from, to, share) {
  return `color-mix(in srgb, ${to} ${(100 * share).toFixed(1)}%, ${from})`;
}

function matrix(figure, plot) {
  const { classes, cells } = figure.data, C = classes.length;
  const long = Math.max(...classes.map((c) => c.length)), width = widthOf(plot), named = C <= 40;
  const left = named ? clamp(long * 6.4 + 12, 26, Math.min(104, width * 0.3)) : 8, top = named ? (long > 3 ? left : 24) : 8;
  const side = Math.min(width - left - 2, 520), cell = side / C;
  const [canvas, pen] = canvasIn(plot, width, top + side + 2);
  const offset = left + (width - left - side) / 2;
  const rows = new Array(C).fill(0), at = new Map();
  for (const [i, j, n] of cells) { rows[i] += n; at.set(i * C + j, n); }
  const [panel, right, wrong, ink, faint] = ["--panel", "--c0", "--c1", "--ink", "--soft"].map(style);
  pen.fillStyle = style("--back");
  pen.fillRect(offset, top, side, side);
  pen.font = "11px system-ui, sans-serif";
  const gap = cell > 9 ? 1 : 0;
  for (const [i, j, n] of cells) {
    const share = n / rows[i];
    pen.fillStyle = mix(panel, i === j ? right : wrong, 0.08 + 0.92 * (i === j ? share : Math.sqrt(share)));
    pen.fillRect(offset + j * cell, top + i * cell, cell - gap, cell - gap);
    if (cell >= 24) {
      pen.fillStyle = (i === j ? share : Math.sqrt(share)) > 0.55 ? panel : ink;
      pen.textAlign = "center";
      pen.textBaseline = "middle";
      pen.fillText(n.toLocaleString("en"), offset + (j + 0.5) * cell, top + (i + 0.5) * cell + 1);
    }
  }
  if (named) {
    pen.fillStyle = faint;
    classes.forEach((name, c) => {
      const text = short(name, 16);
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      if (cell >= 9) pen.fillText(text, offset - 6, top + (c + 0.5) * cell);
      pen.save();
      pen.translate(offset + (c + 0.5) * cell, top - 6);
      if (long > 3) { pen.rotate(-Math.PI / 2); pen.textAlign = "left"; pen.textBaseline = "middle"; } else { pen.textAlign = "center"; pen.textBaseline = "bottom"; }
      if (cell >= 9) pen.fillText(text, 0, 0);
      pen.restore();
    });
  }
  hover(canvas, (event) => {
    if (!event) return "";
    const area = canvas.getBoundingClientRect();
    const i = Math.floor((event.clientY - area.top - top) / cell), j = Math.floor((event.clientX - area.left - offset) / cell);
    if (i < 0 || j < 0 || i >= C || j >= C) return "";
    const n = at.get(i * C + j) || 0, share = rows[i] ? ` (${number((100 * n) / rows[i], "%")} of its ${rows[i].toLocaleString("en")})` : "";
    return `label ${classes[i]}\npredicted ${classes[j]}\n${n.toLocaleString("en")}${share}`;
  });
}

let highlighted = null; // a class, in both panels

function scatter(figure, plot, controls) {
  const { classes, panels, labelled } = figure.data, C = classes.length;
  const ways = labelled ? ["by label", "by prediction", "right or wrong"] : ["by prediction", "by confidence"];
  const at = clamp(chosen[figure.id] || 0, 0, ways.length - 1), way = ways[at];
  buttons(controls, ways, at, (i) => { chosen[figure.id] = i; render(figure); });
  const holder = make("div", { class: "panels" });
  plot.append(holder);
  const painters = panels.map((panel) => {
    const one = make("div", {}, make("h4", {}, panel.name));
    holder.append(one);
    return { one, panel };
  });
  const classOf = (p) => (way === "by prediction" ? p[3] : p[2]);
  const paint = painters.map(({ one, panel }) => {
    const side = widthOf(one), height = Math.min(side, 470), edge = 10;
    const [canvas, pen] = canvasIn(one, side, height);
    const place = (p) => [edge + p[0] * (side - 2 * edge), edge + (1 - p[1]) * (height - 2 * edge)];
    const radius = side < 340 ? 2 : 2.6;
    const all = panel.points.map((p) => [place(p), p]);
    hover(canvas, (event) => {
      if (!event) return "";
      const area = canvas.getBoundingClientRect(), x = event.clientX - area.left, y = event.clientY - area.top;
      let best = null, nearest = 144;
      for (const [[px, py], p] of all) { const d = (px - x) ** 2 + (py - y) ** 2; if (d < nearest) [best, nearest] = [p, d]; }
      return best && `${best[2] >= 0 ? `label ${classes[best[2]]}\n` : ""}predicted ${classes[best[3]]}, ${number(100 * best[4], "%")}`;
    });
    return () => {
      const [good, bad, weak, strong] = ["--c0", "--c1", "--grid", "--c0"].map(style);
      const paints = classes.map((_, c) => classColour(c, C));
      pen.clearRect(0, 0, side, height);
      for (const [[x, y], p] of way === "right or wrong" ? [...all].sort((a, b) => (a[1][2] !== a[1][3]) - (b[1][2] !== b[1][3])) : all) {
        const c = classOf(p);
        pen.globalAlpha = highlighted !== null && (labelled ? p[2] : p[3]) !== highlighted ? 0.07 : 0.82;
        pen.fillStyle = way === "right or wrong" ? (p[2] === p[3] ? good : bad) : way === "by confidence" ? mix(weak, strong, p[4]) : paints[c];
        pen.beginPath();
        pen.arc(x, y, radius, 0, 7);
        pen.fill();
      }
      pen.globalAlpha = 1;
    };
  });
  paint.forEach((p) => p());
  if (way === "right or wrong") {
    plot.append(make("div", { class: "legend" }, ...["right", "wrong"].map((name, i) => make("span", {}, make("i", { class: "dot", style: `background:${colour(i)}` }), name))));
  } else if (way !== "by confidence" && C <= 40) {
    plot.append(make("div", { class: "legend" }, ...classes.map((name, c) => {
      const item = make("button", { type: "button" }, make("i", { class: "dot", style: `background:${classColour(c, C)}` }), short(name, 20));
      const light = (value) => { highlighted = value; paint.forEach((p) => p()); };
      item.addEventListener("pointerenter", () => light(c));
      item.addEventListener("pointerleave", () => light(null));
      item.addEventListener("focus", () => light(c));
      item.addEventListener("blur", () => light(null));
      return item;
    })));
  }
}

// --- tables and images --------------------------------------------------------------------------

const COLUMNS = { // key: heading, and how a cell looks
  name: ["class"], images: ["images"], accuracy: ["accuracy", "%"], bar: [""], predicted: ["predicted"], share: ["estimated", "%"], true_share: ["labels", "%"],
};
let order = { key: null, up: true };

function perClass(figure, plot) {
  const { rows, absent } = figure.data;
  const has = (key) => key === "bar" ? has("accuracy") : rows.some((row) => row[key] !== undefined && row[key] !== null);
  const keys = Object.keys(COLUMNS).filter(has);
  const sorted = [...rows];
  if (order.key) {
    const value = (row) => row[order.key] ?? -Infinity;
    sorted.sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * (order.up ? 1 : -1));
  }
  const head = make("tr", {}, ...keys.map((key) => {
    if (key === "bar") return make("th", { "aria-label": "accuracy as a bar" });
    const cell = make("th", { "data-key": key, tabindex: 0, ...(key === "name" ? {} : { class: "number" }) }, COLUMNS[key][0]);
    if (order.key === key) cell.setAttribute("aria-sort", order.up ? "ascending" : "descending");
    const sort = () => { order = { key, up: order.key === key ? !order.up : key === "name" || key === "accuracy" }; render(figure); };
    cell.addEventListener("click", sort);
    cell.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
    return cell;
  }));
  const body = sorted.map((row) => make("tr", {}, ...keys.map((key) => {
    if (key === "name") return make("td", { class: "name", title: row.name }, row.name, ...(row.absent ? [make("span", { class: "badge" }, "probably absent")] : []));
    if (key === "bar") {
      const bar = make("span", { class: "bar" }, make("i", { style: `width:${row.accuracy ?? 0}%` }));
      if (row.before !== null && row.before !== undefined) bar.append(make("b", { style: `left:calc(${row.before}% - 1px)`, title: `before: ${number(row.before, "%")}` }));
      return make("td", { style: "width:28%" }, bar);
    }
    const value = row[key], cell = make("td", { class: "number" }, value === undefined || value === null ? "–" : number(value, COLUMNS[key][1]));
    if (key === "share" && row.low !== undefined && row.low !== null) cell.title = `between ${number(row.low, "%")} and ${number(row.high, "%")}`;
    return cell;
  })));
  if (absent.length) plot.append(make("p", { class: "note" }, `Probably absent from the target: ${absent.slice(0, 12).join(", ")}${absent.length > 12 ? ` and ${absent.length - 12} more` : ""}.`));
  plot.append(make("div", { class: "scroll tall" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...body))));
}

function images(figure, plot) {
  for (const kind of figure.data.kinds) {
    plot.append(make("h4", {}, kind.name));
    plot.append(make("div", { class: "images" }, ...kind.images.map((card) => {
      const wrong = card.label && card.label !== card.prediction;
      const picture = card.src ? make("img", { src: card.src, alt: card.path, loading: "lazy" }) : make("span", { class: "gone" });
      const said = make("b", {}, card.prediction), sure = ` ${Math.round(100 * card.confidence)} %`;
      return make("div", { class: wrong ? "wrong" : "", title: card.path }, picture, said, sure, ...(card.label ? [make("br"), `is ${card.label}`] : []));
    })));
  }
}

// --- the page -----------------------------------------------------------------------------------

const KINDS = { lines, stacks, matrix, histogram, shares, scatter, classes: perClass, images };

function render(figure) {
  const node = document.getElementById(figure.id);
  const [controls, plot] = [node.querySelector(".controls"), node.querySelector(".plot")];
  plot.style.minHeight = `${plot.offsetHeight}px`; // so that the page does not jump
  controls.replaceChildren();
  plot.replaceChildren();
  node.querySelector(".words").textContent = figure.why ? "" : figure.words;
  if (figure.why) plot.append(make("p", { class: "why" }, `Not shown: ${figure.why}.`));
  else KINDS[figure.kind](figure, plot, controls);
  plot.style.minHeight = "";
  plot.querySelectorAll("svg, canvas").forEach((drawn) => drawn.setAttribute("aria-label", `${figure.title}. ${figure.words}`));
  node.dataset.drawn = figure.why ? "why" : "yes";
}

function renderAll() {
  tip.hidden = true;
  const select = document.getElementById("run");
  const run = DATA.runs[select ? Number(select.value) : 0];
  for (const figure of [...DATA.figures, ...(run ? run.figures : [])]) render(figure);
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const setTheme = (name) => { document.documentElement.dataset.theme = name; };
setTheme(dark.matches ? "dark" : "light");
dark.addEventListener("change", () => { setTheme(dark.matches ? "dark" : "light"); renderAll(); });
document.getElementById("theme").addEventListener("click", () => { setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); renderAll(); });
document.getElementById("run")?.addEventListener("change", renderAll);
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; renderAll(); } });
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
renderAll();
document.documentElement.dataset.ready = "yes";
