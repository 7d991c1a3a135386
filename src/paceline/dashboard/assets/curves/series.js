/**
 * Owns: the series and marks of selected runs in the page: what is asked for, live values, zoomed ranges.
 * Not here: the points of one series (points.js), what is drawn of them (traces.js).
 * Invariant: hearing a step twice (from a request and from the stream) changes nothing; a run that goes back to an
 *   earlier step is asked for anew; memory stays bounded however long a run is watched.
 */

import { COMPILER, DERIVED, EVALUATION } from "./catalogue.js";
import { toNumber } from "../shared/format.js";
import { evaluationMarks, markId, marksOf } from "./marks.js";
import { emptySeries, put, seriesOf } from "./points.js";

const POINTS = 400;
const GATHER_MS = 15;
const DERIVED_MS = 1500;
/** While the server is still reading a long run for the first time. */
const READING_MS = 500;
/** After a run went back to an earlier step. */
const RENEW_MS = 300;

export class SeriesBook {
  /**
   * @param {Object} options
   * @param {Object} options.api
   * @param {Object} options.state of the page
   * @param {(run: string, keys: string[]|null, live: boolean) => void} options.onChange series changed; null for all of
   *   a run; live: values were added at the end and nothing else
   */
  constructor({ api, state, onChange }) {
    this.api = api;
    this.state = state;
    this.points = POINTS;
    this.onChange = onChange;
    this.whole = new Map();
    this.near = new Map();
    this.marks = new Map();
    this.ranges = null; // by run: {from, to}
    this.wanted = new Map();
    this.derivedDue = new Map();
    this.renewDue = new Set();
    this.lastStep = new Map(); // by run: the newest that was heard
    this.lastOdd = new Map(); // by run: the newest with a value that is not finite
    this.timers = new Set();
    this.trouble = null;
  }

  close() {
    for (const timer of this.timers) clearTimeout(timer);
    this.timers.clear();
  }

  later(action, wait_ms) {
    const timer = setTimeout(() => {
      this.timers.delete(timer);
      action();
    }, wait_ms);
    this.timers.add(timer);
  }

  /** The best there is now: the zoomed range if it came, else the whole run. */
  get(run, key) {
    if (key === COMPILER.key) return this.compilerPeak(run);
    const near = this.ranges ? this.near.get(name(run, key)) : null;
    return near?.state === "ready" ? near : this.whole.get(name(run, key)) ?? null;
  }

  /** What the compiler reserves of a device, by the program: the same at every step. */
  compilerPeak(run) {
    const value = this.state.details.get(run)?.program?.memory?.peak_bytes;
    const { step, started_s, updated_s } = this.state.runs.get(run) ?? {};
    if (!Number.isFinite(value) || !step) return null;
    const ends = { step: [Math.min(1, step), step], time: [started_s, updated_s], value: [value, value] };
    return { ...emptySeries(2), ...ends, state: "ready", pending: null, last: { step, value } };
  }

  /** Asks for series that are not there yet; many calls within a moment make one request. */
  want(run, key) {
    if (key === COMPILER.key) return;
    const id = name(run, key);
    if (!this.whole.has(id)) this.ask(this.whole, run, key);
    if (this.ranges?.has(run) && !this.near.has(id)) this.ask(this.near, run, key);
  }

  ask(book, run, key) {
    const present = book.get(name(run, key));
    if (present) present.pending ??= []; // what comes from now on is put into the answer too
    else book.set(name(run, key), emptySeries(this.points));
    const range = book === this.near ? this.ranges.get(run) : { from: null, to: null };
    const request = `${book === this.near} ${range.from} ${range.to}`;
    if (!this.wanted.has(request)) {
      this.wanted.set(request, { book, ...range, runs: new Set(), keys: new Set() });
      this.later(() => this.fetch(request), GATHER_MS);
    }
    this.wanted.get(request).runs.add(run);
    this.wanted.get(request).keys.add(key);
  }

  async fetch(request) {
    const { book, from, to, runs, keys } = this.wanted.get(request);
    this.wanted.delete(request);
    const ranges = this.ranges;
    try {
      const answer = await this.api.series({ runs: [...runs], keys: [...keys], points: this.points, from, to });
      this.trouble = null;
      if (book === this.near && ranges !== this.ranges) return; // zoomed elsewhere meanwhile
      for (const run of runs) this.take(book, run, [...keys], answer.runs[run]);
    } catch (error) {
      this.trouble = error.message;
      for (const run of runs) for (const key of keys) this.fail(book, name(run, key));
      this.later(() => runs.forEach((run) => this.onChange(run, null, false)), 2000);
    }
  }

  /** No answer came: what was never there is asked for again at the next draw. */
  fail(book, id) {
    const present = book.get(id);
    if (present?.state === "loading") book.delete(id);
    else if (present) present.pending = null;
  }

  take(book, run, keys, answer) {
    for (const key of keys) {
      const id = name(run, key);
      const pending = book.get(id)?.pending;
      if (!pending) continue; // forgotten meanwhile
      const series = seriesOf(answer?.series?.[key], this.points);
      for (const one of pending) put(series, ...one);
      book.set(id, series);
      this.lastStep.set(run, Math.max(this.lastStep.get(run) ?? -1, series.last?.step ?? -1));
      const given = answer?.series?.[key];
      if (given && EVALUATION.test(key)) {
        this.addMarks(run, evaluationMarks(key, { ...given, time: given.time_s, value: given.value.map(toNumber) }));
      }
    }
    this.addMarks(run, answer?.marks ?? []);
    if (answer?.reading) this.renewSoon(run, READING_MS);
    this.onChange(run, keys, false);
  }

  /** Asks for the series of a run that are here once more, as a whole; they stay until the answer comes. */
  renewSoon(run, wait_ms = RENEW_MS) {
    if (this.renewDue.has(run)) return;
    this.renewDue.add(run);
    this.later(() => {
      this.renewDue.delete(run);
      this.renew(run, this.keysOf(run));
    }, wait_ms);
  }

  renew(run, keys) {
    for (const key of keys) {
      this.near.delete(name(run, key));
      this.ask(this.whole, run, key);
    }
  }

  keysOf(run) {
    return [...this.whole.keys()].filter((id) => id.startsWith(`${run}\n`)).map((id) => id.slice(run.length + 1));
  }

  addMarks(run, marks) {
    if (!this.marks.has(run)) this.marks.set(run, new Map());
    const known = this.marks.get(run);
    for (const mark of marks) if (!known.has(markId(mark))) known.set(markId(mark), mark);
  }

  /** Everything of a run anew: it was replaced, or too much came at once. */
  forget(run) {
    for (const book of [this.whole, this.near]) {
      for (const id of [...book.keys()]) if (id.startsWith(`${run}\n`)) book.delete(id);
    }
    this.marks.delete(run);
    this.lastStep.delete(run);
    this.onChange(run, null, false);
  }

  /** Zooms: steps from and to, by run; null shows whole runs again. */
  setRanges(ranges) {
    this.ranges = ranges;
    this.near = new Map();
  }

  /** Live events of one process, in order. */
  append({ run, process, events }) {
    const changed = new Set();
    const suffix = process === 0 ? "" : `@${process}`;
    for (const event of events) {
      for (const [key, given] of Object.entries(event.values ?? {})) {
        const point = [event.step, event.time_s, toNumber(given)];
        if (!this.put(run, key + suffix, point)) continue;
        changed.add(key + suffix);
        if (EVALUATION.test(key) && !suffix) {
          const [step, time, value] = point;
          this.addMarks(run, evaluationMarks(key, { step: [step], time: [time], value: [value] }));
        }
      }
    }
    const known = this.marks.get(run);
    const before = known?.size;
    const marks = known ? events.flatMap((event) => marksOf(event, { process, known })) : [];
    if (known) this.addMarks(run, marks.filter(this.begins(run)));
    const marked = known && known.size > before;
    if (changed.size || marked) this.onChange(run, [...changed], !marked);
    if (process !== 0) return;
    this.watchSteps(run, events);
    this.deriveSoon(run);
  }

  /** Of a stretch of steps that are not finite the first is a mark, as the server counts. */
  begins(run) {
    return ({ kind, step }) => {
      if (kind !== "nonfinite") return true;
      const goes_on = this.lastOdd.get(run) === step - 1;
      this.lastOdd.set(run, step);
      return !goes_on;
    };
  }

  /** A resumed run goes back: all that came after that step does not count any more. */
  watchSteps(run, events) {
    for (const { kind, step } of events) {
      if (kind !== "step") continue;
      if (step <= (this.lastStep.get(run) ?? -1)) this.renewSoon(run);
      this.lastStep.set(run, step);
    }
  }

  put(run, key, point) {
    const whole = this.whole.get(name(run, key));
    const near = this.ranges ? this.near.get(name(run, key)) : null;
    const range = this.ranges?.get(run);
    if (whole) put(whole, ...point);
    if (near && range && point[0] >= range.from && point[0] <= range.to) put(near, ...point);
    return Boolean(whole);
  }

  /** The tails of what the server derives, now and then while events come. */
  deriveSoon(run) {
    if (this.derivedDue.get(run)) return;
    this.derivedDue.set(run, true);
    this.later(() => {
      this.derivedDue.set(run, false);
      this.catchUp(run, (key) => DERIVED.has(key));
    }, DERIVED_MS);
  }

  /** Asks for what is behind the last step of the series of a run that are here already. */
  async catchUp(run, chosen = () => true) {
    const keys = this.keysOf(run).filter((key) => chosen(key) && this.whole.get(name(run, key)).state === "ready");
    if (!keys.length) return;
    const last = Math.min(...keys.map((key) => this.whole.get(name(run, key)).last?.step ?? -1));
    try {
      const answer = (await this.api.series({ runs: [run], keys, points: this.points, from: last + 1 })).runs[run];
      for (const key of keys) {
        const given = answer?.series?.[key];
        if (given?.means) this.renew(run, [key]); // so much is new that single steps were left out
        else given?.step.forEach((step, at) => this.put(run, key, [step, given.time_s[at], toNumber(given.value[at])]));
      }
      this.addMarks(run, answer?.marks ?? []);
      if (answer?.reading) this.renewSoon(run, READING_MS);
      this.onChange(run, keys, false);
    } catch (error) {
      if (!error.status) return; // no connection: the stream says so, and reconnects
      console.warn(error.message);
    }
  }
}

function name(run, key) {
  return `${run}\n${key}`;
}
