/**
 * Owns: the list of runs: finding, choosing several, the state and progress of each.
 * Not here: what is shown of the chosen ones.
 * Invariant: rows are kept by run id and changed in place, so that focus and scrolling survive an update.
 */

import { el, setText, show } from "../shared/dom.js";

/** See app.js for the contract. */
export function mount(element, context) {
  const { words, state, select, on, format } = context;
  const rows = new Map();
  const total = el("span", { class: "quiet" });
  const search = el("input", {
    type: "search", placeholder: words("runs.find"), "aria-label": words("runs.find"), autocomplete: "off",
    oninput: arrange,
  });
  const list = el("ul", { class: "runs" });
  const none = el("p", { class: "empty" });
  show(element, el("div", { class: "runs-head" }, el("h2", {}, words("runs.title"), total), search), list, none);

  function choose(id) {
    if (state.selected.length <= 1) select([id], id);
    else select([...state.selected, id], id);
  }

  function tick(id, on_curves) {
    if (on_curves) select([...state.selected, id], id);
    else select(state.selected.filter((one) => one !== id));
  }

  function makeRow(run) {
    const cut = run.id.endsWith(`/${run.name}`) ? run.id.length - run.name.length : 0;
    const box = el("input", {
      type: "checkbox", "aria-label": words("runs.tick", { name: run.id }), onchange: () => tick(run.id, box.checked),
    });
    const parts = {
      box,
      badge: el("span", { class: "badge" }),
      facts: el("span"),
      numbers: el("span"),
      fill: el("span"),
      name: el("span", { class: "run-name", title: run.id },
        cut ? el("span", { class: "run-folder" }, run.id.slice(0, cut)) : null, cut ? run.name : run.id),
    };
    parts.bar = el("span", { class: "bar" }, parts.fill);
    parts.open = el("button", { type: "button", class: "run-open", onclick: () => choose(run.id) },
      el("span", { class: "run-first" }, parts.name, parts.badge),
      el("span", { class: "run-facts" }, parts.facts, parts.numbers), parts.bar);
    parts.row = el("li", { class: "run", data: { run: run.id } },
      el("label", { class: "run-tick" }, box), parts.open);
    return parts;
  }

  function showRun(parts, run) {
    const selected = state.selected.includes(run.id);
    parts.row.dataset.state = run.state;
    parts.row.dataset.focus = String(state.focus === run.id);
    parts.row.style.setProperty("--run", selected ? `var(${context.runVariable(run.id)})` : "");
    parts.box.checked = selected;
    parts.badge.dataset.state = run.state;
    const diverged = run.divergence?.is_last;
    parts.row.dataset.diverged = String(Boolean(diverged));
    setText(parts.badge, diverged ? words("runs.diverged", { state: stateWord(context, run.state) })
      : stateWord(context, run.state));
    if (state.focus === run.id) parts.open.setAttribute("aria-current", "true");
    else parts.open.removeAttribute("aria-current");
    const devices = run.devices ? `${run.devices} × ${run.platform ?? "?"}` : null;
    setText(parts.facts, [run.task, run.scheme, devices].filter(Boolean).join(" · ") || words("runs.nothing_known"));
    setText(parts.numbers, run.loss === null || run.loss === undefined ? "" : format.number(run.loss, 3));
    const share = run.steps ? Math.min(1, (run.step ?? 0) / run.steps) : null;
    parts.bar.classList.toggle("unknown", share === null);
    parts.fill.style.width = `${(share ?? 0) * 100}%`;
    parts.open.title = words("runs.progress", { step: format.count(run.step), steps: format.count(run.steps) });
  }

  function matching() {
    const wanted = search.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const text = (run) =>
      [run.id, run.task, run.state, run.scheme, run.placement, run.platform].join(" ").toLowerCase();
    return [...state.runs.values()]
      .filter((run) => wanted.every((word) => text(run).includes(word)))
      .sort(newestFirst);
  }

  /** Rows in order; a row moves only where the order changed. */
  function arrange() {
    const shown = matching();
    const ids = new Set(shown.map((run) => run.id));
    for (const [id, parts] of [...rows]) {
      if (ids.has(id)) continue;
      parts.row.remove();
      rows.delete(id);
    }
    shown.forEach((run, index) => {
      if (!rows.has(run.id)) rows.set(run.id, makeRow(run));
      const parts = rows.get(run.id);
      showRun(parts, run);
      if (list.children[index] !== parts.row) list.insertBefore(parts.row, list.children[index] ?? null);
    });
    const all = state.runs.size;
    setText(total, shown.length === all ? format.count(all) : words("runs.some", { shown: shown.length, all }));
    none.hidden = shown.length > 0;
    setText(none, words(all ? "runs.no_match" : "runs.none"));
  }

  /** Once, when the list is new: the list is scrolled to the run in focus, and the page stays where it is. */
  function reveal() {
    const side = element.closest(".side") ?? element;
    const row = rows.get(state.focus)?.row.getBoundingClientRect();
    const beyond = row ? row.bottom - side.getBoundingClientRect().bottom : 0;
    if (beyond > 0) side.scrollTop += Math.ceil(beyond);
  }

  const ends = [on("runs", arrange), on("selection", arrange)];
  arrange();
  reveal();
  return { update: arrange, close: () => ends.forEach((end) => end()) };
}

/** The order of the list. */
export function newestFirst(a, b) {
  return (b.started_s ?? 0) - (a.started_s ?? 0) || a.id.localeCompare(b.id);
}

/** A state's word; a state of a future version is shown as it is written. */
export function stateWord({ words, hasWords }, state) {
  return hasWords(`state.${state}`) ? words(`state.${state}`) : state;
}
