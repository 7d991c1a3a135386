/**
 * Owns: the replicas panel: the last audit as one tile a device, the processes, the counts of what went wrong.
 * Not here: how replicas are compared (`check`), who is a straggler (the server says, and why).
 * Invariant: a device that no audit has compared never looks like one that was found equal; each state has its word.
 */

import { el, setText, show } from "../shared/dom.js";
import { sentence } from "../shared/words.js";
import { columnTable } from "../shared/table.js";

const GAP_MS = 1000;
const MANY_TILES = 32; // above this, tiles shrink to number and sign
const SIGNS = { equal: "=", odd: "≠", unknown: "?", not_audited: "–" };

/** Mounts the panel; see the contract at the head of app.js. */
export function mount(element, context) {
  const message = el("p", { class: "empty", role: "status" }, context.words("replicas.reading"));
  const body = el("div", { class: "rc", hidden: true });
  show(element, message, body);
  let closed = false;
  let busy = false;
  let wanted = false;
  let timer = null;
  let sent_ms = -Infinity;
  let shown = null; // run and document: what has not changed is not built anew

  function want() {
    const why = context.state.runs.size ? "pipeline.no_run" : "runs.none";
    if (context.state.focus === null) return fail(context.words(why));
    wanted = true;
    if (busy || timer !== null) return;
    timer = setTimeout(ask, Math.max(0, sent_ms + GAP_MS - performance.now()));
  }

  async function ask() {
    timer = null;
    wanted = false;
    busy = true;
    sent_ms = performance.now();
    const run = context.state.focus;
    try {
      const document = await context.api.replicas(run);
      if (!closed && run === context.state.focus) paint(run, document);
    } catch (error) {
      if (!closed && run === context.state.focus) fail(error.message);
    }
    busy = false;
    if (wanted && !closed) want();
  }

  function fail(text) {
    shown = null;
    message.hidden = false;
    body.hidden = true;
    setText(message, text);
  }

  function paint(run, document) {
    const key = JSON.stringify([run, document]);
    if (key === shown) return;
    shown = key;
    message.hidden = true;
    body.hidden = false;
    show(body, counts(document, context), audit(document, context), processes(document, context));
  }

  const mine = ({ run }) => run === context.state.focus && context.state.tab === "replicas" && want();
  const ends = ["events", "reset", "detail"].map((event) => context.on(event, mine));
  want();
  return {
    update() {
      sent_ms = -Infinity; // another run, or the tab again: at once
      clearTimeout(timer);
      timer = null;
      want();
    },
    close() {
      closed = true;
      clearTimeout(timer);
      for (const end of ends) end();
    },
  };
}

function counts({ counts: found }, { words, format }) {
  const tones = { divergences: "bad", restarts: "warn", skips: "warn", checkpoints: null };
  return el(
    "dl",
    { class: "rc-counts surface" },
    Object.entries(tones).map(([key, tone]) =>
      el(
        "div",
        { data: tone && found?.[key] > 0 ? { tone } : {} },
        el("dt", {}, words(`replicas.count.${key}`)),
        el("dd", {}, format.count(found?.[key] ?? null)),
      ),
    ),
  );
}

/** The last audit: its verdict in words and a tile a device. */
function audit(document, context) {
  const { words } = context;
  const tiles = document.tiles ?? [];
  return el(
    "section",
    { class: "rc-block", "aria-labelledby": "rc-audit" },
    el("h3", { id: "rc-audit" }, words("replicas.audit")),
    el("p", { class: "rc-verdict" }, verdict(document.audit, { ...context, alone: tiles.length === 1 })),
    document.audit?.differing > 0 ? null : lastDivergence(document.divergence, context),
    el(
      "ul",
      { class: "rc-tiles", data: { many: String(tiles.length > MANY_TILES) } },
      tiles.map((one) =>
        tile(one, { context, many: tiles.length > MANY_TILES, processes: document.processes?.length ?? 1 }),
      ),
    ),
  );
}

function verdict(found, { words, format, alone }) {
  if (!found && alone) return words("replicas.one_why");
  if (!found) return [el("span", { class: "badge" }, words("replicas.none")), words("replicas.none_why")];
  const differing = found.differing > 0;
  const values = {
    step: format.count(found.step),
    compared: format.count(found.compared),
    differing: format.count(found.differing),
    split: format.count(found.split ?? 0),
  };
  const text = differing ? "differ_text" : found.split > 0 ? "equal_split_text" : "equal_text";
  return [
    el(
      "span",
      { class: "badge", data: { tone: differing ? "bad" : "good" } },
      words(differing ? "replicas.differ" : "replicas.equal"),
    ),
    words(`replicas.${text}`, values),
    differing && found.text ? el("span", { class: "quiet" }, ` ${found.text}`) : null,
  ];
}

/** Where replicas differed last, though a later audit found them equal. */
function lastDivergence(found, { words, format }) {
  if (!found) return null;
  const places = found.where.map(({ leaf, devices }) =>
    `${leaf} (${devices.map((device) => words("replicas.device", { device })).join(", ")})`);
  const more = found.leaves - places.length;
  if (more > 0) places.push(words("replicas.more_leaves", { count: format.count(more) }));
  return el(
    "p",
    { class: "rc-verdict" },
    el("span", { class: "badge", data: { tone: "warn" } }, words("mark.divergence")),
    words("replicas.last_divergence", { step: format.count(found.step) }),
    el("span", { class: "quiet" }, ` ${places.join("; ") || found.text || ""}`),
  );
}

function tile({ device, process, state, leaves }, { context, many, processes }) {
  const { words, hasWords } = context;
  const key = `replicas.state.${state}`;
  const word = hasWords(key) ? words(key) : state;
  const name = words("replicas.device", { device });
  const where = words("replicas.process", { process });
  const odd = state === "odd";
  if (many && !odd) {
    const text = `${name}, ${where}: ${word}`;
    return el(
      "li",
      { class: "rc-tile", data: { state }, title: text },
      el("span", { class: "unseen" }, text),
      el("span", { "aria-hidden": "true" }, `${device} `, el("span", { class: "rc-state" }, SIGNS[state] ?? "?")),
    );
  }
  return el(
    "li",
    { class: "rc-tile", data: { state } },
    el("strong", {}, name),
    el("span", { class: "rc-state" }, `${SIGNS[state] ?? "?"} ${word}`),
    processes > 1 ? el("span", { class: "rc-where" }, where) : null,
    leaves?.length ? el("div", { class: "rc-leaves mono" }, leaves.join(", ")) : null,
  );
}

function processes(document, context) {
  const { words } = context;
  const columns = ["process", "machine", "step", "make", "wait", "last"];
  const right = new Set(["step", "make", "wait"]);
  return el(
    "section",
    { class: "rc-block", "aria-labelledby": "rc-processes" },
    el("h3", { id: "rc-processes" }, words("replicas.processes")),
    columnTable(
      columns.map((one) => ({ text: words(`replicas.column.${one}`), right: right.has(one) })),
      (document.processes ?? []).map((one) => processRow(one, context)),
      { tabindex: 0, role: "region", "aria-labelledby": "rc-processes" },
    ),
  );
}

function processRow(one, { words, hasWords, format }) {
  const { kind, text } = one.last_event ?? {};
  const key = `replicas.kind.${kind}`;
  const event = kind === undefined ? "–" : [hasWords(key) ? words(key) : kind, text].filter(Boolean).join(": ");
  return el(
    "tr",
    { class: one.straggler ? "rc-straggler" : null },
    el(
      "td",
      {},
      String(one.process),
      " ",
      one.straggler ? el("span", { class: "badge", data: { tone: "warn" } }, words("replicas.straggler")) : null,
      one.straggler && one.why ? el("span", { class: "rc-why" }, straggles(one, format)) : null,
    ),
    el("td", {}, one.machine ?? "–"),
    el("td", { class: "right" }, format.count(one.step)),
    el("td", { class: "right" }, format.seconds(one.input_make_s)),
    el("td", { class: "right" }, format.seconds(one.input_wait_s)),
    el("td", {}, event, " ", el("span", { class: "quiet rc-moment" }, format.moment(one.time_s))),
  );
}

/** Why a process is called a straggler: in the reader's language if there are words for it. */
function straggles({ why, why_words: said }, format) {
  if (!said) return why;
  const shown = (value) => (said.key.startsWith("straggler.input") ? format.seconds(value) : format.count(value));
  const { process, own, usual } = said.values;
  return sentence({ ...said, values: { process, own: shown(own), usual: shown(usual) } });
}
