/**
 * Owns: keeping the store up to date: the stream, the documents of selected runs, the list of results.
 * Not here: series (curves.js) and what single panels ask for.
 * Invariant: the stream's runs are the selected ones; summaries of all runs come over it, whatever is selected.
 */

import { newestFirst } from "./runs.js";
import { openStream } from "./stream.js";

const DETAIL_WAIT_MS = 700;

/** Starts watching. Called once. */
export function watch({ store, api }) {
  const { state, on, emit } = store;
  let stream = null;
  let streamed = [];
  const waiting = new Map();

  function setConnection(connection) {
    if (state.connection === connection) return;
    const returned = connection === "live" && state.connection !== "opening";
    state.connection = connection;
    emit("connection", { state: connection });
    if (returned) refreshRuns(); // runs may have come and gone meanwhile
  }

  async function readDetail(run) {
    waiting.delete(run);
    try {
      state.details.set(run, await api.run(run));
      if (state.selected.includes(run)) emit("detail", { run });
    } catch (error) {
      if (error.status === 404) forget([run]);
      else if (error.status) console.warn(error.message);
    }
  }

  /** Reads a run's document soon; several reasons within a moment make one request. */
  function wantDetail(run, wait_ms = DETAIL_WAIT_MS) {
    if (!waiting.has(run)) waiting.set(run, setTimeout(() => readDetail(run), wait_ms));
  }

  function forget(ids) {
    for (const id of ids) {
      state.runs.delete(id);
      state.details.delete(id);
    }
    const left = state.selected.filter((id) => state.runs.has(id));
    const removed = state.selected.filter((id) => !state.runs.has(id));
    emit("runs");
    if (!removed.length) return;
    choose(left.length ? left : newest());
    state.removed = [...new Set([...state.removed, ...removed])];
    emit("removed");
  }

  function newest() {
    return [...state.runs.values()].sort(newestFirst).slice(0, 1).map((run) => run.id);
  }

  /** Chooses for the reader, who has chosen nothing: what was said of removed runs stays. */
  function choose(ids) {
    const { removed, missing } = state;
    store.select(ids);
    Object.assign(state, { removed, missing });
    emit("removed");
  }

  /** The first runs of an empty folder: those that the address named, else the newest. */
  function chooseFirst() {
    const known = state.wanted.filter((id) => state.runs.has(id));
    state.missing = state.wanted.filter((id) => !state.runs.has(id));
    state.wanted = [];
    choose(known.length ? known : newest());
  }

  async function refreshRuns() {
    try {
      const { runs, problems, problem_words, results } = await api.runs();
      Object.assign(state, { problems, problem_words, results });
      const present = new Set(runs.map((run) => run.id));
      for (const run of runs) state.runs.set(run.id, run);
      forget([...state.runs.keys()].filter((id) => !present.has(id)));
    } catch (error) {
      if (error.status) console.warn(error.message);
    }
  }

  function onRuns({ runs = [], gone = [], all = false }) {
    const was_empty = state.runs.size === 0;
    if (all) {
      const present = new Set(runs.map((run) => run.id));
      gone = [...state.runs.keys()].filter((id) => !present.has(id));
    }
    for (const run of runs) {
      const before = state.runs.get(run.id);
      state.runs.set(run.id, run);
      const was_reading = before?.read && before.read.bytes < before.read.of_bytes;
      if (state.selected.includes(run.id) && before && (was_reading || before.state !== run.state)) wantDetail(run.id);
    }
    state.removed = state.removed.filter((id) => !state.runs.has(id)); // back again, or begun anew under its name
    state.missing = state.missing.filter((id) => !state.runs.has(id));
    if (gone.length) forget(gone);
    else emit("runs");
    emit("removed");
    if (was_empty && !state.selected.length && state.runs.size) chooseFirst();
  }

  function onEvents({ run, process, events }) {
    const known = new Set((state.details.get(run)?.metrics ?? []).map((metric) => metric.key));
    const suffix = process === 0 ? "" : `@${process}`;
    const news = events.some((event) => event.kind === "start" || event.kind === "end"
      || Object.keys(event.values ?? {}).some((key) => !known.has(key) && !known.has(key + suffix)));
    if (news && state.details.has(run)) wantDetail(run);
    emit("events", { run, process, events });
  }

  function onMessage(name, data) {
    if (name === "runs") onRuns(data);
    else if (name === "events") onEvents(data);
    else if (name === "reset") {
      wantDetail(data.run);
      emit("reset", data);
    }
  }

  /** A stream for the selected runs. It goes on where the last one was; runs new to it begin where they are now. */
  function connect() {
    const wanted = [...state.selected].sort();
    if (stream !== null && wanted.join("\n") === streamed.join("\n")) return;
    const cursor = stream?.cursor() ?? null;
    let added = wanted.filter((id) => !streamed.includes(id));
    streamed = wanted;
    stream?.close();
    stream = openStream({
      address: (from) => api.streamAddress({ runs: wanted, cursor: from }),
      cursor,
      onMessage,
      onState: (connection) => {
        setConnection(connection);
        if (connection !== "live" || !added.length) return;
        emit("restream", { runs: added }); // their series may have been read before the stream began
        added = [];
      },
    });
  }

  on("selection", () => {
    for (const id of state.details.keys()) if (!state.selected.includes(id)) state.details.delete(id);
    for (const id of state.selected) if (!state.details.has(id)) wantDetail(id, 0);
    connect();
  });
  for (const id of state.selected) wantDetail(id, 0);
  connect();
}
