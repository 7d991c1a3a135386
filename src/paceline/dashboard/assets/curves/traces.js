/**
 * Owns: from series to what Plotly draws of one chart: traces, layout, and the numbers under it.
 * Not here: elements (chart.js), asking for series (series.js), what is new since the last drawing (tail.js).
 * Invariant: names reach Plotly escaped (it reads a few tags in text); a value that is not finite is a gap; a curve of
 *   stretches shows its means as a line and all that lies between their least and greatest values as a faint band.
 */

import { COMPILER, axisFormat, dashOf } from "./catalogue.js";
import { metric as metricText } from "../shared/format.js";
import { lines, looks, spread } from "./marks.js";
import { lineOf, titleOf } from "./names.js";
import { bounds } from "./points.js";

const FEW_POINTS = 15;
/** Marks stand on rails under the curves, one a run; the height of one in parts of the plot. */
const RAIL = 0.062;
const MOST_RAILS = 5;
const TIMES = [[180, 1, " s"], [10800, 60, " min"], [Infinity, 3600, " h"]];
/** Of the plot [px]: what is laid over it (tail.js) lies by them too. */
export const MARGIN = { l: 58, r: 12, t: 8, b: 26 };
/** Room beside the curves in parts of their extent: above and below, or below zero for the width of a line that lies
 * there; after the last step of a run that goes on. */
const ROOM_Y = 0.06;
const ROOM_LINE = 0.008;
const ROOM_X = 0.04;
const NAME_LENGTH = 44; // of a line where the reader points, in characters
const ROOM_STEPS = 10;

/** Text that Plotly shows as it is. */
export function escaped(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/**
 * Exponential smoothing of 0 (none) to 1; starts without a bias to zero, and goes on after a gap.
 *
 * @param {(number|null)[]} values
 * @param {number} strength what is left of a point at the next one
 * @param {number[]} [weights] 1 for a whole point: a stretch that has just begun counts by its steps
 */
export function smooth(values, strength, weights) {
  let [mean, weight] = [0, 0];
  return values.map((value, at) => {
    if (!Number.isFinite(value)) return null;
    const kept = weights ? strength ** weights[at] : strength;
    mean = kept * mean + (1 - kept) * value;
    weight = kept * weight + (1 - kept);
    return weight ? mean / weight : value;
  });
}

/** The curve itself as it is drawn: `{x, y}`, null for a gap. */
export function curvePoints(run, series, { view, across }) {
  const y = series.value.map((value) => (Number.isFinite(value) ? value : null));
  const weights = series.thinned ? series.count.map((one) => Math.min(1, one / series.size)) : undefined;
  return { x: across(run, series), y: view.smoothing ? smooth(y, view.smoothing, weights) : y };
}

/** How a view's x axis is reached from a series: a new list, which Plotly keeps. */
export function acrossOf(view, time) {
  return view.axis === "time" ? time.of : (run, series) => series.step.slice();
}

/**
 * One chart.
 *
 * @param {Object} chart of catalogue.js
 * @param {Object} options
 * @param {Object} options.context
 * @param {import("./series.js").SeriesBook} options.book
 * @param {Object} options.view {axis: "step"|"time", smoothing, range: {from, to}|null, hidden: Set of mark kinds}
 * @param {boolean} options.log
 * @returns {{traces: Object[], layout: Object, rows: Object[], waiting: boolean, drawn: Object[], frame: Object}} rows:
 *   see `numbers`; drawn: the lines; frame: what part of the values the plot shows
 */
export function figure(chart, { context, book, view, log }) {
  const { lines: drawn, waiting } = linesOf(chart, { context, book });
  const time = timeAxis(context.state);
  const across = acrossOf(view, time);
  const curves = drawn.map((one) => ({ ...one, points: curvePoints(one.run, one.series, { view, across }) }));
  const shown = inUnits(view, time) ?? withRoom(extent(curves.map(({ points }) => points.x)), { context, view, time });
  const marks = markTraces({ context, book, view, time, shown });
  const rows = drawn.map((one) => numbers(one));
  const range = verticalRange(curves, { shown, log });
  return {
    traces: [
      ...curves.flatMap((one) => bandTrace(one, { context, log, range })),
      ...curves.flatMap((one) => curveTraces(one, { context, view, chart, across })),
      ...marks.traces,
    ],
    layout: layout(chart, { context, log, shown, view, time, marks, range }),
    rows,
    waiting,
    drawn: curves,
    frame: { shown, range, log, floor: marks.rails * RAIL + 0.02 },
  };
}

/** The lines of a chart that have values: `{run, key, series, dash}`; and whether others are still to come. */
export function linesOf(chart, { context, book }) {
  const found = [];
  let waiting = false;
  for (const run of context.state.selected) {
    chart.keys.forEach((key, index) => {
      const series = book.get(run, key);
      if (series?.state === "loading") waiting = true;
      if (series?.state === "ready" && series.step.length) found.push({ run, key, series, dash: dashOf(key, index) });
    });
  }
  return { lines: found, waiting };
}

/** The zoomed range in the units of the axis; it is kept in steps or seconds. */
function inUnits({ range, axis }, time) {
  if (range === null) return null;
  const factor = axis === "time" ? time.factor : 1;
  return { from: range.from / factor, to: range.to / factor };
}

/** Room for the next steps of a run that goes on, so that the axis moves now and then and not with each. */
function withRoom({ from, to }, { context: { state }, view, time }) {
  if (!state.selected.some((run) => state.runs.get(run)?.state === "running")) return { from, to };
  const least = view.axis === "time" ? 1 / time.factor : ROOM_STEPS;
  const room = Math.max(least, (to - from) * ROOM_X);
  const grid = 10 ** Math.floor(Math.log10(room));
  return { from, to: Math.ceil((to + room / 2) / grid) * grid };
}

function nameOf({ run, key }, { context, chart }) {
  const several = context.state.selected.length > 1;
  const line = lineOf(key, chart, context) ?? (several ? null : titleOf(chart, context));
  const most = Math.max(12, NAME_LENGTH - 1 - (line?.length ?? 0)); // what the line is must not be cut off
  const name = run.length > most ? `…${run.slice(1 - most)}` : run;
  return [several ? name : null, line].filter(Boolean).join(" ");
}

function curveTraces({ run, key, series, dash, points }, { context, view, chart, across }) {
  const color = context.runColour(run);
  const form = axisFormat(key);
  const few = points.y.length <= FEW_POINTS && key !== COMPILER.key;
  const base = {
    type: "scatter", ...points, connectgaps: false, mode: few ? "lines+markers" : "lines", marker: { size: 4, color },
    name: escaped(nameOf({ run, key }, { context, chart })), legendgroup: `${run} ${key}`,
    meta: { run, key, part: "line" }, line: { color, width: view.smoothing ? 1.8 : 1.6, dash },
    hovertemplate: `%{y:${hoverDigits(form)}}${form.ticksuffix}`,
  };
  if (series.thinned) {
    base.text = stretchTexts(key, series, { context, view });
    base.hovertemplate += "%{text}";
  }
  if (!view.smoothing || series.thinned) return [base]; // a band says enough of what is smoothed away
  const faint = {
    ...base, x: across(run, series), y: series.value.map((value) => (Number.isFinite(value) ? value : null)),
    mode: "lines", opacity: 0.28, line: { color, width: 1 }, hoverinfo: "skip", hovertemplate: null, showlegend: false,
    meta: { run, key, part: "raw" },
  };
  return [faint, base];
}

/** What a point of a thinned curve stands for: its least and greatest value, and how many steps. */
function stretchTexts(key, { low, high, count }, { context: { words }, view }) {
  const kind = view.smoothing ? "curves.stretch_smoothed" : "curves.stretch";
  return count.map((n, at) => (n > 1 ? escaped(` · ${words(kind, {
    n, low: metricText(key, low[at]), high: metricText(key, high[at]),
  })}`) : ""));
}

/** From the least to the greatest value of each stretch: an outline that is filled, one for each part between gaps. */
function bandTrace({ run, key, series, points }, { context, log, range }) {
  if (!series.thinned) return [];
  const [x, y] = [[], []];
  const bottom = log ? 10 ** range[0] : null;
  let part = [];
  const close = () => {
    if (part.length) {
      if (x.length) [x[x.length], y[y.length]] = [null, null];
      for (const at of part) [x[x.length], y[y.length]] = [points.x[at], series.high[at]];
      for (const at of part.reverse()) {
        [x[x.length], y[y.length]] = [points.x[at], log ? Math.max(bottom, series.low[at]) : series.low[at]];
      }
    }
    part = [];
  };
  series.low.forEach((low, at) => (low === null ? close() : part.push(at)));
  close();
  const color = context.runColour(run);
  return [{
    type: "scatter", mode: "lines", x, y, fill: "toself", fillcolor: faded(color, 0.17), line: { width: 0, color },
    hoverinfo: "skip", showlegend: false, name: "", meta: { run, key, part: "band" },
  }];
}

/** A colour `#rrggbb` that lets others through. */
function faded(colour, opacity) {
  const [red, green, blue] = [1, 3, 5].map((at) => Number.parseInt(colour.slice(at, at + 2), 16));
  return `rgba(${red},${green},${blue},${opacity})`;
}

/**
 * The values that are shown, with room around them; logarithms on a logarithmic axis. Where no value is negative the
 * axis begins at zero at the lowest, with room for the width of a line that lies there.
 */
function verticalRange(curves, { shown, log }) {
  let [low, high] = [Infinity, -Infinity];
  const take = (value) => {
    if (!Number.isFinite(value) || (log && value <= 0)) return;
    const here = log ? Math.log10(value) : value;
    if (here < low) low = here;
    if (here > high) high = here;
  };
  for (const { series, points } of curves) {
    const lists = series.thinned ? [series.low, series.high] : [series.value];
    points.x.forEach((x, at) => {
      if (x >= shown.from && x <= shown.to) for (const list of lists) take(list[at]);
    });
  }
  if (!(low <= high)) return log ? [-1, 1] : [0, 1];
  const flat = high - low <= 1e-6 * Math.max(Math.abs(low), Math.abs(high)); // constant but for rounding
  const room = flat ? (log ? 1 : Math.abs(high) * 0.1 || 1) : (high - low) * ROOM_Y;
  const bottom = log || low < 0 ? low - room : Math.max(low - room, -ROOM_LINE * (high + room));
  return [bottom, high + room];
}

function hoverDigits({ tickformat }) {
  return { "~s": ".4~s", ".3~p": ".4~p", "~g": ".5~g" }[tickformat] ?? tickformat;
}

/** Time since the start of each run, in a unit that suits the longest: the same on every chart. */
export function timeAxis(state) {
  const start = (run) => state.runs.get(run)?.started_s ?? 0;
  const longest = Math.max(1, ...state.selected.map((run) => (state.runs.get(run)?.updated_s ?? 0) - start(run)));
  const [, factor, unit] = TIMES.find(([most]) => longest < most);
  return { unit, factor, start, of: (run, series) => series.time.map((one) => (one - start(run)) / factor) };
}

function extent(lists) {
  const firsts = lists.filter((list) => list.length).map((list) => Math.min(list[0], list.at(-1)));
  const lasts = lists.filter((list) => list.length).map((list) => Math.max(list[0], list.at(-1)));
  if (!firsts.length) return { from: 0, to: 1 };
  const [from, to] = [Math.min(...firsts), Math.max(...lasts)];
  return from === to ? { from: from < 0 ? from - 1 : Math.max(0, from - 1), to: to + 1 } : { from, to };
}

function markTraces({ context, book, view, time, shown }) {
  const { words, hasWords, state, runColour, colour } = context;
  const traces = [];
  const placed = [];
  const several = state.selected.length > 1;
  let rails = 0;
  for (const run of state.selected) {
    const kinds = new Map();
    for (const mark of book.marks.get(run)?.values() ?? []) {
      if (view.hidden.has(mark.kind)) continue;
      const x = view.axis === "time" ? (mark.time_s - time.start(run)) / time.factor : mark.step;
      if (x < shown.from || x > shown.to) continue;
      if (!kinds.has(mark.kind)) kinds.set(mark.kind, []);
      const kind = hasWords(`mark.${mark.kind}`) ? words(`mark.${mark.kind}`) : mark.kind;
      kinds.get(mark.kind).push({ x, kind, text: mark.text ? `${kind}: ${mark.text}` : kind });
      placed.push({ kind: mark.kind, x });
    }
    const signs = [...kinds].flatMap(([kind, marks]) => spread(marks, {
      width: shown.to - shown.from, joined: (n, mark) => words("curves.joined", { n, text: mark.kind }),
    }).map((sign) => ({ kind, ...sign })));
    if (!signs.length) continue;
    const height = Math.min(rails, MOST_RAILS - 1) + 0.5;
    rails += 1;
    traces.push({
      type: "scatter", mode: "markers", yaxis: "y2", x: signs.map((sign) => sign.x),
      y: signs.map(() => height), cliponaxis: false, showlegend: false,
      text: signs.map((sign) => escaped(shortened(sign.text))),
      name: several ? escaped(run) : "", hovertemplate: several ? "%{text}" : "%{text}<extra></extra>",
      marker: {
        symbol: signs.map((sign) => looks(sign.kind).symbol),
        size: signs.map((sign) => (looks(sign.kind).symbol.endsWith("-open") ? 11 : 7)),
        color: signs.map((sign) => (several ? runColour(run) : colour(looks(sign.kind).colour))),
        line: { width: signs.map((sign) => (looks(sign.kind).symbol.endsWith("-open") ? 1.2 : 0)) },
      },
    });
  }
  return { traces, shapes: lines(placed, { colour }), rails: Math.min(rails, MOST_RAILS) };
}

function shortened(text) {
  return text.length > 60 ? `${text.slice(0, 59)}…` : text;
}

function layout(chart, { context, log, shown, view, time, marks, range }) {
  const { colour } = context;
  const clear = "rgba(0,0,0,0)";
  const axis = {
    color: colour("--quiet"), gridcolor: colour("--line"), linecolor: colour("--line"), zeroline: false,
    tickfont: { size: 11 },
  };
  return {
    autosize: true, margin: { ...MARGIN }, paper_bgcolor: clear, plot_bgcolor: clear, showlegend: false,
    font: { family: context.fontFamily(), size: 11, color: colour("--text") },
    hovermode: "x unified", hoversubplots: "axis", hoverdistance: 24, shapes: marks.shapes,
    dragmode: coarse() ? false : "zoom",
    hoverlabel: {
      bgcolor: colour("--surface"), bordercolor: colour("--edge"), font: { color: colour("--text"), size: 11 },
      namelength: NAME_LENGTH,
    },
    xaxis: {
      ...axis, anchor: "free", position: 0, showgrid: false, ticks: "outside", ticklen: 3, tickcolor: colour("--line"),
      range: [shown.from, shown.to], nticks: 6, fixedrange: coarse(), ...acrossFormat(view, time, context),
    },
    yaxis: {
      ...axis, domain: [marks.rails * RAIL + 0.02, 1], fixedrange: true, nticks: 5, exponentformat: "power",
      ...(log ? { type: "log", tickformat: "~g" } : { type: "linear", ...axisFormat(chart.keys[0]) }),
      range,
    },
    yaxis2: {
      domain: [0, Math.max(1, marks.rails) * RAIL], range: [0, Math.max(1, marks.rails)], visible: false,
      fixedrange: true,
    },
  };
}

function acrossFormat(view, time, { words }) {
  if (view.axis === "time") return { ticksuffix: time.unit, tickformat: "~g", hoverformat: ".4~g" };
  return { tickformat: ",~r", hoverformat: ",d", unifiedhovertitle: { text: `${words("curves.step")} %{x:,d}` } };
}

/** On a touch screen a drag scrolls the page; zooming is by the fields of the toolbar. */
function coarse() {
  return window.matchMedia("(pointer: coarse)").matches;
}

/** What the table says of a line: over the steps that are here, whatever part of them the plot shows. */
export function numbers({ run, key, series, dash }) {
  const { last, thinned } = series;
  return { run, key, dash, thinned, ...bounds(series), last: last.value, step: last.step };
}
