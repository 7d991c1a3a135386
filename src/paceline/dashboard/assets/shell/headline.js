/**
 * Owns: the run in focus in one line of facts and one row of numbers, and the note of what cannot be shown.
 * Not here: which run that is (runs.js).
 * Invariant: a live step changes the numbers at once, before any chart is drawn.
 */

import { el, setText, show } from "../shared/dom.js";
import { toNumber } from "../shared/format.js";
import { RECENT_STEPS, rowsBySeconds, sum } from "../shared/rate.js";
import { sentence } from "../shared/words.js";
import { stateWord } from "./runs.js";

const NUMBERS = ["step", "loss", "samples_per_s", "step_time", "eta", "last_event"];

/** See app.js for the contract. */
export function mount(element, context) {
  const { words, state, on, format } = context;
  const parts = {
    name: el("h2"), badge: el("span", { class: "badge" }), facts: el("p", { class: "head-facts" }),
    warning: el("p", { class: "head-warning" }), problems: el("ul"), count: el("span"),
    announced: el("p", { class: "unseen", role: "status" }),
  };
  const values = Object.fromEntries(NUMBERS.map((name) => [name, el("dd", { data: { number: name } })]));
  const numbers = el("dl", { class: "numbers surface" },
    NUMBERS.map((name) => el("div", {}, el("dt", {}, words(`head.${name}`)), values[name])));
  const cannot = el("details", { class: "cannot" }, el("summary", {}, parts.count), parts.problems);
  const first = el("div", { class: "head-first" }, parts.name, parts.badge, parts.facts);
  const nothing = el("p", { class: "empty" });
  show(element, first, parts.warning, numbers, cannot, nothing, parts.announced);

  /** What live events said since the summary: {run, step, loss, rate, steps_s, time_s}. */
  let live = null;
  let announced = null;

  function run() {
    return state.focus === null ? null : state.runs.get(state.focus) ?? null;
  }

  function showFacts(summary) {
    setText(parts.name, summary.id);
    parts.badge.dataset.state = summary.state;
    setText(parts.badge, stateWord(context, summary.state) + (summary.stopped ? `: ${summary.stopped}` : ""));
    const devices = summary.devices ? `${summary.devices} × ${summary.platform ?? "?"}` : null;
    const batch = summary.batch ? words("head.batch", { batch: format.count(summary.batch) }) : null;
    const accumulation = summary.accumulation > 1 ? words("head.accumulation", { n: summary.accumulation }) : null;
    const processes = summary.processes > 1 ? words("head.processes", { n: summary.processes }) : null;
    setText(parts.facts, [summary.task, summary.scheme, summary.placement, summary.precision, devices, processes, batch,
      accumulation].filter(Boolean).join(" · "));
  }

  /** Replicas that differ make every number below worth little: it is said first. */
  function showWarning(divergence) {
    parts.warning.hidden = !divergence;
    if (!divergence) return;
    const key = divergence.is_last ? "head.diverged" : "head.diverged_before";
    show(parts.warning, el("span", { class: "badge", data: { tone: "bad" } }, words("mark.divergence")),
      words(key, { step: format.count(divergence.step) }));
  }

  function showNumbers(summary) {
    const ahead = live?.run === summary.id ? live : null;
    const step = ahead?.step ?? summary.step;
    const recent = ahead?.recent ?? [];
    const seconds = sum(recent, "step_s");
    const rate = rowsBySeconds(recent) ?? toNumber(summary.samples_per_s);
    const by_rate_s = rate > 0 && summary.batch ? summary.batch / rate : null;
    const step_s = seconds > 0 ? seconds / recent.length : by_rate_s;
    const left = summary.steps === null || summary.steps === undefined ? null : summary.steps - (step ?? 0);
    const running = summary.state === "running" || (ahead && summary.state === "silent");
    show(values.step, format.count(step), summary.steps ? el("small", {}, ` / ${format.count(summary.steps)}`) : null);
    setText(values.loss, format.number(ahead?.loss ?? summary.loss));
    setText(values.samples_per_s, format.rate(rate));
    setText(values.step_time, format.seconds(step_s));
    setText(values.eta, running && left !== null && step_s ? format.duration(left * step_s) : format.NOTHING);
    setText(values.last_event, format.moment(ahead?.time_s ?? summary.updated_s).split(" ").at(-1));
    values.last_event.title = format.moment(ahead?.time_s ?? summary.updated_s);
  }

  function showProblems(summary) {
    const problems = [summary, state].flatMap((one) => one?.problem_words?.map(sentence) ?? one?.problems ?? []);
    cannot.hidden = problems.length === 0;
    setText(parts.count, words("head.cannot", { n: problems.length }));
    show(parts.problems, problems.map((text) => el("li", {}, text)));
  }

  function update() {
    const summary = run();
    for (const one of [first, numbers]) one.hidden = summary === null;
    nothing.hidden = summary !== null;
    setText(nothing, words(state.runs.size ? "head.nothing" : "head.no_runs"));
    showProblems(summary);
    if (summary === null) return showWarning(null);
    showFacts(summary);
    showWarning(summary.divergence);
    showNumbers(summary);
    const said = `${summary.id}: ${stateWord(context, summary.state)}`;
    if (announced !== null && announced !== said) setText(parts.announced, said);
    announced = said;
  }

  function onEvents({ run: id, process, events }) {
    if (id !== state.focus || process !== 0) return;
    if (live?.run !== id) live = { run: id, recent: [] };
    for (const event of events) {
      live.time_s = event.time_s;
      if (event.kind === "end") live.recent = []; // from now on the whole run counts, as the server tells it
      if (event.kind !== "step") continue;
      live.step = event.step;
      live.loss = event.values["train/loss"] ?? live.loss;
      const [step_s, rows] = ["speed/step_s", "train/rows"].map((key) => toNumber(event.values[key]));
      if (Number.isFinite(step_s) && Number.isFinite(rows)) {
        live.recent = [...live.recent, { step_s, rows }].slice(-RECENT_STEPS);
      }
    }
    const summary = run();
    if (summary) showNumbers(summary);
  }

  const ends = [
    on("runs", update), on("selection", update), on("events", onEvents), on("reset", forget),
  ];

  function forget() {
    live = null;
    update();
  }

  update();
  return { update, close: () => ends.forEach((end) => end()) };
}
