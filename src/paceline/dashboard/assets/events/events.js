/**
 * Owns: the Events panel: what the run in focus said beside its steps, newest first, and what could not be read.
 * Not here: step events (curves) and audits by device (replicas).
 * Invariant: an event is shown once, whether it came by request or live.
 */

import { el, setText, show } from "../shared/dom.js";
import { columnHeads, named } from "../shared/table.js";

const PAGE = 200;
const MOST_LIVE = 1000;
const TONES = {
  skip: "warn", audit: "good", divergence: "bad", checkpoint: "good", evaluation: "info", notice: "info",
};

/** See app.js for the contract. */
export function mount(element, context) {
  const { words, hasWords, state, api, on, format } = context;
  let run = null;
  let failed = false; // nothing was read of it yet: asked for again when the panel is brought up to date
  let events = [];
  let unreadable = { unknown: {}, skipped: 0 };
  let before = null;
  let chosen = "";
  const kinds = el("select", { onchange: () => {
    chosen = kinds.value;
    draw();
  } });
  const older = el("button", { type: "button", class: "button", hidden: true, onclick: () => load(before) },
    words("events.older"));
  const note = el("p", { class: "quiet" });
  const columns = ["time", "step", "kind", "process", "text"].map((name) =>
    ({ text: words(`events.${name}`), right: ["step", "process"].includes(name) }));
  const body = el("tbody", { role: "rowgroup" });
  const none = el("p", { class: "empty", role: "status" });
  show(element,
    el("div", { class: "toolbar" }, el("label", {}, words("events.kind"), kinds), note),
    el("div", { class: "surface scroll" },
      el("table", { class: "table stacked events", role: "table" },
        el("caption", { class: "unseen" }, words("events.caption")), columnHeads(columns), body),
      none),
    el("p", { class: "more" }, older));

  const identity = ({ process, kind, step, time_s, text }) => JSON.stringify([process, kind, step, time_s, text ?? ""]);

  function merge(more) {
    const known = new Set(events.map(identity));
    events = [...events, ...more.filter((event) => !known.has(identity(event)))]
      .sort((a, b) => b.time_s - a.time_s || b.step - a.step);
  }

  async function load(from) {
    const asked = run;
    if (asked === null) return;
    try {
      const answer = await api.events({ run: asked, before: from, limit: PAGE });
      if (asked !== run) return;
      failed = false;
      merge(answer.events);
      unreadable = { unknown: answer.unknown ?? {}, skipped: answer.skipped ?? 0 };
      before = answer.earlier ? Math.min(...answer.events.map((event) => event.number)) : null;
      older.hidden = before === null;
      draw();
    } catch (error) {
      if (asked !== run) return;
      failed = true;
      none.hidden = false;
      setText(none, error.message);
    }
  }

  function draw() {
    const shown = events.filter((event) => !chosen || kindOf(event) === chosen);
    drawKinds();
    show(body, shown.map(row));
    none.hidden = shown.length > 0;
    setText(none, words("events.none"));
    const parts = Object.entries(unreadable.unknown).map(([kind, n]) => words("events.unknown", { kind, n }));
    if (unreadable.skipped) parts.push(words("events.skipped", { n: unreadable.skipped }));
    setText(note, parts.join(" · "));
  }

  function kindWord(kind) {
    return hasWords(`mark.${kind}`) ? words(`mark.${kind}`) : kind;
  }

  function drawKinds() {
    const present = [...new Set(events.map(kindOf))].sort();
    if (chosen && !present.includes(chosen)) present.push(chosen);
    show(kinds, el("option", { value: "" }, words("events.all")),
      present.map((kind) => el("option", { value: kind, selected: kind === chosen }, kindWord(kind))));
  }

  function row(event) {
    const kind = kindOf(event);
    return named(el("tr", {},
      el("td", { class: "quiet nowrap" }, format.moment(event.time_s)),
      el("td", { class: "right" }, format.count(event.step)),
      el("td", {}, el("span", { class: "badge", data: { tone: TONES[kind] ?? "" } }, kindWord(kind))),
      el("td", { class: "right quiet" }, String(event.process)),
      el("td", {}, event.text ?? "", event.text ? " " : "", values(event))), columns);
  }

  function values({ values: given = {} }) {
    const text = Object.entries(given).map(([key, value]) => `${key} ${format.metric(key, value)}`).join(" · ");
    return text ? el("span", { class: "quiet" }, text) : null;
  }

  function update() {
    if (run === state.focus) return failed ? load(null) : undefined;
    run = state.focus;
    failed = false;
    events = [];
    before = null;
    draw();
    return load(null);
  }

  function onEvents({ run: id, process, events: news }) {
    if (id !== run) return;
    const said = news.filter((event) => event.kind !== "step").map((event) => ({ ...event, process }));
    if (!said.length) return;
    merge(said);
    if (events.length > MOST_LIVE && before === null) events = events.slice(0, MOST_LIVE);
    if (!element.hidden) draw();
  }

  function again({ run: id }) {
    if (id !== run) return;
    run = null;
    update();
  }

  const ends = [
    on("events", onEvents), on("reset", again), on("tab", ({ tab }) => tab === "events" && draw()),
    on("restream", ({ runs }) => runs.includes(run) && load(null)),
  ];
  update();
  return { update, close: () => ends.forEach((end) => end()) };
}

/** An audit that found a difference is a divergence, as on the curves. */
function kindOf({ kind, values = {}, text, where }) {
  const differs = values["audit/differing_leaves"] > 0 || text || where?.length;
  return kind === "audit" && differs ? "divergence" : kind;
}
