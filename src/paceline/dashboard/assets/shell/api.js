/**
 * Owns: every request of the page but the stream: addresses, errors.
 * Not here: what is done with the answers.
 * Invariant: all requests go to the page's own origin; a refusal becomes an ApiError with what, why and fix.
 */

import { words } from "../shared/words.js";

/** A refusal of the server, in its own words. */
export class ApiError extends Error {
  constructor({ what, why = "", fix = "" }, status) {
    super([what, why, fix].filter(Boolean).join(". "));
    this.what = what;
    this.why = why;
    this.fix = fix;
    this.status = status;
  }
}

/** `/api/NAME?…`: arrays repeat their key, null is left out. */
export function address(name, query = {}) {
  const parameters = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined) parameters.append(key, one);
    }
  }
  const text = parameters.toString();
  return text ? `/api/${name}?${text}` : `/api/${name}`;
}

/** What the browser says of a server that cannot be reached, in the reader's language. */
function unreached(error) {
  return error instanceof TypeError ? new Error(words("app.unreached"), { cause: error }) : error;
}

async function get(name, query, { signal } = {}) {
  const asked = fetch(address(name, query), { signal, headers: { Accept: "application/json" } });
  const response = await asked.catch((error) => Promise.reject(unreached(error)));
  if (response.ok) return response.json();
  let error = null;
  try {
    ({ error } = await response.json());
  } catch {
    // Not this server's own answer, for instance a proxy's.
  }
  throw new ApiError(error ?? { what: `${name}: ${response.status} ${response.statusText}` }, response.status);
}

/** The JSON API, as docs/watch-api.md describes it. Each method takes `{signal}` last. */
export const api = {
  runs: (options) => get("runs", {}, options),
  run: (run, options) => get("run", { run }, options),
  series: ({ runs, keys, points = 1000, from = null, to = null }, options) =>
    get("series", { run: runs, key: keys, points, from_step: from, to_step: to }, options),
  pipeline: ({ run, step = null }, options) => get("pipeline", { run, step }, options),
  replicas: (run, options) => get("replicas", { run }, options),
  events: ({ run, before = null, limit = 200 }, options) => get("events", { run, before, limit }, options),
  compare: (subjects, options) => get("compare", { subject: subjects }, options),
  csvAddress: ({ run, keys }) => address("csv", { run, key: keys }),
  streamAddress: ({ runs, cursor = null }) => address("stream", { run: runs, cursor }),
};
