/**
 * Owns: one chart on the page: its head with buttons, the plot, the table of its numbers, the exports.
 * Not here: which series it shows (traces.js), when it is drawn (curves.js), its newest steps (tail.js).
 * Invariant: the table under the plot says in text what the plot shows, for whoever cannot see it.
 */

import { COMPILER } from "./catalogue.js";
import { el, setText, show } from "../shared/dom.js";
import { metric as metricText } from "../shared/format.js";
import { lineOf, titleOf } from "./names.js";
import { makeOverlay } from "./tail.js";
import { MARGIN, escaped, figure, linesOf, numbers } from "./traces.js";

/** No tips: Plotly's own are in English and lie over the headline; the toolbar has a button for the whole run. */
const CONFIG = { displayModeBar: false, responsive: true, doubleClick: false, scrollZoom: false, showTips: false };
const PNG = { format: "png", width: 1100, height: 560, scale: 2 };

/**
 * @param {Object} chart of catalogue.js
 * @param {Object} options
 * @param {Object} options.context
 * @param {import("./series.js").SeriesBook} options.book
 * @param {Object} options.view see traces.js
 * @param {(range: number[]|null) => void} options.onZoom a drag chose a range of the x axis, or a double click none
 * @param {() => void} options.onChange wants to be drawn again
 */
export function makeChart(chart, { context, book, view, onZoom, onChange }) {
  const { words, api, state } = context;
  const title = titleOf(chart, context);
  let log = false;
  let plotted = false;
  let seen = "";
  let cells = [];
  const toggle = el("button", {
    type: "button", class: "button small plain", "aria-pressed": "false", title: words("curves.log_title"),
    "aria-label": words("curves.log_label", { title }),
    onclick: () => {
      log = !log;
      toggle.setAttribute("aria-pressed", String(log));
      onChange();
    },
  }, words("curves.log"));
  const ofRun = chart.keys.some((key) => key !== COMPILER.key); // what the program says is no series to be saved
  const button = (word, action) => el("button", {
    type: "button", class: "button small plain", "aria-label": words(`curves.${word}_label`, { title }),
    title: words(`curves.${word}_label`, { title }), onclick: action,
  }, words(`curves.${word}`));
  const plot = el("div", { class: "plot", role: "img", "aria-label": title });
  const overlay = makeOverlay(plot);
  const rows = el("tbody");
  const note = el("p", { class: "chart-note", hidden: true });
  const element = el("figure", { class: "chart surface", data: { chart: chart.id } },
    el("figcaption", { class: "chart-head" }, el("h3", { title: chart.keys.join(", ") }, title),
      el("div", { class: "chart-buttons" }, toggle, button("png", exportPng), ofRun ? button("csv", exportCsv) : null)),
    el("div", { class: "plot-box" }, plot, overlay.elements), note,
    el("div", { class: "scroll" }, el("table", { class: "chart-table" }, el("caption", { class: "unseen" }, title),
      el("thead", {}, el("tr", {}, ["series", "last", "least", "greatest"].map((name) =>
        el("th", { scope: "col", class: name === "series" ? null : "right" }, words(`curves.${name}`))))), rows)));

  function draw(Plotly) {
    const drawing = figure(chart, { context, book, view, log });
    element.dataset.waiting = String(drawing.waiting);
    Plotly.react(plot, drawing.traces, drawing.layout, CONFIG);
    if (!plotted) {
      plotted = true;
      plot.on("plotly_relayout", (change) => {
        const [from, to] = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
        if (from !== undefined) onZoom([Number(from), Number(to)]);
      });
      plot.on("plotly_doubleclick", () => onZoom(null));
    }
    overlay.drawn(drawing);
    showNumbers(drawing.rows);
    say(drawing.rows);
  }

  /** Shows what came since it was drawn. Returns whether there is room for it; if not, it must be drawn. */
  function extend(across) {
    if (!plotted || !overlay.extend(chart, { context, book, view, across })) return false;
    showNumbers(linesOf(chart, { context, book }).lines.map((one) => numbers(one)));
    return true;
  }

  /** The rows are made anew when other lines are shown; else their numbers change, ten times a second. */
  function showNumbers(all) {
    const lines = all.map((row) => ({ row, name: label(row) }));
    const text = JSON.stringify(lines.map(({ row, name }) => [context.runVariable(row.run), name, row.dash]));
    if (text !== seen) {
      seen = text;
      cells = lines.map(() => [0, 1, 2].map(() => el("td", { class: "right" })));
      show(rows, lines.map(({ row, name }, at) => el("tr", {},
        el("th", { scope: "row", title: `${name} (${row.key})` }, heading(row)), cells[at])));
    }
    lines.forEach(({ row }, at) => texts(row).forEach((one, place) => setText(cells[at][place], one)));
  }

  /** The plot and its gaps in words. */
  function say(all) {
    const gaps = all.reduce((sum, row) => sum + row.gaps, 0);
    note.hidden = gaps === 0;
    const thinned = all.some((row) => row.thinned && row.gaps);
    setText(note, gaps ? words(thinned ? "curves.gaps_thinned" : "curves.gaps", { n: gaps }) : "");
    plot.setAttribute("aria-label", [title, ...all.map((row) => {
      const [last, low, high] = texts(row);
      return words("curves.summary", { name: label(row), step: row.step, last, low, high });
    })].join(". "));
  }

  function texts({ key, last, low, high }) {
    return [last, low, high].map((value) => metricText(key, value));
  }

  function label({ run, key }) {
    const line = lineOf(key, chart, context);
    return state.selected.length > 1 ? [run, line].filter(Boolean).join(" · ") : line ?? title;
  }

  /** A long name of a run is cut at its beginning; what the line is stays. */
  function heading(row) {
    const line = lineOf(row.key, chart, context);
    const run = state.selected.length > 1 ? el("span", { class: "series-run" }, el("bdi", {}, row.run)) : null;
    const rest = run ? line && ` · ${line}` : label(row);
    const end = rest ? el("span", { class: "series-line" }, rest) : null;
    return el("span", { class: "series" }, swatch(row, context), run, end);
  }

  async function exportPng() {
    const Plotly = await context.plotly();
    const { traces, layout } = figure(chart, { context, book, view, log });
    const surface = context.colour("--surface");
    const picture = await Plotly.toImage({
      data: traces,
      layout: {
        ...layout, paper_bgcolor: surface, plot_bgcolor: surface, margin: { l: MARGIN.l + 12, r: 24, t: 56, b: 60 },
        xaxis: {
          ...layout.xaxis, title: { text: escaped(words(`curves.axis_${view.axis}`)), standoff: 8, font: { size: 13 } },
        },
        showlegend: true, legend: { orientation: "h", x: 0, y: 1.08, font: { size: 12 } },
        title: { text: escaped(title), x: 0.01, y: 0.97, font: { size: 16 } }, font: { ...layout.font, size: 13 },
      },
    }, PNG);
    const of = state.selected.length === 1 ? `${state.selected[0]} ${title}` : title;
    download(picture, `${fileName(of)}.png`);
  }

  function exportCsv() {
    for (const run of state.selected) {
      const keys = chart.keys.filter((key) => (state.details.get(run)?.metrics ?? []).some((one) => one.key === key));
      if (keys.length) download(api.csvAddress({ run, keys }), `${fileName(`${run} ${title}`)}.csv`);
    }
  }

  function close(Plotly) {
    if (plotted) Plotly?.purge(plot);
    element.remove();
  }

  return { id: chart.id, element, plot, draw, extend, point: overlay.point, close };
}

/** A short line in the colour and the dash of a curve. */
function swatch({ run, dash }, context) {
  return el("span", { class: "swatch", data: { dash }, style: { "--run": `var(${context.runVariable(run)})` } });
}

function download(address, name) {
  const link = el("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
}

function fileName(text) {
  return text.replace(/[^\p{L}\p{N}._-]+/gu, "-").replace(/^[-.]+|-+$/g, "") || "chart";
}
