"use strict";
// Draws what /sparsefleet/figures tells. Names of jobs and roles come from outside: they are only ever set as text.

const LEAST_SECONDS = 60;
const REFRESH_MS = 5000, ANSWER_MS = 10000;
const SPANS = [[300, "5 min"], [900, "15 min"], [3600, "1 h"]];
const MOST_LINES = 40; // of a chart; more could not be told apart
const MOST_TOLD = 20; // at the pointer
// Every other line is dashed: where two lie over each other, both are seen.
const COLORS = 8, DASHES = ["", "7 4", "14 3", "2 3", "10 3 2 3", "4 6"];
const LEFT = 58, RIGHT = 10, TOP = 8, BOTTOM = 22, HEIGHT = 190;

const asked = new URLSearchParams(location.search);
const base = location.pathname.slice(0, location.pathname.lastIndexOf("/d/")); // there may be a proxy's path before it
const byId = (id) => document.getElementById(id);

function make(tag, parent, properties = {}) {
  const node = Object.assign(document.createElement(tag), properties);
  parent.append(node);
  return node;
}

function draw(tag, parent, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

// --- numbers and times in words

function clock(options) {
  const form = { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...options };
  try {
    return new Intl.DateTimeFormat("en-GB", { ...form, timeZone: asked.get("timezone") || undefined });
  } catch {
    return new Intl.DateTimeFormat("en-GB", form); // "browser", and whatever else is no time zone
  }
}
const minutes = clock({}), seconds = clock({ second: "2-digit" });
const atMinute = (time) => minutes.format(time * 1000), atSecond = (time) => seconds.format(time * 1000);

function scaled(value, base, units, digits) {
  let power = 0;
  while (power < units.length - 1 && Math.abs(value) >= base ** (power + 1) * 0.9995) power += 1;
  const small = value / base ** power;
  const places = Number.isInteger(small) ? 0 : Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(small) || 1)));
  return { text: small.toFixed(Math.min(places, digits)), unit: units[power] };
}

function duration(value) {
  const whole = Math.round(value), hours = Math.floor(whole / 3600), rest = Math.floor((whole % 3600) / 60);
  if (hours) return rest ? `${hours} h ${rest} min` : `${hours} h`;
  if (rest) return whole % 60 ? `${rest} min ${whole % 60} s` : `${rest} min`;
  return `${value >= 10 || Number.isInteger(value) ? whole : value.toFixed(1)} s`;
}

function words(value, unit, digits = 4) {
  if (unit === "s") return duration(value);
  if (unit === "bytes") {
    const { text, unit: binary } = scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"], 3);
    return `${text} ${binary}`;
  }
  if (unit === "short") {
    const { text, unit: thousands } = scaled(value, 1000, ["", "k", "M", "G", "T"], digits);
    return text + (thousands && ` ${thousands}`);
  }
  return Number.isInteger(value) ? String(value) : value.toFixed(digits);
}

// --- axes

function stepOf(range, wanted, unit, whole) {
  let rough = range / wanted;
  if (unit === "s" && rough > 1) {
    const even = [2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];
    return even.find((step) => step >= rough) ?? Math.ceil(rough / 86400) * 86400;
  }
  const power = unit === "bytes" ? 1024 ** Math.max(0, Math.floor(Math.log(rough) / Math.log(1024))) : 1;
  rough /= power;
  const ten = 10 ** Math.floor(Math.log10(rough));
  const step = ten * [1, 2, 2.5, 5, 10].find((factor) => factor * ten >= rough * 0.999) * power;
  return whole ? Math.max(1, Math.ceil(step)) : step;
}

function scaleOf(values, unit, fromZero) {
  const whole = unit !== "bytes" && values.every(Number.isInteger);
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (fromZero) low = Math.min(0, low);
  if (high === low) high = low === 0 || whole ? low + 1 : low + Math.abs(low) * 0.02;
  const step = stepOf(high - low, 4, unit, whole);
  low = Math.floor(low / step + 1e-9) * step;
  high = Math.ceil(high / step - 1e-9) * step;
  const ticks = [];
  for (let at = 0; low + at * step <= high + step / 2; at += 1) ticks.push(low + at * step);
  const places = Math.max(0, ...[step, low].map((value) => Number(value.toPrecision(6)).toFixed(9).replace(/\.?0+$/, "").split(".")[1]?.length ?? 0));
  const label = (tick) => (unit === "none" ? tick.toFixed(Math.min(places, 8)) : words(Math.abs(tick) < step / 1e6 ? 0 : tick, unit, 3));
  return { low, high, ticks, label };
}

// --- lines

const colors = new Map(); // a role keeps its colour in all charts, and from one look to the next
function color(keys) {
  for (const key of [...colors.keys()]) if (!keys.includes(key)) colors.delete(key);
  const taken = new Set(colors.values());
  for (const key of keys.filter((one) => !colors.has(one))) {
    let number = 0;
    while (taken.has(number)) number += 1;
    taken.add(number);
    colors.set(key, number);
  }
}
function styleOf(key) {
  const number = colors.get(key);
  return { stroke: `var(--c${number % COLORS})`, "stroke-dasharray": DASHES[(Math.floor(number / COLORS) * 2 + (number % 2)) % DASHES.length] };
}
const keyOf = (line) => JSON.stringify([line.job, line.role]);
const natural = new Intl.Collator("en", { numeric: true });
const inOrder = (one, other) => natural.compare(one.job, other.job) || natural.compare(one.role, other.role);
const newest = (line) => line.points[line.points.length - 1];

function swatch(parent, key) {
  const svg = draw("svg", parent, { viewBox: "0 0 16 8" });
  const style = styleOf(key), dashes = { "stroke-dasharray": style["stroke-dasharray"] };
  // As a property: the page's policy forbids style attributes.
  draw("line", svg, { x1: 0, x2: 16, y1: 4, y2: 4, "stroke-width": 3, ...dashes }).style.stroke = style.stroke;
}

class Chart {
  constructor(name) {
    this.name = name;
    this.box = make("section", byId("charts"));
    this.title = make("h2", this.box);
    this.what = make("p", this.box, { className: "what" });
    this.svg = draw("svg", this.box, { role: "img" });
    this.legend = make("div", this.box, { className: "legend" });
    this.pointer = null;
    this.svg.addEventListener("pointermove", (event) => {
      this.pointer = { x: event.clientX, y: event.clientY };
      this.point();
    });
    this.svg.addEventListener("pointerleave", () => {
      this.pointer = null;
      this.point();
    });
  }

  show(told, lines, manyJobs) {
    this.unit = told.unit;
    this.title.textContent = told.title;
    this.what.textContent = this.what.title = told.text;
    this.svg.setAttribute("aria-label", told.title);
    this.nameOf = (line) => (manyJobs ? `${line.job} · ${line.role}` : line.role);
    this.lines = lines.slice(0, MOST_LINES);
    this.paint(told);
    this.tell(told.staleBefore, lines.length - this.lines.length);
    this.point();
  }

  paint(told) {
    const width = Math.max(this.svg.clientWidth, 200), right = width - RIGHT, bottom = HEIGHT - BOTTOM;
    const values = this.lines.flatMap((line) => line.points.map((point) => point[1]));
    const { low, high, ticks, label } = scaleOf(values, told.unit, told.from_zero);
    this.begin = told.now - told.seconds;
    this.x = (time) => LEFT + ((time - this.begin) / told.seconds) * (right - LEFT);
    this.y = (value) => bottom - ((value - low) / (high - low)) * (bottom - TOP);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.replaceChildren();
    for (const tick of ticks) {
      draw("line", this.svg, { class: "grid", x1: LEFT, x2: right, y1: this.y(tick), y2: this.y(tick) });
      draw("text", this.svg, { x: LEFT - 6, y: this.y(tick) + 4, "text-anchor": "end" }, label(tick));
    }
    const step = [15, 30, 60, 180, 600].find((one) => told.seconds / one <= 6), name = step < 60 ? atSecond : atMinute;
    for (let time = Math.ceil(this.begin / step) * step; time <= told.now; time += step) {
      const x = this.x(time);
      draw("line", this.svg, { class: "grid", x1: x, x2: x, y1: TOP, y2: bottom });
      if (x > LEFT + 22 && x < right - 20) draw("text", this.svg, { x, y: HEIGHT - 6, "text-anchor": "middle" }, name(time));
    }
    const gap = Math.max(told.stale_seconds, told.seconds / 60); // nothing was told there: the line is broken
    for (const line of this.lines) {
      let path = "", before = -Infinity;
      for (const [time, value] of line.points) {
        path += `${time - before > gap ? "M" : "L"}${this.x(time).toFixed(1)} ${this.y(value).toFixed(1)}`;
        before = time;
      }
      const style = styleOf(keyOf(line));
      line.path = draw("path", this.svg, { class: "line", d: line.points.length > 1 ? path : `${path}h2`, "stroke-dasharray": style["stroke-dasharray"] });
      line.path.style.stroke = style.stroke;
    }
    this.cross = draw("line", this.svg, { class: "cross", y1: TOP, y2: bottom, visibility: "hidden" });
  }

  tell(staleBefore, more) {
    this.legend.replaceChildren();
    for (const line of this.lines) {
      const item = make("div", this.legend, { className: newest(line)[0] < staleBefore ? "item over" : "item" });
      swatch(item, keyOf(line));
      make("span", item, { textContent: this.nameOf(line) });
      make("b", item, { textContent: words(newest(line)[1], this.unit) });
      item.addEventListener("pointerenter", () => this.choose(line));
      item.addEventListener("pointerleave", () => this.choose(null));
    }
    if (more) make("div", this.legend, { className: "item over", textContent: `and ${more} more, not drawn: choose a job` });
  }

  choose(chosen) {
    this.svg.classList.toggle("aside", chosen !== null);
    for (const line of this.lines) line.path.classList.toggle("chosen", line === chosen);
  }

  // What each line says at the pointer's time.
  point() {
    const tip = byId("tip");
    if (!this.pointer) {
      if (this.cross) this.cross.setAttribute("visibility", "hidden");
      if (tip.chart === this) tip.hidden = true;
      return;
    }
    const x = this.pointer.x - this.svg.getBoundingClientRect().left;
    const near = this.lines
      .map((line) => ({ line, at: line.points.reduce((best, point) => (Math.abs(this.x(point[0]) - x) < Math.abs(this.x(best[0]) - x) ? point : best)) }))
      .filter(({ at }) => Math.abs(this.x(at[0]) - x) < 20)
      .sort((one, other) => other.at[1] - one.at[1]);
    tip.chart = this;
    tip.hidden = !near.length;
    this.cross.setAttribute("visibility", near.length ? "visible" : "hidden");
    if (!near.length) return;
    const time = near[0].at[0];
    this.cross.setAttribute("x1", this.x(time));
    this.cross.setAttribute("x2", this.x(time));
    tip.replaceChildren();
    make("div", tip, { textContent: atSecond(time), className: "over" });
    for (const { line, at } of near.slice(0, MOST_TOLD)) {
      const item = make("div", tip, { className: "item" });
      swatch(item, keyOf(line));
      make("span", item, { textContent: this.nameOf(line) });
      make("b", item, { textContent: words(at[1], this.unit) });
    }
    if (near.length > MOST_TOLD) make("div", tip, { textContent: `and ${near.length - MOST_TOLD} more`, className: "over" });
    const beside = this.pointer.x + 16 + tip.offsetWidth > innerWidth ? this.pointer.x - 16 - tip.offsetWidth : this.pointer.x + 16;
    tip.style.left = `${Math.max(4, beside)}px`;
    tip.style.top = `${Math.max(4, Math.min(this.pointer.y, innerHeight - tip.offsetHeight - 8))}px`;
  }
}

// --- the page

const charts = new Map();
let told = null, chosenJob = "", span = spanAsked();

function spanAsked() {
  const found = /^now-(\d+)([smhd])$/.exec(asked.get("from") || "");
  const wanted = found ? Number(found[1]) * { s: 1, m: 60, h: 3600, d: 86400 }[found[2]] : SPANS[1][0];
  return (SPANS.find(([seconds]) => seconds >= wanted) ?? SPANS[SPANS.length - 1])[0];
}

function showSpans() {
  byId("spans").replaceChildren();
  for (const [seconds, text] of SPANS) {
    const button = make("button", byId("spans"), { textContent: text });
    button.setAttribute("aria-pressed", String(seconds === span));
    button.addEventListener("click", () => {
      span = seconds;
      showSpans();
      refresh();
    });
  }
}

function showJobs(jobs) {
  const select = byId("job");
  if (!jobs.includes(chosenJob)) chosenJob = "";
  select.hidden = jobs.length < 2;
  const named = JSON.stringify(jobs);
  if (select.named === named) return; // it may be open just now
  select.named = named;
  select.replaceChildren(new Option(`all ${jobs.length} jobs`, ""), ...jobs.map((job) => new Option(job, job)));
  select.value = chosenJob;
}

function stateOf(lines, staleBefore) {
  const live = lines.filter((line) => newest(line)[0] >= staleBefore);
  const jobs = [...new Set(live.map((line) => line.job))].sort(natural.compare);
  if (!lines.length) return "";
  if (!jobs.length) return "No job of SparseFleet is running; these are figures of what has ended.";
  const count = (kind) => {
    const number = new Set(live.filter((line) => line.role.startsWith(kind)).map(keyOf)).size;
    return number === 1 ? `1 ${kind}` : `${number} ${kind}s`;
  };
  const speeds = told.charts.find((chart) => chart.name === "samples_per_second").lines;
  const speed = speeds.filter((line) => live.includes(line)).reduce((sum, line) => sum + newest(line)[1], 0);
  const who = jobs.length === 1 ? jobs[0] : `${jobs.length} jobs`;
  return `${who}: ${count("server")}, ${count("worker")}, ${words(speed, "short")} samples/s in all`;
}

function show() {
  const jobs = [...new Set(told.charts.flatMap((chart) => chart.lines.map((line) => line.job)))].sort(natural.compare);
  showJobs(jobs);
  const staleBefore = told.now - told.stale_seconds, wanted = (line) => !chosenJob || line.job === chosenJob;
  const all = told.charts.flatMap((chart) => chart.lines).filter(wanted).sort(inOrder);
  // From the first figure on: a job that has just begun fills its charts.
  const first = all.reduce((time, line) => Math.min(time, line.points[0][0]), told.now - LEAST_SECONDS);
  const seconds = Math.min(told.seconds, told.now - first);
  color([...new Set(all.map(keyOf))]);
  byId("state").textContent = stateOf(all, staleBefore);
  byId("nothing").hidden = all.length > 0;
  for (const chart of told.charts) {
    const lines = chart.lines.filter(wanted).sort(inOrder);
    if (!charts.has(chart.name)) charts.set(chart.name, new Chart(chart.name));
    const drawn = charts.get(chart.name);
    drawn.box.hidden = !lines.length;
    if (lines.length) drawn.show({ ...chart, now: told.now, seconds, stale_seconds: told.stale_seconds, staleBefore }, lines, jobs.length > 1 && !chosenJob);
  }
}

function warn(troubles) {
  byId("troubles").hidden = !troubles.length;
  byId("troubles").textContent = troubles.join("\n");
}

async function refresh() {
  const seconds = span;
  try {
    const answer = await fetch(`${base}/sparsefleet/figures?seconds=${seconds}`, { signal: AbortSignal.timeout(ANSWER_MS) });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const found = await answer.json();
    if (seconds !== span) return; // another span was chosen since
    told = found;
  } catch (error) {
    warn([`sparsefleet ray-metrics does not answer (${error.message}): is it still running?`]);
    return;
  }
  warn(told.troubles);
  show();
}

async function keepOn() {
  if (!document.hidden) await refresh();
  setTimeout(keepOn, REFRESH_MS);
}

byId("job").addEventListener("change", (event) => {
  chosenJob = event.target.value;
  colors.clear(); // few roles have the first ones
  show();
});
addEventListener("resize", () => told && show());
document.addEventListener("visibilitychange", () => document.hidden || refresh());
showSpans();
keepOn();
