/**
 * Owns: the points of one series: every step of a short run, or means of stretches of a long one; values that come
 *   live.
 * Not here: which series there are and asking for them (series.js).
 * Invariant: a stretch's mean, least and greatest value are those of all its steps; steps increase; hearing a step
 *   twice changes nothing.
 */

import { toNumber } from "../shared/format.js";

/** Live values beyond what was asked for, as a multiple, before a curve is made of stretches. */
const RAW_ROOM = 1.25;
const LISTS = ["from", "to", "step", "time", "value", "low", "high", "count", "odd"];

/**
 * @typedef {Object} Series
 * @property {string} state "loading" or "ready"
 * @property {Array|null} pending live values that came while a request is out; null while none is
 * @property {boolean} thinned whether a point stands for several steps
 * @property {number[]} step where each point is drawn, `time` [s] and `value` likewise
 * @property {number[]} [low] of each stretch, and `high`, `from` and `to` (steps), `count` (finite values) and `odd`
 *   (others)
 * @property {{step: number, value: number}|null} last the newest value itself
 * @property {number} most points to have about
 */

/** @returns {Series} one that was asked for */
export function emptySeries(most) {
  return { state: "loading", pending: [], thinned: false, step: [], time: [], value: [], last: null, most };
}

/** @returns {Series} of what `/api/series` says of one key; nothing gives an empty one */
export function seriesOf(given, most) {
  const series = { ...emptySeries(most), state: "ready", pending: null };
  if (!given?.step.length) return series;
  const value = given.value.map(toNumber);
  series.last = { step: given.step.at(-1), value: value.at(-1) };
  if (!given.means) return Object.assign(series, { step: given.step, time: given.time_s, value });
  const { from_step: from, to_step: to, time_s, value: mean, finite: count, not_finite: odd } = given.means;
  Object.assign(series, { thinned: true, from, to, time: time_s, value: mean, count, odd });
  Object.assign(series, extremes(given.step, value, to));
  series.step = from.map((one, at) => (one + to[at]) / 2);
  [series.step[0], series.time[0]] = [from[0], given.time_s[0]]; // the curve reaches from its first step to its last
  openLast(series, given.time_s.at(-1));
  series.size = Math.max(1, ...count.map((one, at) => one + odd[at]));
  return series;
}

/** The least and the greatest of each stretch are among the values that were kept. */
function extremes(step, value, to) {
  const low = to.map(() => null);
  const high = to.map(() => null);
  let bucket = 0;
  step.forEach((one, at) => {
    while (bucket < to.length - 1 && one > to[bucket]) bucket += 1;
    if (!Number.isFinite(value[at])) return;
    low[bucket] = low[bucket] === null ? value[at] : Math.min(low[bucket], value[at]);
    high[bucket] = high[bucket] === null ? value[at] : Math.max(high[bucket], value[at]);
  });
  return { low, high };
}

/** The last stretch may go on, and is drawn at its end. */
function openLast(series, time) {
  const at = series.to.length - 1;
  series.opened = series.time[at] - (time - series.time[at]);
  [series.step[at], series.time[at]] = [series.to[at], time];
}

/** Puts in one live value, and keeps it for a request that is out. */
export function put(series, step, time, value) {
  series.pending?.push([step, time, value]);
  if (series.state !== "ready") return;
  if (series.thinned) {
    if (series.last && step <= series.last.step) return; // heard before; a run that goes back is asked for anew
    putMean(series, step, time, value);
  } else putRaw(series, step, time, value);
  if (!series.last || step >= series.last.step) series.last = { step, value };
}

function putRaw(series, step, time, value) {
  const last = series.step.at(-1);
  if (last === undefined || step > last) {
    series.step.push(step);
    series.time.push(time);
    series.value.push(value);
    if (series.step.length > RAW_ROOM * series.most) gather(series);
    return;
  }
  const at = firstNotBelow(series.step, step); // a resumed run computes a step again: the later value counts
  const replaced = series.step[at] === step ? 1 : 0;
  series.step.splice(at, replaced, step);
  series.time.splice(at, replaced, time);
  series.value.splice(at, replaced, value);
}

/** A series of single steps becomes one of stretches. */
function gather(series) {
  const { step, time, value } = series;
  for (const list of LISTS) series[list] = [];
  Object.assign(series, { thinned: true, size: 2 });
  step.forEach((one, at) => putMean(series, one, time[at], value[at]));
}

function putMean(series, step, time, value) {
  let at = series.to.length - 1;
  if (at < 0 || series.count[at] + series.odd[at] >= series.size) {
    if (at > 0) {
      series.step[at] = (series.from[at] + series.to[at]) / 2;
      series.time[at] = (series.opened + series.time[at]) / 2;
    } else if (at === 0) [series.step[0], series.time[0]] = [series.from[0], series.opened];
    const fresh = { from: step, to: step, step, time, value: null, low: null, high: null, count: 0, odd: 0 };
    for (const list of LISTS) series[list].push(fresh[list]);
    series.opened = time;
    at += 1;
  }
  [series.to[at], series.step[at], series.time[at]] = [step, step, time];
  if (Number.isFinite(value)) {
    series.count[at] += 1;
    series.value[at] = (series.value[at] ?? 0) + (value - (series.value[at] ?? 0)) / series.count[at];
    series.low[at] = Math.min(series.low[at] ?? Infinity, value);
    series.high[at] = Math.max(series.high[at] ?? -Infinity, value);
  } else series.odd[at] += 1;
  if (series.to.length > series.most) pairUp(series);
}

/** Half as many stretches, each twice as long; of an odd number the last stays as it is, and goes on. */
function pairUp(series) {
  const old = Object.fromEntries(LISTS.map((list) => [list, series[list]]));
  for (const list of LISTS) series[list] = [];
  series.size *= 2;
  const end = old.to.length - 1;
  for (let at = 0; at <= end; at += 2) {
    const next = Math.min(at + 1, end);
    const [n, m] = [old.count[at], next > at ? old.count[next] : 0];
    const ends = { from: old.from[at], to: old.to[next] };
    const open = next === end;
    const joined = {
      ...ends,
      step: open ? old.step[end] : at === 0 ? old.step[0] : (ends.from + ends.to) / 2,
      time: open ? old.time[end] : at === 0 ? old.time[0] : (old.time[at] + old.time[next]) / 2,
      value: n + m ? ((old.value[at] ?? 0) * n + (m ? old.value[next] * m : 0)) / (n + m) : null,
      low: least([old.low[at], old.low[next]], Math.min), high: least([old.high[at], old.high[next]], Math.max),
      count: n + m, odd: old.odd[at] + (next > at ? old.odd[next] : 0),
    };
    if (open && next > at) series.opened = old.time[at];
    for (const list of LISTS) series[list].push(joined[list]);
  }
}

function least(values, choose) {
  const known = values.filter((one) => one !== null);
  return known.length ? choose(...known) : null;
}

/** Least, greatest, and how many are not finite: of all steps. */
export function bounds(series) {
  let [low, high, gaps] = [Infinity, -Infinity, 0];
  const [lows, highs] = series.thinned ? [series.low, series.high] : [series.value, series.value];
  for (let at = 0; at < lows.length; at += 1) {
    if (Number.isFinite(lows[at])) {
      if (lows[at] < low) low = lows[at];
      if (highs[at] > high) high = highs[at];
    } else if (!series.thinned && lows[at] !== null) gaps += 1;
    if (series.thinned) gaps += series.odd[at];
  }
  return low <= high ? { low, high, gaps } : { low: null, high: null, gaps };
}

/** Index of the first element that is not below a value, in an ascending list. */
export function firstNotBelow(ascending, value) {
  let [low, high] = [0, ascending.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ascending[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Index of the element nearest to a value, in an ascending list. */
export function nearest(ascending, value) {
  const at = firstNotBelow(ascending, value);
  if (at === 0) return 0;
  if (at === ascending.length) return at - 1;
  return value - ascending[at - 1] < ascending[at] - value ? at - 1 : at;
}
