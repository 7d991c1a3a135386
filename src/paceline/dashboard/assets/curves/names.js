/**
 * Owns: what charts and the lines on them are called.
 * Not here: which there are (catalogue.js).
 * Invariant: a metric that has no words of its own is called by its key, never by nothing.
 */

import { COMPILER } from "./catalogue.js";
import { bareKey, processOf } from "../shared/keys.js";

const PLAIN = /^(train|evaluate)\/([a-z][a-z0-9_]*)$/;

/** The title of a chart. A metric of the user's own: "Accuracy (evaluation)". */
export function titleOf(chart, { words, hasWords }) {
  if (chart.key === null) return words(`curves.chart_${chart.id}`);
  const found = PLAIN.exec(chart.key);
  if (!found) return chart.key;
  const [, group, name] = found;
  const known = `curves.name_${name}`;
  const spoken = name.charAt(0).toUpperCase() + name.slice(1).replaceAll("_", " ");
  return words(`curves.title_${group}`, { name: hasWords(known) ? words(known) : spoken });
}

/** A line on a chart of several: "p95", "process 1", "peak, process 1"; null where the chart's title says it all. */
export function lineOf(key, chart, { words, hasWords }) {
  const bare = bareKey(key);
  const bares = new Set(chart.keys.map(bareKey));
  const known = `curves.line_${bare.replace("/", "_")}`;
  const metric = bares.size > 1 || key === COMPILER.key ? (hasWords(known) ? words(known) : bare) : null;
  const several = chart.keys.some((one) => one !== key && bareKey(one) === bare);
  const process = several ? words("curves.process", { process: processOf(key) }) : null;
  return [metric, process].filter(Boolean).join(", ") || null;
}
