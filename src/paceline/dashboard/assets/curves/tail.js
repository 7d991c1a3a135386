/**
 * Owns: what lies over a plot: the newest steps of its curves until they are drawn anew, and the step that is replayed.
 * Not here: the plot (chart.js).
 * Invariant: the tail begins at the last point that Plotly drew and lies where Plotly would draw it.
 *
 * Plotly takes some 15 ms for a chart, whatever is new; a tail takes a tenth of one. So each step is seen at once on
 * every chart, and Plotly draws every other second.
 */

import { setText, svg, el } from "../shared/dom.js";
import { MARGIN, curvePoints, linesOf } from "./traces.js";

const DASHES = { dash: "7 5", dot: "2 4", dashdot: "7 4 2 4", longdash: "11 6", longdashdot: "11 5 2 5" };

/** @param {Element} plot the element that Plotly draws in */
export function makeOverlay(plot) {
  const paths = svg("g", {});
  const box = svg("svg", { class: "tail", "aria-hidden": "true" }, paths);
  const flag = el("span", {});
  const cursor = el("div", { class: "cursor", hidden: true, "aria-hidden": "true" }, flag);
  let frame = null;
  let ends = new Map();
  let scale = null;
  let pointed = { x: null, text: "" };

  /** Plotly has drawn: there is no tail, and these are the ends of its lines. */
  function drawn(figure) {
    ({ frame } = figure);
    ends = new Map(figure.drawn.map(({ run, key, points }) =>
      [`${run}\n${key}`, { x: points.x.at(-1) ?? -Infinity, y: points.y.at(-1) ?? null }]));
    paths.replaceChildren();
    scale = scaleOf(frame, plot);
    plot.dataset.step = newest(figure.drawn);
    place();
  }

  /** Draws what came since. Returns whether it all lies within the plot; if not, Plotly must draw. */
  function extend(chart, { context, book, view, across }) {
    if (frame === null) return false;
    const { lines } = linesOf(chart, { context, book });
    const shapes = [];
    for (const { run, key, series, dash } of lines) {
      const end = ends.get(`${run}\n${key}`);
      if (!end) return false;
      const points = curvePoints(run, series, { view, across });
      const first = firstAfter(points.x, end.x);
      if (first === points.x.length) continue;
      const path = pathOf(points, { first, end, scale, frame, zoomed: view.range !== null });
      if (path === null) return false;
      shapes.push(svg("path", {
        d: path, fill: "none", stroke: context.runColour(run), "stroke-width": view.smoothing ? 1.8 : 1.6,
        "stroke-dasharray": DASHES[dash] ?? null,
      }));
    }
    paths.replaceChildren(...shapes);
    plot.dataset.step = newest(lines);
    return true;
  }

  /** Marks a place on the x axis; null takes the mark away. */
  function point(x, text) {
    pointed = { x, text };
    place();
  }

  function place() {
    const { x, text } = pointed;
    const inside = frame !== null && x !== null && x >= frame.shown.from && x <= frame.shown.to;
    cursor.hidden = !inside;
    if (!inside) return;
    cursor.style.setProperty("left", `${scaleOf(frame, plot).x(x)}px`);
    setText(flag, text);
  }

  return { elements: [box, cursor], drawn, extend, point };
}

/** The newest step of any line: what a chart shows up to. */
function newest(lines) {
  return String(Math.max(-1, ...lines.map(({ series }) => series.last?.step ?? -1)));
}

/** From values to pixels of the plot's element. */
function scaleOf({ shown, range, floor, log }, plot) {
  const [width, height] = [plot.clientWidth - MARGIN.l - MARGIN.r, plot.clientHeight - MARGIN.t - MARGIN.b];
  const tall = height * (1 - floor);
  return {
    x: (value) => MARGIN.l + ((value - shown.from) / (shown.to - shown.from)) * width,
    y: (value) => MARGIN.t + tall * (1 - ((log ? Math.log10(value) : value) - range[0]) / (range[1] - range[0])),
  };
}

/** An SVG path from the end of the drawn line over the newer points; null if one lies outside. */
function pathOf({ x, y }, { first, end, scale, frame: { shown, range, log }, zoomed }) {
  const parts = [];
  let pen = false;
  const to = (px, value) => {
    if (value === null || (log && value <= 0)) {
      pen = false;
      return true;
    }
    const height = log ? Math.log10(value) : value;
    if (height < range[0] || height > range[1]) return false;
    parts.push(`${pen ? "L" : "M"}${scale.x(px).toFixed(1)} ${scale.y(value).toFixed(1)}`);
    pen = true;
    return true;
  };
  if (Number.isFinite(end.x) && end.x >= shown.from && end.x <= shown.to) to(end.x, end.y);
  for (let at = first; at < x.length; at += 1) {
    if (x[at] > shown.to && zoomed) break; // what comes after the zoomed range is not shown at all
    if (x[at] > shown.to || !to(x[at], y[at])) return null;
  }
  return parts.join("");
}

/** Index of the first of the last elements that are beyond a value: from the end, since times may go back. */
function firstAfter(list, value) {
  let at = list.length;
  while (at > 0 && list[at - 1] > value) at -= 1;
  return at;
}
