/**
 * Owns: what the reader must hear of wherever on the page: a watched run was removed, one of
 *   the address does not exist, the server does not answer.
 * Not here: finding out (watching.js, stream.js).
 * Invariant: the notices of runs stay until they are dismissed or runs are chosen; the other one
 *   goes by itself.
 */

import { el, show } from "../shared/dom.js";

/** See app.js for the contract. `element` is a polite live region. */
export function mount(element, context) {
  const { words, state, on } = context;
  let shown = "";

  function notice(text, dismiss) {
    const button = dismiss && el("button", { type: "button", class: "button small", onclick: dismiss },
      words("app.dismiss"));
    return el("div", { class: "notice surface" }, el("p", {}, text), button);
  }

  function dismissRemoved() {
    state.removed = [];
    update();
    document.getElementById("main").focus({ preventScroll: true }); // the button that had it is gone
  }

  function dismissMissing() {
    state.missing = [];
    update();
    document.getElementById("main").focus({ preventScroll: true });
  }

  function several(word, names, dismiss) {
    return names.length ? notice(words(`${word}${names.length > 1 ? "_several" : ""}`, { names }), dismiss) : null;
  }

  function update() {
    const unanswered = state.connection === "unanswered";
    const key = JSON.stringify([unanswered, state.removed, state.missing]);
    if (key === shown) return; // told once
    shown = key;
    show(element,
      unanswered ? notice(words("app.unanswered")) : null,
      several("app.missing", state.missing, dismissMissing),
      several("app.removed", state.removed, dismissRemoved));
  }

  const ends = [
    on("connection", update), on("removed", update), on("selection", () => {
      state.removed = []; // watching.js tells anew of those that were removed just now
      state.missing = [];
      update();
    }),
  ];
  update();
  return { update, close: () => ends.forEach((end) => end()) };
}
