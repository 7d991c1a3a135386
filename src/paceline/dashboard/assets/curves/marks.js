/**
 * Owns: marks: what each kind looks like, which live events make one, drawing them on a rail above the step axis.
 * Not here: the marks of past events (the server finds them).
 * Invariant: no mark is dropped: where several of a kind would lie on each other, one sign tells their number.
 */

import { number, toNumber } from "../shared/format.js";

/** Kinds in the order of the legend: Plotly's symbol, the colour variable, a line over the chart, shown at first. */
export const KINDS = {
  restart: { symbol: "triangle-right", colour: "--warn", line: "dash", shown: true },
  checkpoint: { symbol: "diamond", colour: "--good", line: null, shown: true },
  skip: { symbol: "x", colour: "--warn", line: null, shown: true },
  divergence: { symbol: "star", colour: "--bad", line: "solid", shown: true },
  nonfinite: { symbol: "cross", colour: "--bad", line: "dot", shown: true },
  notice: { symbol: "circle", colour: "--info", line: null, shown: true },
  evaluation: { symbol: "circle-open", colour: "--info", line: null, shown: false },
  audit: { symbol: "square-open", colour: "--good", line: null, shown: false },
  start: { symbol: "triangle-right-open", colour: "--quiet", line: null, shown: false },
  end: { symbol: "square", colour: "--quiet", line: null, shown: true },
};
const FALLBACK = { symbol: "hexagon", colour: "--quiet", line: null, shown: true };
/** Signs of one kind beside each other on a chart. */
const MOST_A_CHART = 28;
const MOST_LINES = 40;

export function looks(kind) {
  return Object.hasOwn(KINDS, kind) ? KINDS[kind] : FALLBACK;
}

/** What makes two tellings of a mark one: by the list of the server and by a live event. */
export function markId({ kind, step, text }) {
  return `${kind} ${step} ${kind === "notice" ? text : ""}`;
}

/**
 * The marks that a live event makes: as the server finds them, so that both tellings of one are one.
 *
 * @param {Object} event
 * @param {{process: number, known: Map}} options known: the marks of the run so far, by `markId`
 */
export function marksOf(event, { process, known }) {
  const { step, time_s } = event;
  const mark = (kind, text = event.text) => ({ kind, step, time_s, process, text: text ?? "" });
  const differs = event.kind === "audit" && Boolean(event.text || event.where?.length);
  if (process !== 0 && !differs && event.kind !== "notice") return []; // what all processes do, process 0 tells
  if (event.kind === "step") {
    const bad = Object.entries(event.values ?? {}).filter(([, value]) => !Number.isFinite(toNumber(value)));
    return bad.length ? [mark("nonfinite", bad.map(([key, value]) => `${key}: ${value}`).join(", "))] : [];
  }
  if (event.kind === "start") {
    const begun = [...known.values()].some((one) => one.kind === "start" || one.kind === "restart");
    return [mark(begun ? "restart" : "start")];
  }
  if (event.kind === "evaluation") return [];
  return [mark(differs ? "divergence" : event.kind)];
}

/** An evaluation has no mark of its own in the API: each value of its series is one. */
export function evaluationMarks(key, { step, time, value }) {
  return step.map((one, at) => ({
    kind: "evaluation", step: one, time_s: time[at], process: 0, text: `${key.split("/").at(-1)} ${number(value[at])}`,
  }));
}

/**
 * Marks of one kind and run that lie apart: {x, text}. Neighbours closer than a sign are joined.
 *
 * @param {{x: number, kind: string, text: string}[]} marks
 * @param {{width: number, joined: (n: number, mark: Object) => string}} options width: of the chart, in units of x
 */
export function spread(marks, { width, joined }) {
  const least = width / MOST_A_CHART;
  const groups = [];
  for (const mark of [...marks].sort((a, b) => a.x - b.x)) {
    const last = groups.at(-1);
    if (last && mark.x - last.x < least) {
      last.number += 1;
      last.text = joined(last.number, mark);
    } else groups.push({ x: mark.x, text: mark.text, number: 1 });
  }
  return groups;
}

/** Vertical lines for what splits a run in two. */
export function lines(marks, { colour }) {
  return marks.filter(({ kind }) => looks(kind).line).slice(-MOST_LINES).map(({ kind, x }) => ({
    type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0: 0, y1: 1, layer: "below",
    line: { color: colour(looks(kind).colour), width: 1, dash: looks(kind).line },
  }));
}
