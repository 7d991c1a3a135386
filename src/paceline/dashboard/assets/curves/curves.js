/**
 * Owns: the Curves panel: which charts there are, when each is drawn, the toolbar's choices, zooming all at once.
 * Not here: one chart (chart.js), when Plotly draws it (rounds.js), series (series.js), the toolbar's elements
 *   (bar.js), L, T and P (flight.js).
 * Invariant: a live step is seen on every chart in view with the next frame.
 */

import { COMPILER, chartsFor } from "./catalogue.js";
import { makeChart } from "./chart.js";
import { makeBar } from "./bar.js";
import { el, show } from "../shared/dom.js";
import { makeFlight } from "./flight.js";
import { KINDS } from "./marks.js";
import { firstNotBelow, nearest } from "./points.js";
import { makeRounds } from "./rounds.js";
import { SeriesBook } from "./series.js";
import { acrossOf, timeAxis } from "./traces.js";

/** A curve has about as many points as the chart has pixels; fewer on a narrow one would make short runs into means. */
const LEAST_POINTS = 400;
const MOST_POINTS = 1000;
const IN_VIEW_MARGIN = "160px";

/** See app.js for the contract. */
export function mount(element, page) {
  const palette = makePalette(page);
  const context = { ...page, ...palette.colours };
  const { state, on, words } = context;
  const view = {
    axis: "step", smoothing: 0, range: null,
    hidden: new Set(Object.keys(KINDS).filter((kind) => !KINDS[kind].shown)),
  };
  const charts = new Map();
  const inView = new Set();
  const live = new Set(); // runs with values that are not on the charts yet
  let liveFrame = null;
  const book = new SeriesBook({ api: context.api, state, onChange });
  const bar = makeBar({ context, book, view, onView: viewChanged, onZoom: zoomSteps });
  const flight = makeFlight(context);
  const main = el("div", { class: "charts" });
  const other = el("div", { class: "charts" });
  const more = el("details", { class: "more-charts" }, el("summary", {}, words("curves.other")), other);
  const nothing = el("p", { class: "empty" });
  show(element, flight.element, bar.element, nothing, main, more);

  const rounds = makeRounds({ context, element, inView, chartOf: (id) => byId(id)?.chart, prepare: want, failed });

  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const id = target.dataset.chart;
      if (isIntersecting) inView.add(id);
      else inView.delete(id);
      if (isIntersecting) rounds.draw(id);
    }
  }, { rootMargin: IN_VIEW_MARGIN });

  function arrange() {
    const wanted = chartsFor(state.selected.map(metricsOf));
    const ids = new Set(wanted.map((chart) => signature(chart)));
    for (const [id, { chart }] of [...charts]) {
      if (ids.has(id)) continue;
      observer.unobserve(chart.element);
      chart.close(rounds.plotly());
      charts.delete(id);
      inView.delete(chart.id);
    }
    for (const spec of wanted) {
      const id = signature(spec);
      if (!charts.has(id)) {
        const chart = makeChart(spec, { context, book, view, onZoom: zoomAxis, onChange: () => rounds.draw(spec.id) });
        charts.set(id, { spec, chart });
        rounds.draw(spec.id);
      }
      (spec.other ? other : main).append(charts.get(id).chart.element);
      observer.observe(charts.get(id).chart.element);
    }
    more.hidden = !wanted.some((chart) => chart.other);
    nothing.hidden = wanted.length > 0;
    const reading = state.selected.some((run) => !state.details.has(run));
    nothing.textContent = words(reading ? "curves.reading" : "curves.none");
  }

  function metricsOf(run) {
    const { metrics = [], program } = state.details.get(run) ?? {};
    return Number.isFinite(program?.memory?.peak_bytes) ? [...metrics, COMPILER] : metrics;
  }

  /** Charts are made anew when their keys change, not when only values do. */
  function signature({ id, keys }) {
    return `${id}\n${keys.join("\n")}`;
  }

  function byId(id) {
    return [...charts.values()].find(({ spec }) => spec.id === id);
  }

  function want(id) {
    const { spec, chart } = byId(id);
    const width = chart.plot.clientWidth;
    book.points = Math.min(MOST_POINTS, Math.max(LEAST_POINTS, book.points, Math.ceil(width / 100) * 100));
    for (const run of state.selected) for (const key of spec.keys) book.want(run, key);
  }

  function failed(why) {
    nothing.hidden = false;
    nothing.textContent = words("curves.no_plotly", { why });
  }

  function redrawAll() {
    for (const { spec } of charts.values()) rounds.draw(spec.id);
  }

  function onChange(run, keys, is_live) {
    if (!state.selected.includes(run)) return;
    if (is_live) {
      live.add(run);
      liveFrame ??= requestAnimationFrame(extendAll);
      return;
    }
    const changed = new Set(keys ?? []);
    for (const { spec } of charts.values()) {
      if (!keys?.length || spec.keys.some((key) => changed.has(key))) rounds.draw(spec.id); // no key: marks alone
    }
    bar.showMarks();
    placeCursor();
  }

  /** What came live, on every chart in view; Plotly draws those that have no room for it, and all now and then. */
  function extendAll() {
    liveFrame = null;
    const across = acrossOf(view, timeAxis(state));
    for (const { spec, chart } of charts.values()) {
      if (!inView.has(spec.id)) rounds.later(spec.id);
      else if (chart.extend(across)) rounds.later(spec.id);
      else rounds.draw(spec.id);
    }
    live.clear();
  }

  /** The step that the pipeline shows, when it does not show the latest. */
  function placeCursor() {
    const { run, step } = state.replayed ?? {};
    const there = step !== null && step !== undefined && state.selected.includes(run);
    const x = there ? across(run, step) : null;
    const text = x === null ? "" : context.format.count(step);
    for (const { chart } of charts.values()) chart.point(x, text);
  }

  /** Where a step of a run lies on the x axis; null if that is not known. */
  function across(run, step) {
    if (view.axis === "step") return step;
    const series = longest(run);
    const time = timeAxis(state);
    return series ? (series.time[nearest(series.step, step)] - time.start(run)) / time.factor : null;
  }

  function longest(run) {
    return [...book.whole].filter(([id, one]) => id.startsWith(`${run}\n`) && one.step.length).map(([, one]) => one)
      .reduce((best, one) => (best && best.step.length >= one.step.length ? best : one), null);
  }

  function viewChanged({ axis = view.axis, smoothing = view.smoothing } = {}) {
    const isTurned = axis !== view.axis;
    Object.assign(view, { axis, smoothing });
    if (isTurned) zoomAxis(null);
    placeCursor();
    redrawAll();
  }

  /** @param {number[]|null} given range of the x axis as it is now: steps, or time in the axis's unit. */
  function zoomAxis(given) {
    const factor = view.axis === "time" ? timeAxis(state).factor : 1;
    const range = given?.map((one) => one * factor) ?? null;
    if (range === null) {
      view.range = null;
      book.setRanges(null);
    } else {
      view.range = { from: Math.min(...range), to: Math.max(...range) };
      book.setRanges(new Map(state.selected.map((run) => [run, stepsWithin(run, view.range)])));
    }
    bar.showRange(view.axis === "step" ? view.range : null, view.range !== null);
    redrawAll();
  }

  /** In either order; beyond the last step there is nothing to draw, so the range ends there and is a step at least. */
  function zoomSteps(from, to) {
    if (view.axis !== "step") viewChanged({ axis: "step" });
    if (from === null && to === null) {
      zoomAxis(null);
      return;
    }
    const last = lastStep();
    const [low, high] = [from ?? 0, to ?? last].map((step) => Math.min(step, last)).sort((a, b) => a - b);
    zoomAxis(low < high ? [low, high] : [Math.max(0, low - 1), Math.max(1, high)]);
  }

  function lastStep() {
    return Math.max(1, ...state.selected.map((run) => state.runs.get(run)?.step ?? 1));
  }

  /** The whole steps of a run that a range of the axis covers, one more at each side so that lines reach the edge. */
  function stepsWithin(run, { from, to }) {
    if (view.axis === "step") return { from: Math.max(0, Math.floor(from) - 1), to: Math.max(0, Math.ceil(to) + 1) };
    const start_s = state.runs.get(run)?.started_s ?? 0;
    const series = longest(run);
    if (!series) return { from: 0, to: lastStep() };
    const at = (elapsed_s) => firstNotBelow(series.time, start_s + elapsed_s);
    const last = series.step.length - 1;
    return {
      from: Math.floor(series.step[Math.min(last, Math.max(0, at(from) - 1))]),
      to: Math.ceil(series.step[Math.min(last, at(to))]),
    };
  }

  function update() {
    palette.forget();
    arrange();
    if (view.range) {
      book.setRanges(new Map(state.selected.map((run) => [run, stepsWithin(run, view.range)])));
    }
    flight.update();
    bar.showMarks();
    placeCursor();
    redrawAll();
    rounds.start();
  }

  function recolour() {
    palette.forget();
    redrawAll();
  }

  const resized = new ResizeObserver(() => redrawAll()); // what lies over the plots is placed by their size

  const ends = [
    on("detail", update),
    on("events", (news) => {
      book.append(news);
      flight.append(news);
    }),
    on("reset", ({ run }) => book.forget(run)),
    on("restream", ({ runs }) => runs.forEach((run) => book.catchUp(run))),
    on("theme", recolour),
    on("replay", placeCursor),
  ];
  update();
  resized.observe(main);
  return {
    update,
    close() {
      ends.forEach((end) => end());
      observer.disconnect();
      resized.disconnect();
      cancelAnimationFrame(liveFrame);
      book.close();
      for (const { chart } of charts.values()) chart.close(rounds.plotly());
      rounds.close();
    },
  };
}

/** Colours and font as they are now: asking the style sheet for each would take longer than drawing. */
function makePalette({ colour, runColour }) {
  const known = new Map();
  const once = (ask, prefix) => (name) => {
    const key = `${prefix} ${name}`;
    if (!known.has(key)) known.set(key, ask(name));
    return known.get(key);
  };
  return {
    forget: () => known.clear(),
    colours: {
      colour: once(colour, "colour"), runColour: once(runColour, "run"),
      fontFamily: once(() => getComputedStyle(document.body).fontFamily, "font"),
    },
  };
}
