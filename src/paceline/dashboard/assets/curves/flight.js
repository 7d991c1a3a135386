/**
 * Owns: the line L x T = P of the run in focus: latency of a row, throughput, the rows in flight that follow by
 *   Little's law, and beside them how many rows really were in flight.
 * Not here: the chart of the same over the steps (catalogue.js).
 * Invariant: all four are means over the same last steps, so that they can be compared.
 */

import { el, setText } from "../shared/dom.js";
import { toNumber } from "../shared/format.js";
import { RECENT_STEPS, hasEnded, rowsBySeconds } from "../shared/rate.js";

const KEYS = {
  latency: "speed/latency_s", rate: "speed/samples_per_s", really: "speed/rows_in_flight", rows: "train/rows",
  step_s: "speed/step_s",
};

export function makeFlight({ words, state, api, format }) {
  const names = ["latency", "rate", "little", "really"];
  const cells = Object.fromEntries(names.map((name) => [name, el("dd", { data: { flight: name } })]));
  const cell = (name, symbol) =>
    el("div", {}, el("dt", {}, el("b", {}, symbol), symbol ? " " : null, words(`flight.${name}`)), cells[name]);
  const operator = (text) => el("span", { class: "operator", "aria-hidden": "true" }, text);
  const element = el("dl", { class: "flight surface", title: words("flight.title") },
    cell("latency", "L"), operator("×"), cell("rate", "T"), operator("="), cell("little", "P"), cell("really", ""));
  let run = null;
  let recent = new Map();
  let whole = null; // of a run that has ended: {latency, rate, really} over all its steps

  function add(step, values) {
    const one = recent.get(step) ?? {};
    for (const [name, key] of Object.entries(KEYS)) {
      const value = toNumber(values[key]);
      if (Number.isFinite(value)) one[name] = value;
    }
    if (!Object.keys(one).length) return;
    recent.set(step, one);
    if (recent.size > RECENT_STEPS) {
      recent = new Map([...recent].sort(([a], [b]) => a - b).slice(-RECENT_STEPS));
    }
  }

  function mean(name) {
    const values = [...recent.values()].map((one) => one[name]).filter((value) => value !== undefined);
    return values.length ? values.reduce((sum, one) => sum + one, 0) / values.length : null;
  }

  function throughput() {
    const whole = [...recent.values()].filter(({ rows, step_s }) => rows !== undefined && step_s !== undefined);
    return rowsBySeconds(whole) ?? mean("rate");
  }

  function draw() {
    const { latency, rate, really } = whole ?? {
      latency: mean("latency"), rate: throughput(), really: mean("really"),
    };
    element.title = words(whole ? "flight.title_whole" : "flight.title");
    element.hidden = latency === null && really === null;
    const little = latency !== null && rate !== null ? latency * rate : null;
    setText(cells.latency, format.seconds(latency));
    setText(cells.rate, format.rate(rate));
    setText(cells.little, words("flight.rows", { rows: format.count(little) }));
    setText(cells.really, words("flight.rows", { rows: format.count(really) }));
  }

  /** Another run is in focus: its last steps are asked for once, then live events go on. */
  async function update() {
    if (run === state.focus) return;
    run = state.focus;
    [recent, whole] = [new Map(), null];
    draw();
    if (run === null) return;
    const asked = run;
    const last = state.runs.get(run)?.step ?? 0;
    try {
      if (hasEnded(state.runs.get(run))) {
        await askWhole(asked);
        return;
      }
      const keys = Object.values(KEYS);
      const answer = await api.series({ runs: [run], keys, points: 100, from: Math.max(0, last - RECENT_STEPS + 1) });
      if (asked !== run) return;
      for (const [key, { step, value }] of Object.entries(answer.runs[run]?.series ?? {})) {
        step.forEach((one, at) => add(one, { [key]: value[at] }));
      }
    } catch (error) {
      if (asked === run) run = null; // asked for again when the panel is brought up to date
      if (error.status) console.warn(error.message); // else there is no connection, which the stream says
    }
    draw();
  }

  async function askWhole(asked) {
    const { latency_s, samples_per_s, rows_in_flight } = await api.pipeline({ run: asked });
    if (asked !== run) return;
    const [latency, rate, really] = [latency_s, samples_per_s, rows_in_flight].map((value) => {
      const number = toNumber(value);
      return Number.isFinite(number) ? number : null;
    });
    whole = { latency, rate, really };
    draw();
  }

  function append({ run: id, process, events }) {
    if (id !== run || process !== 0) return;
    for (const { kind, step, values } of events) {
      whole = null; // it goes on
      if (kind === "step") add(step, values);
      else if (kind === "end") askWhole(id).catch(() => {}); // what is shown is of the last steps
    }
    draw();
  }

  return { element, update, append };
}
