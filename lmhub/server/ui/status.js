// The status panel: polls the server while it is open, and only then. Rates are what the counters gained since before.

import * as api from "./api.js";
import { element } from "./markdown.js";
import { rate } from "./view.js";

const EVERY_MS = 1000;
const KEPT = 60; // samples of the curve
const SVG = "http://www.w3.org/2000/svg";

const panel = document.getElementById("status");
const button = document.getElementById("toggle-status");
const curves = new Map(); // model id -> tokens/s, the newest last
let before = null;
let timer = null;

button.addEventListener("click", () => toggle(panel.hidden));
document.addEventListener("visibilitychange", () => !panel.hidden && schedule(0));

function toggle(open) {
  panel.hidden = !open;
  button.setAttribute("aria-expanded", String(open));
  before = null;
  clearTimeout(timer);
  if (open) poll();
}

function schedule(wait) {
  clearTimeout(timer);
  if (!panel.hidden && !document.hidden) timer = setTimeout(poll, wait);
}

async function poll() {
  try {
    const now = await api.status();
    if (panel.hidden) return;
    render(now);
    before = now;
  } catch (error) {
    if (panel.hidden) return;
    panel.replaceChildren(element("h2", ["Status"]), element("p", [error.message], "note"));
    before = null;
  }
  schedule(EVERY_MS);
}

function render(now) {
  const title = element("h2", ["Status"]);
  const phase = element("span", [now.phase], `phase ${now.phase}`);
  const models = now.models.map((model) => about(model, speeds(now, model)));
  const foot = element("p", [`lmhub ${now.version} · up ${span(now.uptime_s)}`], "note");
  panel.replaceChildren(element("div", [title, phase], "panel-head"), ...models, memory(now), foot);
}

// Tokens per second since the last look; null at the first one.
function speeds(now, model) {
  if (!curves.has(model.id)) curves.set(model.id, Array(KEPT).fill(0));
  const then = before?.models.find((one) => one.id === model.id);
  const dt = now.clock_s - (before?.clock_s ?? 0);
  if (!then || dt <= 0) return null;
  const found = {
    prefill: (model.prefill_tokens - then.prefill_tokens) / dt,
    decode: (model.decode_tokens - then.decode_tokens) / dt,
  };
  curves.set(model.id, [...curves.get(model.id), found.decode].slice(-KEPT));
  return found;
}

function about(model, now) {
  const busy = now && (now.decode > 0 || now.prefill > 0);
  const cached = model.prompt_tokens ? model.cached_tokens / model.prompt_tokens : 0;
  const tiles = element("dl", [
    ...tile("Running", `${model.running} of ${model.batch}`),
    ...tile("Waiting", `${model.queued}`),
    ...tile("Writing", `${rate(busy ? now.decode : model.last_decode_per_s)} tok/s`, busy ? "now" : "last answer"),
    ...tile("Reading", `${rate(busy ? now.prefill : model.last_prefill_per_s)} tok/s`, busy ? "now" : "last answer"),
    ...tile("Cached", `${Math.round(cached * 100)} %`, "of prompt tokens"),
    ...tile("Kept", `${model.parked} of ${model.kv_slots}`, "sequences"),
  ], "tiles");
  const name = element("h3", [model.id]);
  if (!model.healthy) name.append(element("span", ["failing"], "phase draining"));
  const label = element("p", ["Written tokens per second, last minute"], "label");
  return element("section", [name, tiles, label, curve(curves.get(model.id)), slots(model)]);
}

function tile(name, value, detail = "") {
  const described = element("dd", [value]);
  if (detail) described.append(element("small", [detail]));
  return [element("div", [element("dt", [name]), described])];
}

// Written tokens per second over the last minute.
function curve(values) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${KEPT - 1} 20`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("class", "curve");
  svg.setAttribute("role", "img");
  const top = Math.max(...values, 1);
  svg.setAttribute("aria-label", `Written tokens per second in the last minute, at most ${rate(Math.max(...values, 0))}`);
  const points = values.map((value, n) => `${n},${(19.5 - (18.5 * value) / top).toFixed(2)}`).join(" ");
  svg.append(shape("polygon", `0,20 ${points} ${KEPT - 1},20`), shape("polyline", points));
  return svg;
}

function shape(kind, points) {
  const made = document.createElementNS(SVG, kind);
  made.setAttribute("points", points);
  return made;
}

// One bar for each sequence that may run at once: prompt and answer, out of the context.
function slots(model) {
  const rows = Array.from({ length: model.batch }, (_, n) => {
    const slot = model.slots[n];
    const held = slot ? slot.n_past : 0;
    const read = slot ? Math.min(slot.n_prompt, held) : 0;
    const bar = element("div", [part("read", read, model.n_ctx), part("written", held - read, model.n_ctx)], "meter");
    const said = !slot ? "idle" : `${slot.is_paused ? "paused, " : ""}${held} of ${model.n_ctx}`;
    return element("li", [element("span", [`Slot ${n + 1}`]), bar, element("span", [said], "note")], slot ? "" : "idle");
  });
  return element("ul", rows, "slots");
}

function part(kind, value, whole) {
  const made = element("div", [], kind);
  made.style.width = `${Math.min(100, (100 * value) / whole)}%`; // through the object model, which the policy allows
  return made;
}

function memory({ memory: { process, available, total } }) {
  const own = process ?? 0;
  const others = Math.max(0, total - available - own);
  const bar = element("div", [part("written", own, total), part("read", others, total)], "meter wide");
  const said = `${process === null ? "" : `${bytes(own)} here, `}${bytes(available)} of ${bytes(total)} free`;
  return element("section", [element("h3", ["Memory"]), bar, element("p", [said], "note")]);
}

function bytes(count) {
  if (count >= 9.95e9) return `${(count / 1e9).toFixed(0)} GB`;
  return count >= 9.995e8 ? `${(count / 1e9).toFixed(1)} GB` : `${(count / 1e6).toFixed(0)} MB`;
}

function span(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}
