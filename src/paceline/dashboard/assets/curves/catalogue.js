/**
 * Owns: which metrics stand on which chart, in which order, and their units on an axis.
 * Not here: drawing (chart.js), values (series.js), what charts and lines are called (names.js).
 * Invariant: every metric of a selected run is on exactly one chart; a metric of the user's own gets one to itself.
 */

import { bareKey } from "../shared/keys.js";

/** What the compiler reserves of a device: not a series, but a number of the compiled program. */
export const COMPILER = { key: "program/peak_bytes" };
/** Charts in the order of the page. The first key is drawn solid, the next ones dashed. */
const CHARTS = [
  { id: "loss", keys: ["train/loss", "evaluate/loss"] },
  { id: "learning_rate", keys: ["train/learning_rate"] },
  { id: "gradient_norm", keys: ["train/gradient_norm"] },
  { id: "samples", keys: ["speed/recent_samples_per_s"] },
  { id: "latency", keys: ["speed/step_p50_s", "speed/step_p95_s"] },
  { id: "input", keys: ["input/wait_s"], each_process: true },
  { id: "memory", keys: ["memory/in_use_bytes", "memory/peak_bytes", COMPILER.key], each_process: true },
  { id: "process_memory", keys: ["memory/process_bytes"], each_process: true },
  { id: "communication", keys: ["communication/share"] },
  { id: "in_flight", keys: ["speed/rows_in_flight", "speed/little_rows"] },
  { id: "noise", keys: ["train/noise_scale_rows"] },
];
/** The server computes these from others; live events do not carry them. */
export const DERIVED = new Set([
  "speed/step_p50_s", "speed/step_p95_s", "speed/recent_step_s", "speed/recent_samples_per_s", "speed/little_rows",
  "input/wait_share", "communication/share",
]);
/** Keys of evaluations: a chart each, and a mark at each step that has one. */
export const EVALUATION = /^evaluate\//;
const MOST_PROCESSES = 8;
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const OWN_DASHES = { [COMPILER.key]: "dash", "memory/peak_bytes": "dot" };

/** How the line of the n-th key of a chart is drawn. */
export function dashOf(key, index) {
  return OWN_DASHES[key] ?? DASHES[index % DASHES.length];
}

/**
 * The charts for the metrics that the selected runs have.
 *
 * @param {Object[][]} metrics lists of `{key, unit, description, count}`, one a run
 * @returns {{id: string, key: string|null, keys: string[], other: boolean}[]} `key` names a chart that has no words
 */
export function chartsFor(metrics) {
  const known = new Map();
  for (const metric of metrics.flat()) if (metric.count !== 0) known.set(metric.key, metric);
  const taken = new Set();
  const charts = [];
  for (const chart of CHARTS) {
    const keys = chart.keys.flatMap((key) => variants(key, known, chart.each_process));
    for (const key of keys) taken.add(key);
    if (keys.length) charts.push({ id: chart.id, key: null, keys, other: false });
  }
  const left = [...known.keys()].filter((key) => !taken.has(key));
  for (const key of left.filter((one) => EVALUATION.test(one) && !one.endsWith("rows") && bareKey(one) === one)) {
    charts.push({ id: `key:${key}`, key, keys: [key], other: false });
    taken.add(key);
  }
  for (const key of left.filter((one) => !taken.has(one) && bareKey(one) === one)) {
    const keys = variants(key, known, true);
    charts.push({ id: `key:${key}`, key, keys, other: true });
  }
  return charts;
}

function variants(key, known, each_process) {
  const keys = known.has(key) ? [key] : [];
  if (!each_process) return keys;
  const more = [...known.keys()].filter((one) => one !== key && bareKey(one) === key);
  return [...keys, ...more.slice(0, MOST_PROCESSES - 1)];
}

/** How an axis writes a metric: Plotly's tick format and what follows the number. */
export function axisFormat(key) {
  const bare = bareKey(key);
  if (bare.endsWith("_per_s")) return { tickformat: "~s", ticksuffix: "" };
  if (bare.endsWith("_s")) return { tickformat: "~s", ticksuffix: "s" };
  if (bare.endsWith("_bytes")) return { tickformat: "~s", ticksuffix: "B" };
  if (bare.endsWith("share") || bare.endsWith("accuracy")) return { tickformat: ".3~p", ticksuffix: "" };
  if (bare.endsWith("rows")) return { tickformat: ",~r", ticksuffix: "" };
  return { tickformat: "~g", ticksuffix: "" };
}
