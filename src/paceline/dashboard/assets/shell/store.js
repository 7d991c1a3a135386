/**
 * Owns: the page's state and who is told when it changes.
 * Not here: asking the server (api.js, watching.js) and drawing.
 * Invariant: `focus` is null or one of `selected`; both name runs that exist, or did when they were chosen.
 */

/**
 * @typedef {Object} State
 * @property {Map<string, Object>} runs summaries by id, as `/api/runs` gives them
 * @property {Object[]} results results of scale, verify and plan
 * @property {string[]} problems of the root folder, in English
 * @property {Object[]|undefined} problem_words the same as {key, values, text}
 * @property {string} root
 * @property {string[]} selected ids of the runs on the curves
 * @property {string|null} focus id of the run that one-run panels show
 * @property {Map<string, Object>} details `/api/run` documents of selected runs
 * @property {string} tab id of the shown panel
 * @property {{run: string, step: number|null}|undefined} replayed the step that the pipeline shows; null: the latest
 * @property {string} connection "opening", "live", "reconnecting" or, when that goes on, "unanswered"
 * @property {string[]} removed ids of runs that were removed while they were selected, until the reader has seen it
 * @property {string[]} missing ids of runs that the address named and that do not exist, until the reader has seen it
 * @property {string[]} wanted ids of runs that the address named while there was no run at all
 */

export function makeStore() {
  const handlers = new Map();
  /** @type {State} */
  const state = {
    runs: new Map(), results: [], problems: [], problem_words: undefined, root: "",
    selected: [], focus: null, details: new Map(), tab: "pipeline", connection: "opening", removed: [],
    missing: [], wanted: [],
  };

  /** Calls `handler(data)` on each `event`; returns a function that ends it. */
  function on(event, handler) {
    if (!handlers.has(event)) handlers.set(event, new Set());
    handlers.get(event).add(handler);
    return () => handlers.get(event).delete(handler);
  }

  function emit(event, data) {
    for (const handler of [...(handlers.get(event) ?? [])]) {
      try {
        handler(data);
      } catch (error) {
        console.error(event, error); // one panel's mistake must not silence the others
      }
    }
  }

  /** Chooses runs. The focus stays if it is among them, else it is the last of them. */
  function select(ids, focus = state.focus) {
    state.selected = [...new Set(ids)];
    state.focus = state.selected.includes(focus) ? focus : state.selected.at(-1) ?? null;
    emit("selection", { selected: state.selected, focus: state.focus });
  }

  return { state, on, emit, select };
}
