/**
 * Owns: which part of a key names a process: `input/wait_s@1` is the wait of process 1.
 * Not here: which keys a run has (the API), their titles (curves/names.js).
 * Invariant: a name that users give to a metric stays whole (`evaluate/recall@5`): processes after the first are shown
 *   with Paceline's own groups only.
 */

const OF_PROCESS = /^((?:input|memory|speed)\/.+)@([1-9]\d*)$/;

/** The key without its process. */
export function bareKey(key) {
  return key.replace(OF_PROCESS, "$1");
}

/** The index of the process; 0 for a key that names none. */
export function processOf(key) {
  return Number(OF_PROCESS.exec(key)?.[2] ?? 0);
}
