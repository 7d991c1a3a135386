/**
 * Owns: throughput of some steps: rows by seconds, not the mean of their rates, which slow steps would hardly lower.
 */

/** Over how many steps means are taken, as the server takes them. */
export const RECENT_STEPS = 50;

/** Whether a run has ended, so that means are over all its steps. */
export function hasEnded(run) {
  return ["finished", "stopped", "failed"].includes(run?.state);
}

/** @param {{rows: number, step_s: number}[]} steps @returns {number|null} rows a second; null if no time passed */
export function rowsBySeconds(steps) {
  const seconds = sum(steps, "step_s");
  return seconds > 0 ? sum(steps, "rows") / seconds : null;
}

export function sum(steps, name) {
  return steps.reduce((total, one) => total + one[name], 0);
}
