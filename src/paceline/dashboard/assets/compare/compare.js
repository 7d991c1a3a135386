/**
 * Owns: the panel that puts schemes side by side: choosing runs and results, asking, the parts in their order.
 * Not here: the parts (compare_table.js, compare_draw.js); what is compared and what is called best (the server says).
 * Invariant: nothing is judged here; the command that is shown makes the same comparison as a file.
 */

import { drawings } from "./draw.js";
import { differences, fidelity, predictions, subjects, table, tellOverflow, unknownRows } from "./table.js";
import { el, setText, show } from "../shared/dom.js";

const LEAST_SEARCHED = 12;
const SAFE_WORD = /^[\w@%+=:,./-]+$/;

/** What the reader chose, kept while the page is open: null until then, and the panel follows the selected runs. */
let kept = null;

/** Mounts the panel; see the contract at the head of app.js. */
export function mount(element, context) {
  const { words } = context;
  const picker = makePicker(context, compare);
  const message = el("p", { class: "cmp-message", role: "status" });
  const body = el("div", { class: "cmp-body" });
  show(element, el("div", { class: "cmp" }, picker.element, message, body));
  let request = null;
  let found = null;
  let width = 0;

  async function compare() {
    request?.abort();
    request = new AbortController();
    const { signal } = request;
    const subjects = picker.chosen();
    if (!subjects.length) {
      found = null;
      show(body);
      return setText(message, words("compare.choose"));
    }
    setText(message, words("compare.reading"));
    try {
      const document = await context.api.compare(subjects, { signal });
      found = document;
      setText(message, "");
      paint();
    } catch (error) {
      if (signal.aborted) return;
      found = null;
      show(body);
      setText(message, error.message);
    }
  }

  function paint() {
    if (!found || !body.clientWidth) return;
    const scene = { document: found, context, width: body.clientWidth };
    show(
      body,
      differences(scene),
      table(scene),
      subjects(scene),
      fidelity(scene),
      predictions(scene),
      drawings(scene),
      unknownRows(scene),
      command(scene, context),
    );
    tellOverflow(body);
  }

  function follow() {
    picker.rebuild();
    if (kept === null || found === null) compare();
  }

  const size = new ResizeObserver(() => {
    if (body.clientWidth === width) return;
    width = body.clientWidth;
    paint();
  });
  size.observe(body);
  const ends = [context.on("runs", picker.rebuild)];
  follow();
  return {
    update: follow,
    close() {
      request?.abort();
      size.disconnect();
      for (const end of ends) end();
    },
  };
}

/** The list of what can be compared. */
function makePicker({ words, state }, changed) {
  const list = el("div", { class: "cmp-list", role: "group", "aria-label": words("compare.subjects") });
  const search = el("input", {
    type: "search",
    class: "cmp-search",
    placeholder: words("compare.search"),
    "aria-label": words("compare.search"),
  });
  const number = el("span", { class: "quiet" });
  const clear = el("button", { type: "button", class: "button small" }, words("compare.clear"));
  let known = null;

  const entries = () => [
    ...[...state.runs.values()].map((run) => ({
      id: run.id,
      title: run.id, // two folders may hold runs of one name
      kind: "run",
      note: [run.task, run.scheme].filter(Boolean).join(" · "),
    })),
    ...state.results.map((result) => ({ id: result.id, title: result.id, kind: result.kind, note: result.title })),
  ];

  function chosen() {
    const present = new Set(entries().map((entry) => entry.id));
    return (kept ?? state.selected).filter((id) => present.has(id));
  }

  function rebuild() {
    const found = entries();
    const text = search.value.trim().toLowerCase();
    const shown = found.filter((entry) => `${entry.id} ${entry.title} ${entry.note}`.toLowerCase().includes(text));
    search.hidden = found.length < LEAST_SEARCHED;
    const ticked = new Set(chosen());
    setText(number, words("compare.chosen", { count: ticked.size }));
    const key = JSON.stringify([shown, [...ticked]]);
    if (key === known) return; // a click must not lose its focus to a list that is built anew
    known = key;
    const focused = document.activeElement?.dataset?.subject;
    show(
      list,
      shown.map((entry) => choice(entry, ticked.has(entry.id))),
    );
    if (focused !== undefined)
      [...list.querySelectorAll("input")].find((one) => one.dataset.subject === focused)?.focus();
  }

  function choice(entry, checked) {
    return el(
      "label",
      { class: "cmp-choice", title: [entry.title, entry.note].filter(Boolean).join("\n") },
      el("input", {
        type: "checkbox",
        checked,
        data: { subject: entry.id },
        onchange: (event) => tick(entry.id, event.target.checked),
      }),
      el(
        "span",
        { class: "badge", data: entry.kind === "run" ? {} : { tone: "info" } },
        words(`compare.kind.${entry.kind}`),
      ),
      el("span", { class: "cmp-choice-name" }, entry.title),
    );
  }

  function tick(id, on) {
    kept = on ? [...chosen(), id] : chosen().filter((one) => one !== id);
    rebuild();
    changed();
  }

  search.addEventListener("input", rebuild);
  clear.addEventListener("click", () => {
    kept = [];
    rebuild();
    changed();
  });
  const element = el(
    "section",
    { class: "cmp-picker surface" },
    el("div", { class: "cmp-picker-head" }, el("h3", {}, words("compare.subjects")), number, search, clear),
    list,
  );
  return { element, rebuild, chosen };
}

/** The same as a file: the command, to copy. */
function command({ document: found }, { words }) {
  const paths = found.subjects.map(({ path }) => quoted(path));
  const text = `paceline compare ${paths.join(" ")} --html comparison.html`;
  const field = el("code", { class: "cmp-command-text mono", tabindex: 0 }, text);
  const button = el(
    "button",
    { type: "button", class: "button small", onclick: () => copy(text, { field, button, words }) },
    words("compare.copy"),
  );
  return el(
    "section",
    { class: "cmp-block" },
    el("h3", {}, words("compare.as_file")),
    el("div", { class: "cmp-command" }, field, button),
  );
}

function quoted(word) {
  return SAFE_WORD.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

async function copy(text, { field, button, words }) {
  try {
    await navigator.clipboard.writeText(text);
    setText(button, words("compare.copied"));
  } catch {
    getSelection().selectAllChildren(field); // no leave to write the clipboard: the reader copies what is selected
  }
}
