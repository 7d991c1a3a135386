/**
 * Owns: what stands around the pipeline's drawing: the facts L, T, P; the bottleneck in words; the bar of the step's
 *   critical path; the stages as a table; the text that stands for the picture.
 * Not here: the drawing, the panel's life.
 * Invariant: whatever the picture shows also stands here as text.
 */

import { el, svg } from "../shared/dom.js";
import { tone } from "./draw.js";
import { number } from "./model.js";
import { columnTable } from "../shared/table.js";
import { textWidth } from "../shared/text_width.js";
import { sentence } from "../shared/words.js";
import { hatch } from "../shared/hatch.js";

/** L, T and P = L x T beside the rows really in flight; the step's time. */
export function facts({ state, words, format }) {
  const fact = (key, value, { sign = "", unknown = false } = {}) =>
    el(
      "div",
      { class: "pl-fact" },
      el(
        "dt",
        {},
        sign && el("abbr", { class: "pl-symbol", title: words(`pipeline.fact.${key}_help`) }, sign),
        words(`pipeline.fact.${key}`),
      ),
      el("dd", { class: unknown ? "pl-none" : null }, value),
    );
  const rows = (value) => (number(value) === null ? "–" : words("pipeline.rows", { count: format.count(value) }));
  const operator = (text) => el("div", { class: "pl-operator", "aria-hidden": "true" }, text);
  return [
    fact("latency", format.seconds(state.latency_s ?? null), { sign: "L" }),
    operator("×"),
    fact("throughput", format.rate(state.samples_per_s ?? null), { sign: "T" }),
    operator("="),
    fact("little", rows(state.little_rows), { sign: "P" }),
    fact("in_flight", rows(state.rows_in_flight)),
    fact("step", format.seconds(state.step_s ?? null)),
  ];
}

/** The bottleneck: which, and why; or that none was found. */
export function verdict({ state, words, format }) {
  if (!state.bottleneck) return [words("pipeline.no_bottleneck")];
  const { stage, why, words: said } = state.bottleneck;
  const text = said ? sentence(withShares(said, format)) : why;
  const name = words(`pipeline.stage.${stage}`);
  return [
    el("strong", { class: `pl-flag-word ${tone(stage)}` }, words("pipeline.bottleneck")),
    " ",
    el("strong", {}, name),
    `: ${text}`,
  ];
}

/** A sentence, and the sentences in it, with shares as the page writes them. */
function withShares(said, format) {
  const values = Object.entries(said.values).map(([name, value]) => {
    if (name === "share") return [name, format.percent(value)];
    return [name, value?.key ? withShares(value, format) : value];
  });
  return { ...said, values: Object.fromEntries(values) };
}

/** The step's critical path as one bar, in parts that are shares of the step's time; what is not known stays empty. */
export function bar(scene) {
  const { state, stages, words, format } = scene;
  const parts = stages.filter((stage) => (stage.share ?? 0) > 0);
  const sum = parts.reduce((total, stage) => total + stage.share, 0);
  const whole = Math.max(1, sum);
  let at = 0;
  const found = [];
  for (const stage of parts) {
    found.push(...segment(scene, stage, { at: at / whole, share: stage.share / whole }));
    at += stage.share;
  }
  const rest = Math.max(0, 1 - sum);
  const label = words("pipeline.bar_label", { list: parts.map((stage) => item(scene, stage)).join(", ") });
  return [
    el("p", { class: "pl-bar-title" }, words("pipeline.bar_title", { seconds: format.seconds(state.step_s ?? null) })),
    svg(
      "svg",
      { class: "pl-bar-picture", width: "100%", height: 26, role: "img", "aria-label": label },
      hatch("pl-hatch", 1.2),
      svg("rect", { x: 0, y: 0, width: "100%", height: 26, rx: 3, class: "pl-bar-rest" }),
      found,
    ),
    el(
      "ul",
      { class: "pl-bar-key" },
      parts.map((stage) => el("li", {}, swatch(`pl-part-${stage.id}`, stage.basis), item(scene, stage))),
      rest > 0.005 && el("li", {}, swatch("pl-bar-rest"), words("pipeline.bar_rest", { share: format.percent(rest) })),
    ),
  ];
}

function item({ words, format }, stage) {
  const name = words(stage.id === "input" ? "pipeline.input_wait" : `pipeline.stage.${stage.id}`);
  const basis = stage.basis === "measured" ? "" : ` (${words(`pipeline.basis.${stage.basis}`)})`;
  return `${name} ${format.percent(stage.share)}${basis}`;
}

function segment(scene, stage, { at, share }) {
  const place = { x: percent(at), width: percent(share), y: 0, height: 26 };
  const name = scene.words(stage.id === "input" ? "pipeline.input_wait" : `pipeline.stage.${stage.id}`);
  const label = `${name} ${scene.format.percent(stage.share)}`;
  return [
    svg("rect", { ...place, class: `pl-part pl-part-${stage.id}` }, svg("title", {}, item(scene, stage))),
    stage.basis === "modelled" && svg("rect", { ...place, class: "pl-hatch", fill: "url(#pl-hatch)" }),
    ...written(label, { place, kind: `pl-part-${stage.id}`, room: share * scene.layout.width }),
  ];
}

/** A label on its part of the bar if there is room, on the plain colour: hatching would make it hard to read. */
function written(label, { place, kind, room }) {
  const width = textWidth(label, 12, 600) + 10;
  if (width + 6 > room) return [];
  const ground = svg("rect", { x: 4, y: 5, width, height: 16, class: kind });
  return [svg("svg", { ...place, class: "pl-part-text" }, ground, svg("text", { x: 9, y: 17 }, label))];
}

function swatch(kind, basis) {
  return svg(
    "svg",
    { class: "pl-swatch", width: 10, height: 10, "aria-hidden": "true" },
    svg("rect", { width: 10, height: 10, rx: 2, class: kind }),
    basis === "modelled" && svg("rect", { width: 10, height: 10, fill: "url(#pl-hatch)" }),
  );
}

function percent(share) {
  return `${Math.round(share * 10000) / 100}%`;
}

/** The stages as a table: for those who read rather than look, and for screen readers. */
export function stageTable({ stages, words, format }) {
  const right = new Set(["time", "share"]);
  const columns = ["stage", "time", "share", "basis", "shape"].map((column) => ({
    text: words(`pipeline.column.${column}`),
    right: right.has(column),
  }));
  const rows = stages.map((stage) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, words(`pipeline.stage.${stage.id}`)),
      el("td", { class: "right" }, format.seconds(stage.seconds)),
      el("td", { class: "right" }, shareWords(stage, { words, format })),
      el("td", {}, basisWords(stage, { words, format })),
      el("td", { class: "mono" }, stage.shape === null ? "–" : shapeWords(stage.shape)),
    ),
  );
  return columnTable(columns, rows, { role: "region", tabindex: 0, "aria-label": words("pipeline.title") });
}

/** A stage that runs beside the step holds nothing up, so it has a time and no share: nothing is missing there. */
function shareWords({ share, seconds }, { words, format }) {
  if (share !== null) return format.percent(share);
  return seconds === null ? "–" : words("pipeline.overlapped");
}

/** Forward and backward has what the other stages leave of the step: beside it stands what the model itself says. */
function basisWords({ id, basis, seconds, detail }, { words, format }) {
  const text = words(`pipeline.basis.${basis}`);
  const modelled_s = number(detail.modelled_s);
  if (id === "output") return "–";
  const isRest = id === "forward_backward" && basis === "modelled" && modelled_s !== null && modelled_s < seconds;
  if (!isRest) return text; // the model's own stages, scaled to the step if they are longer
  return words("pipeline.rest_basis", { basis: text, seconds: format.seconds(modelled_s) });
}

function shapeWords({ copies, all }) {
  const text = all.join("; ");
  return copies ? `${copies} × [${text}]` : text;
}

/** The picture in words. */
export function summary({ state, stages, words, format }) {
  const parts = stages
    .filter((stage) => stage.seconds !== null)
    .map((stage) =>
      words("pipeline.summary_stage", {
        name: words(`pipeline.stage.${stage.id}`),
        seconds: format.seconds(stage.seconds),
        basis: words(`pipeline.basis.${stage.basis}`),
      }),
    );
  const slow = state.bottleneck
    ? words("pipeline.summary_bottleneck", { name: words(`pipeline.stage.${state.bottleneck.stage}`) })
    : "";
  if (number(state.step) === null) return words("pipeline.summary_none");
  return words("pipeline.summary", {
    devices: number(state.devices) ?? "?",
    step: state.step,
    rate: format.rate(state.samples_per_s ?? null),
    parts: parts.join(", "),
    bottleneck: slow,
  });
}
