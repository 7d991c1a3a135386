/**
 * Owns: the toolbar over the curves: axis, smoothing, range of steps, and the marks' legend, which also hides kinds.
 * Not here: what the choices do (curves.js).
 */

import { el, setText, show, svg } from "../shared/dom.js";
import { KINDS, looks } from "./marks.js";

const MOST_SMOOTHING = 0.99;
/** The signs of the legend, alike to Plotly's symbols. */
const SHAPES = {
  "triangle-right": "M3 2L13 8L3 14Z", "triangle-right-open": "M4 3L12 8L4 13Z", diamond: "M8 1.5L14.5 8L8 14.5L1.5 8Z",
  x: "M3 5L5 3L8 6L11 3L13 5L10 8L13 11L11 13L8 10L5 13L3 11L6 8Z",
  star: "M8 1L10 6H15L11 9.5L12.5 15L8 11.5L3.5 15L5 9.5L1 6H6Z",
  cross: "M6 2H10V6H14V10H10V14H6V10H2V6H6Z", circle: "M8 2.5A5.5 5.5 0 1 1 7.99 2.5Z", square: "M3 3H13V13H3Z",
  "circle-open": "M8 3A5 5 0 1 1 7.99 3Z", "square-open": "M3.5 3.5H12.5V12.5H3.5Z",
  hexagon: "M8 2L13.5 5V11L8 14L2.5 11V5Z",
};

/**
 * @param {Object} options
 * @param {Object} options.context
 * @param {import("./series.js").SeriesBook} options.book
 * @param {Object} options.view see traces.js
 * @param {(change?: Object) => void} options.onView
 * @param {(from: number|null, to: number|null) => void} options.onZoom
 */
export function makeBar({ context, book, view, onView, onZoom }) {
  const { words, hasWords, state } = context;
  const axes = ["step", "time"].map((axis) => el("button", {
    type: "button", class: "button", "aria-pressed": String(view.axis === axis), data: { axis },
    onclick: () => onView({ axis }),
  }, words(`curves.axis_${axis}`)));
  const smoothing = el("input", {
    type: "range", min: 0, max: MOST_SMOOTHING, step: 0.01, value: 0, title: words("curves.smoothing_title"),
    oninput: () => {
      say(Number(smoothing.value));
      onView({ smoothing: Number(smoothing.value) });
    },
  });
  const strength = el("output", { class: "strength" }, words("curves.smoothing_off"));
  const field = (name) => el("input", {
    type: "number", min: 0, step: 1, class: "step-field",
    "aria-label": words(`curves.${name}`), placeholder: words(`curves.${name}`),
    onchange: () => {
      typed = true;
      onZoom(asked(from), asked(to));
      typed = false;
    },
  });
  const [from, to] = [field("from_step"), field("to_step")];
  const whole = el("button", { type: "button", class: "button", disabled: true, onclick: () => onZoom(null, null) },
    words("curves.whole"));
  const marks = el("div", { class: "mark-legend", role: "group", "aria-label": words("curves.marks") });
  const element = el("div", { class: "curves-bar" },
    el("div", { class: "toolbar" },
      el("span", { class: "choices", role: "group", "aria-label": words("curves.axis") }, axes),
      el("label", {}, words("curves.smoothing"), smoothing, strength),
      el("span", { class: "range", role: "group", "aria-label": words("curves.range"), onfocusout: left },
        words("curves.range"), from, "–", to, whole)),
    marks);
  let legend = "";
  let typed = false; // what the reader is typing is not written over, until the focus leaves both fields
  let shown = null;

  /** What smoothing does: the weights of an exponential mean add up to those of 1 / (1 - strength) points. */
  function say(value) {
    const n = Math.round(1 / (1 - value));
    const on = { strength: value.toFixed(2), n };
    setText(strength, value ? words("curves.smoothing_on", on) : words("curves.smoothing_off"));
  }

  function asked(input) {
    const step = Number(input.value);
    return input.value === "" || !Number.isFinite(step) ? null : Math.max(0, Math.round(step));
  }

  function left({ relatedTarget }) {
    if (relatedTarget !== from && relatedTarget !== to) fill();
  }

  /** The range that is shown; without one the fields are empty. */
  function fill() {
    from.value = shown ? String(Math.max(0, Math.round(shown.from))) : "";
    to.value = shown ? String(Math.round(shown.to)) : "";
  }

  function showRange(range, zoomed) {
    shown = range;
    if (!typed) fill();
    whole.disabled = !zoomed;
    for (const button of axes) button.setAttribute("aria-pressed", String(button.dataset.axis === view.axis));
  }

  function showMarks() {
    const counts = new Map();
    for (const run of state.selected) {
      for (const { kind } of book.marks.get(run)?.values() ?? []) counts.set(kind, (counts.get(kind) ?? 0) + 1);
    }
    const order = [...Object.keys(KINDS), ...counts.keys()];
    const kinds = [...new Set(order)].filter((kind) => counts.has(kind));
    const text = JSON.stringify(kinds.map((kind) => [kind, counts.get(kind), view.hidden.has(kind)]));
    if (text === legend) return;
    legend = text;
    const focused = marks.contains(document.activeElement) ? document.activeElement.dataset.kind : null;
    show(marks, kinds.map((kind) => markButton(kind, counts.get(kind))));
    if (focused) marks.querySelector(`[data-kind="${CSS.escape(focused)}"]`)?.focus();
  }

  function markButton(kind, n) {
    return el("button", {
      type: "button", class: "button small plain mark", data: { kind }, "aria-pressed": String(!view.hidden.has(kind)),
      onclick: () => {
        if (view.hidden.has(kind)) view.hidden.delete(kind);
        else view.hidden.add(kind);
        showMarks();
        onView();
      },
    }, sign(kind), hasWords(`mark.${kind}`) ? words(`mark.${kind}`) : kind, el("span", { class: "quiet" }, String(n)));
  }

  return { element, showMarks, showRange };
}

/** The sign of a kind of mark. */
export function sign(kind) {
  const { symbol, colour } = looks(kind);
  const open = symbol.endsWith("-open");
  return svg("svg", { viewBox: "0 0 16 16", class: open ? "sign open" : "sign", "aria-hidden": "true",
    style: { "--sign": `var(${colour})` } }, svg("path", { d: SHAPES[symbol] ?? SHAPES.hexagon }));
}
