/**
 * Owns: the pipeline panel: asking for its state (live, or of a replayed step), what stands around the drawing, when it
 *   moves.
 * Not here: the drawing (draw.js), the motion (flow.js), the controls of the replay (replay.js).
 * Invariant: one request is under way at a time; an answer for another run than the shown one is dropped.
 */

import { el, setText, show, svg } from "../shared/dom.js";
import { drawn, labels } from "./draw.js";
import { makeFlow } from "./flow.js";
import { layout } from "./layout.js";
import { lanes, number, stages } from "./model.js";
import { bar, facts, stageTable, summary, verdict } from "./text.js";
import { makeReplay } from "./replay.js";

const LIVE_GAP_MS = 500; // the state is a mean over steps: twice a second is as fast as it means something
const REPLAY_GAP_MS = 100;
const SUMMARY_GAP_MS = 5000; // a screen reader is told no more often
const reduced = window.matchMedia("(prefers-reduced-motion: reduce)");

/** Mounts the panel; see the contract at the head of app.js. */
export function mount(element, context) {
  const view = build(context);
  show(element, view.message, view.body);
  const flow = makeFlow(view.dots);
  const asked = asking(context, { shown: paint, failed: view.fail });
  const replay = makeReplay(context, { step: asked.at, moving: () => move() });
  view.replay.append(replay.element);
  let state = null;
  let visible = true;
  let wished = true; // the reader's own switch
  let summarised = { run: null, at_ms: -Infinity };

  function paint(next) {
    state = next;
    view.message.hidden = true;
    view.body.hidden = false;
    replay.bounds(state);
    redraw();
  }

  function redraw() {
    if (!state || !view.canvas.clientWidth) return;
    const laneList = lanes(state.devices);
    const scene = {
      state,
      stages: stages(state),
      lanes: laneList,
      words: context.words,
      hasWords: context.hasWords,
      format: context.format,
      layout: layout(view.canvas.clientWidth, laneList.length),
    };
    const { width, height } = scene.layout;
    for (const [name, value] of [
      ["width", width],
      ["height", height],
      ["viewBox", `0 0 ${width} ${height}`],
      ["class", scene.layout.tight ? "pl-picture pl-tight" : "pl-picture"],
    ]) {
      view.picture.setAttribute(name, value);
    }
    view.still.replaceChildren(...drawn(scene));
    view.labels.replaceChildren(...labels(scene));
    flow.set(scene);
    show(view.facts, facts(scene));
    show(view.verdict, verdict(scene));
    view.bar.hidden = number(state.step_s) === null;
    show(view.bar, bar(scene));
    show(view.table, stageTable(scene));
    caption();
    summarise(scene);
    move();
  }

  function caption() {
    const { rowsADot, scale } = flow.caption();
    const { words, format } = context;
    const plain = (value) => (Number.isInteger(value) ? format.count(value) : format.number(value, 3));
    const pace =
      scale === 1
        ? words("pipeline.real_time")
        : scale > 1
          ? words("pipeline.slowed", { factor: plain(scale) })
          : words("pipeline.sped_up", { factor: plain(1 / scale) });
    setText(view.pace, number(state.step_s) === null ? words("pipeline.no_rate") : pace);
    setText(view.at, state.step === null ? "" : words(
      state.means?.whole_run ? "pipeline.as_of_whole" : "pipeline.as_of",
      { step: format.count(state.step), steps: format.count(state.means?.steps ?? null) },
    ));
    const rate_known = number(state.step_s) !== null;
    for (const one of [...view.keys, view.motion]) one.hidden = !rate_known; // of dots that are not there
    setText(view.dot, words("pipeline.dot", { rows: plain(rowsADot) }));
  }

  /** The text that stands for the picture: at once for another run, else at most each few seconds. */
  function summarise(scene) {
    const now_ms = performance.now();
    if (summarised.run === context.state.focus && now_ms - summarised.at_ms < SUMMARY_GAP_MS) return;
    summarised = { run: context.state.focus, at_ms: now_ms };
    view.picture.setAttribute("aria-label", summary(scene));
  }

  function move() {
    const able =
      visible && wished && replay.moving() && !document.hidden && !reduced.matches && context.state.tab === "pipeline";
    flow.run(able);
    const { words } = context;
    setText(
      view.motion,
      words(reduced.matches ? "pipeline.motion_reduced" : wished ? "pipeline.motion_pause" : "pipeline.motion_play"),
    );
    view.motion.disabled = reduced.matches;
  }

  view.motion.addEventListener("click", () => {
    wished = !wished;
    move();
  });
  /** Something of a run came: the panel asks again if it is this run, and if anybody looks. */
  function news({ run }) {
    if (run === context.state.focus && context.state.tab === "pipeline") asked.latest();
  }

  const sight = new IntersectionObserver(([entry]) => {
    visible = entry.isIntersecting;
    move();
  });
  sight.observe(view.canvas);
  const size = new ResizeObserver(redraw);
  size.observe(view.canvas);
  document.addEventListener("visibilitychange", move);
  reduced.addEventListener("change", move);
  const ends = [context.on("tab", move), ...["events", "reset", "detail"].map((event) => context.on(event, news))];

  function update() {
    if (asked.turn(context.state.focus)) replay.reset();
    const why = context.state.runs.size ? "pipeline.no_run" : "runs.none";
    if (context.state.focus === null) view.fail({ message: context.words(why) });
    move();
  }

  update();
  return {
    update,
    close() {
      for (const end of ends) end();
      asked.close();
      replay.close();
      flow.close();
      sight.disconnect();
      size.disconnect();
      document.removeEventListener("visibilitychange", move);
      reduced.removeEventListener("change", move);
    },
  };
}

/**
 * Asks for states of the focused run: the latest, or of a step. Reasons that come while a request is under way, or too
 * soon after the last, are answered together by one later request: of what was wished last.
 */
function asking(context, { shown, failed }) {
  let run = null;
  let step = null; // null: the latest
  let wanted = false;
  let busy = false;
  let sent_ms = -Infinity;
  let timer = null;

  function want() {
    wanted = true;
    if (busy || timer !== null || run === null) return;
    const gap_ms = step === null ? LIVE_GAP_MS : REPLAY_GAP_MS;
    timer = setTimeout(send, Math.max(0, sent_ms + gap_ms - performance.now()));
  }

  async function send() {
    timer = null;
    wanted = false;
    busy = true;
    const of = run;
    const answer = context.api.pipeline({ run: of, step });
    sent_ms = performance.now(); // not before: the gap holds however long the page was held up in between
    try {
      const state = await answer;
      if (of === run) shown(state);
    } catch (error) {
      if (of === run) failed(error);
    }
    busy = false;
    if (wanted) want();
  }

  return {
    /** Turns to a run; true when it is another one. */
    turn(next) {
      const other = next !== run;
      if (other) [run, step, sent_ms] = [next, null, -Infinity];
      want();
      return other;
    },
    latest() {
      if (step === null) want();
    },
    /** Turns to a step, or back to the latest (null). */
    at(next) {
      step = next;
      want();
    },
    close() {
      run = null;
      clearTimeout(timer);
    },
  };
}

/** The panel's elements. */
function build({ words }) {
  const dots = svg("g", { class: "pl-dots" });
  const still = svg("g");
  const written = svg("g", { class: "pl-labels" });
  const picture = svg("svg", { class: "pl-picture", role: "img", "aria-label": words("pipeline.title") },
    still, dots, written);
  const view = {
    dots,
    still,
    labels: written,
    picture,
    message: el("p", { class: "empty", role: "status" }, words("pipeline.reading")),
    facts: el("dl", { class: "pl-facts" }),
    verdict: el("p", { class: "pl-verdict" }),
    canvas: el("div", { class: "pl-canvas" }, picture),
    dot: el("span"),
    pace: el("span"),
    at: el("span"),
    motion: el("button", { type: "button", class: "button small pl-motion" }),
    bar: el("div", { class: "pl-bar" }),
    replay: el("div"),
    table: el("div", { class: "pl-table" }),
  };
  view.fail = ({ message }) => {
    view.message.hidden = false;
    view.body.hidden = true;
    setText(view.message, message);
  };
  const key = (d, kind, name) => el("span", { class: "pl-key" }, sign(kind, d), name);
  view.keys = [
    key("M5 1a4 4 0 1 0 .01 0Z", "pl-dot", view.dot),
    key("M5 0L10 5L5 10L0 5Z", "pl-dot pl-dot-gradient", words("pipeline.gradients")),
  ];
  view.body = el(
    "div",
    { class: "pl", hidden: true },
    el("div", { class: "pl-head" }, view.verdict, view.facts),
    view.canvas,
    el(
      "div",
      { class: "pl-caption" },
      view.keys,
      view.pace,
      view.at,
      view.motion,
    ),
    view.replay,
    view.bar,
    el("details", { class: "pl-details" }, el("summary", {}, words("pipeline.as_table")), view.table),
  );
  return view;
}

function sign(kind, d) {
  return svg("svg", { class: "pl-sign", viewBox: "0 0 10 10", "aria-hidden": "true" }, svg("path", { class: kind, d }));
}
