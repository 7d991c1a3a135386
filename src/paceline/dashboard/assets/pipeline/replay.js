/**
 * Owns: the controls of the replay: which step is shown, how fast it goes on.
 * Not here: asking for a step's state (pipeline.js).
 * Invariant: a step that was already passed is never asked for; others are told of the step by the event "replay"
 *   ({run, step}; step is null when the latest is shown again).
 *
 * Speeds are multiples of the run's own: x1 makes as many steps a second as the run did.
 */

import { el, setText } from "../shared/dom.js";
import { hasEnded } from "../shared/rate.js";
import { number } from "./model.js";

const SPEEDS = ["1", "10", "100", "whole"];
const WHOLE_RUN_S = 30;
const TICK_MS = 50;
const PAGE_OF = 20; // Page Up and Page Down move by this part of the run

/**
 * @param {{step: (step: number|null) => void, moving: () => void}} wish called with the step to show (null: the
 *   latest), and when `moving()` may have changed: a replay that is paused stands still
 * @returns {{element: Element, bounds: Function, reset: Function, moving: () => boolean, close: Function}}
 */
export function makeReplay(context, wish) {
  const view = build(context);
  let any = false; // whether there is a step to show
  let first = 0;
  let last = 0;
  let step_s = null;
  let at = null; // position in steps, with fractions; null: the latest
  let timer = null;
  let before_ms = 0;

  function bounds(state) {
    any = number(state.last_step ?? state.step) !== null;
    first = state.first_step ?? 0;
    last = state.last_step ?? state.step ?? 0;
    step_s = state.step_s > 0 ? state.step_s : step_s;
    view.slider.min = first;
    view.slider.max = last;
    view.element.hidden = !any;
    showPlace();
  }

  function showPlace() {
    const step = at === null ? last : Math.floor(at);
    const { words, format, state } = context;
    if (document.activeElement !== view.slider || at !== null) view.slider.value = step;
    const text = any ? words("replay.place", { step: format.count(step), last: format.count(last) }) : "";
    setText(view.place, text);
    view.slider.setAttribute("aria-valuetext", text);
    view.slider.disabled = last <= first;
    view.play.disabled = last <= first;
    const run = state.runs.get(state.focus);
    const latest = run?.state === "running" ? "live" : hasEnded(run) ? "ended" : "latest";
    setText(view.latest, words(`replay.${latest}`));
    view.latest.setAttribute("aria-pressed", String(at === null));
    setText(view.play, words(timer === null ? "replay.play" : "replay.pause"));
    view.play.dataset.playing = String(timer !== null);
    view.element.dataset.mode = at === null ? "latest" : "replay";
  }

  function goTo(position) {
    const before = at === null ? null : Math.floor(at);
    at = Math.min(last, Math.max(first, position));
    const step = Math.floor(at);
    if (step !== before) tell(step);
    showPlace();
  }

  function tell(step) {
    wish.step(step);
    context.emit("replay", { run: context.state.focus, step });
  }

  function stepsASecond() {
    const speed = view.speed.value;
    if (speed === "whole") return (last - first) / WHOLE_RUN_S;
    return Number(speed) / (step_s ?? 1);
  }

  function tick() {
    const now_ms = performance.now();
    const gap_s = (now_ms - before_ms) / 1000;
    before_ms = now_ms;
    if (document.hidden) return;
    goTo(at + gap_s * stepsASecond());
    if (at >= last) pause();
  }

  function play() {
    if (timer !== null || last <= first) return;
    if (at === null || at >= last) goTo(first);
    before_ms = performance.now();
    timer = setInterval(tick, TICK_MS);
    showPlace();
    wish.moving();
  }

  function pause() {
    clearInterval(timer);
    timer = null;
    showPlace();
    wish.moving();
  }

  function latest() {
    clearInterval(timer);
    timer = null;
    if (at !== null) {
      at = null;
      tell(null);
    }
    showPlace();
    wish.moving();
  }

  const toggle = () => (timer === null ? play() : pause());
  view.play.addEventListener("click", toggle);
  view.latest.addEventListener("click", latest);
  view.slider.addEventListener("input", () => goTo(Number(view.slider.value)));
  view.element.addEventListener("keydown", (event) => onKey(event, { at, first, last, toggle, latest, goTo, view }));
  return {
    element: view.element,
    bounds,
    reset: latest,
    moving: () => at === null || timer !== null,
    close: () => clearInterval(timer),
  };
}

/** Space plays and pauses on the slider, Page Up and Page Down jump, Escape goes back to the latest. */
function onKey(event, { at, first, last, toggle, latest, goTo, view }) {
  const page = Math.max(1, Math.round((last - first) / PAGE_OF));
  const here = at ?? last;
  const actions = { Escape: latest };
  if (event.target === view.slider) {
    actions[" "] = toggle;
    actions.PageUp = () => goTo(here + page);
    actions.PageDown = () => goTo(here - page);
  }
  if (!Object.hasOwn(actions, event.key)) return;
  event.preventDefault();
  actions[event.key]();
}

function build({ words }) {
  const view = {
    latest: el("button", { type: "button", class: "button small rp-latest" }),
    play: el("button", { type: "button", class: "button small rp-play" }),
    slider: el("input", { type: "range", step: 1, class: "rp-slider", "aria-label": words("replay.slider") }),
    place: el("output", { class: "rp-place" }),
    speed: el(
      "select",
      { class: "rp-speed" },
      SPEEDS.map((speed) =>
        el(
          "option",
          { value: speed },
          speed === "whole" ? words("replay.whole", { seconds: WHOLE_RUN_S }) : `×${speed}`,
        ),
      ),
    ),
  };
  view.element = el(
    "div",
    { class: "rp", role: "group", "aria-label": words("replay.title") },
    view.latest,
    view.play,
    view.slider,
    view.place,
    el("label", { class: "rp-speed-label" }, words("replay.speed"), " ", view.speed),
  );
  return view;
}
