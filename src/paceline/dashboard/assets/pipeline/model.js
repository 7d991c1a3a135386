/**
 * What the pipeline's drawing shows, worked out from `/api/pipeline`.
 *
 * Owns: lanes, groups of lanes, shapes as text, the life of a batch from the begin of its making to the end of its
 *   update, and the scale of time at which the page shows it.
 * Not here: geometry (`layout.js`), elements (`draw.js`), motion (`flow.js`).
 * Invariant: pure functions of numbers; what is not known stays null and is never drawn as 0.
 */

export const STAGES = ["input", "prefetch", "shard", "forward_backward", "all_reduce", "update", "output"];
const MOST_LANES = 16;
const LANES_OF_GROUPS = 8;
const MOST_DOTS_A_BATCH = 32;
const MOST_DOTS_A_LANE = 6;
const MOST_DOTS = 220;
const SECONDS_SHOWN_A_STEP = [1.6, 8]; // a step on the screen is never shorter, nor longer, than this
const NICE = [1, 2, 4, 5];

/** The devices as lanes: one each, or groups of equal size (the last may be smaller) when there are many. */
export function lanes(devices) {
  const count = Math.max(1, devices || 1);
  const size = count <= MOST_LANES ? 1 : Math.ceil(count / LANES_OF_GROUPS);
  const found = [];
  for (let first = 0; first < count; first += size) {
    const last = Math.min(first + size, count) - 1;
    found.push({ first, last, count: last - first + 1 });
  }
  return found;
}

/** A shape as Python writes it: `(256,)`. */
export function shapeText(shape) {
  if (!Array.isArray(shape)) return null;
  const sizes = shape.map((size) => size ?? "?"); // rows that do not split evenly have no one size
  return sizes.length === 1 ? `(${sizes[0]},)` : `(${sizes.join(", ")})`;
}

/** The shape at a stage, `{copies, shape, all}`: of the leaf with most dims, and all as text; null when not known. */
export function stageShape(state, id) {
  const whole = state.shapes?.input ?? [];
  const part = state.shapes?.shard ?? [];
  const leaves = id === "input" || id === "prefetch" ? whole : id === "shard" || id === "forward_backward" ? part : [];
  if (!leaves.length) return null;
  const copies = leaves === part && state.devices > 1 ? state.devices : null;
  const lead = leaves.reduce((most, leaf) => (leaf.shape.length > most.shape.length ? leaf : most));
  const all = leaves.map((leaf) => `${leaf.name} ${shapeText(leaf.shape)} ${leaf.dtype ?? ""}`.trim());
  return { copies, shape: shapeText(lead.shape), all };
}

/** The stages in order, each `{id, seconds, share, basis, shape, detail}`; one that is left out is not known. */
export function stages(state) {
  const given = new Map((state.stages ?? []).map((stage) => [stage.id, stage]));
  return STAGES.map((id) => {
    const stage = given.get(id) ?? {};
    return {
      id,
      seconds: number(stage.seconds),
      share: number(stage.share),
      basis: stage.basis ?? "none",
      detail: stage.detail ?? {},
      shape: stageShape(state, id),
    };
  });
}

/**
 * The life of a batch [s]: `[{id, begin, end}]`, stage after stage, from the begin of its making.
 *
 * Stages whose time is not known take none, except that a step must be somewhere: forward/backward takes what the
 * others leave. In the queue a batch waits one step for each batch there. What the measured latency has beyond all this
 * is the time "placed": on the devices already, while they work on the steps before.
 */
export function life(state) {
  const of = Object.fromEntries(stages(state).map((stage) => [stage.id, stage]));
  const step_s = number(state.step_s) ?? 0;
  const part_s = (stage) => stage.seconds ?? (stage.share ?? 0) * step_s;
  const compute_s = Math.max(0, step_s * (1 - (of.input.share ?? 0)));
  const spent_s = { input: of.input.seconds ?? 0, prefetch: 0, shard: of.shard.seconds ?? 0, placed: 0 };
  spent_s.forward_backward =
    of.forward_backward.seconds ?? Math.max(0, compute_s - part_s(of.all_reduce) - part_s(of.update));
  spent_s.all_reduce = part_s(of.all_reduce);
  spent_s.update = part_s(of.update);
  const waiting_s = of.prefetch.seconds ?? (number(state.queue?.batches) ?? 0) * step_s;
  const busy_s = Object.values(spent_s).reduce((sum, value) => sum + value, 0);
  const left_s = number(state.latency_s) === null ? waiting_s : Math.max(0, state.latency_s - busy_s);
  spent_s.prefetch = Math.min(waiting_s, left_s);
  spent_s.placed = left_s - spent_s.prefetch;
  let begin = 0;
  return Object.entries(spent_s).map(([id, seconds]) => {
    const stage = { id, begin, end: begin + seconds };
    begin = stage.end;
    return stage;
  });
}

/** How dots stand for rows: `{perLane, rows, batches}`: dots a lane and batch, rows a dot, batches on the way. */
export function dots(state, laneCount, mostPerLane = MOST_DOTS_A_LANE) {
  const step_s = number(state.step_s);
  const alive = life(state).at(-1).end / (step_s || Infinity);
  const batches = Math.min(12, Math.max(1, Math.ceil(alive || 1)));
  const rows = number(state.rows) ?? 0;
  const most = Math.min(mostPerLane, MOST_DOTS_A_BATCH / laneCount, MOST_DOTS / batches / laneCount);
  const perLane = Math.max(1, Math.floor(Math.min(most, rows / laneCount || 1)));
  return { perLane, rows: rows / (perLane * laneCount), batches };
}

/** By how much the page slows (above 1) or speeds up (below 1) time, so that the eye can follow: a round factor. */
export function timeScale(step_s) {
  const [least, most] = SECONDS_SHOWN_A_STEP;
  if (!(step_s > 0) || (step_s >= least && step_s <= most)) return 1;
  return step_s < least ? nice(least / step_s) : 1 / nice(step_s / most);
}

/** The smallest round number (1, 2, 4, 5 times a power of ten) that is not below `value`. */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  const factor = [...NICE, 10].find((one) => one * power >= value * (1 - 1e-9));
  return factor * power;
}

/** A finite number, or null: NaN and infinities come as strings. */
export function number(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}
