/**
 * Owns: where everything of the pipeline's drawing stands: across on a wide page, down on a narrow one.
 * Not here: what is drawn (draw.js), motion (flow.js).
 * Invariant: one set of places `(u, v)` for both: u runs with the flow, v across the lanes; `xy` turns them to pixels.
 */

import { STAGES } from "./model.js";

export const NARROW_PX = 760;
const TIGHT_PX = 960;
const MARGIN = 8;
/** Length of each stage along the flow: its share of the width when wide, pixels of its art when narrow. */
const ACROSS = {
  input: 1.15,
  prefetch: 1.15,
  shard: 1.15,
  forward_backward: 1.6,
  all_reduce: 1.05,
  update: 1.0,
  output: 0.85,
};
const DOWN = { input: 34, prefetch: 40, shard: 34, forward_backward: 84, all_reduce: 52, update: 30, output: 34 };
const HEAD_PX = { across: 84, down: 44 };
const FOOT_PX = 66;

/** The layout of `laneCount` lanes in `width` pixels. */
export function layout(width, laneCount) {
  return width < NARROW_PX ? down(width, laneCount) : across(width, laneCount);
}

function across(width, laneCount) {
  const unit = (width - 2 * MARGIN) / STAGES.reduce((sum, id) => sum + ACROSS[id], 0);
  const size = Math.min(44, Math.max(17, 264 / laneCount));
  const length = Math.max(136, size * laneCount);
  const top = HEAD_PX.across + (length - size * laneCount) / 2;
  const boxes = {};
  let u = MARGIN;
  for (const id of STAGES) {
    boxes[id] = { u0: u, u1: u + unit * ACROSS[id] };
    u = boxes[id].u1;
  }
  const end = HEAD_PX.across + length;
  return finished({
    vertical: false,
    tight: width < TIGHT_PX,
    inset: 10,
    width,
    height: end + FOOT_PX,
    boxes,
    size,
    laneCount,
    first: top,
    middle: HEAD_PX.across + length / 2,
    band: (id) => ({ x: boxes[id].u0, y: 22, width: boxes[id].u1 - boxes[id].u0, height: end + FOOT_PX - 26 }),
    head: (id) => ({ x: boxes[id].u0 + 8, y: 40 }),
    foot: (id) => ({ x: boxes[id].u0 + 8, y: end + 22, width: boxes[id].u1 - boxes[id].u0 - 10 }),
  });
}

function down(width, laneCount) {
  const size = Math.min(64, (width - 2 * MARGIN - 8) / laneCount);
  const first = (width - size * laneCount) / 2;
  const boxes = {};
  const begins = {};
  let y = 4;
  for (const id of STAGES) {
    begins[id] = y;
    boxes[id] = { u0: y + HEAD_PX.down, u1: y + HEAD_PX.down + DOWN[id] };
    y = boxes[id].u1 + 8;
  }
  return finished({
    vertical: true,
    tight: false,
    inset: 3,
    width,
    height: y + 2,
    boxes,
    size,
    laneCount,
    first,
    middle: width / 2,
    band: (id) => ({ x: 1, y: begins[id], width: width - 2, height: boxes[id].u1 - begins[id] + 6 }),
    head: (id) => ({ x: MARGIN + 2, y: begins[id] + 18, right: width - MARGIN - 2 }),
    foot: (id) => ({ x: MARGIN + 2, y: begins[id] + 34, width: width - 2 * MARGIN }),
  });
}

function finished(parts) {
  const xy = parts.vertical ? (u, v) => [v, u] : (u, v) => [u, v];
  return {
    ...parts,
    xy,
    /** Middle of a lane, across the flow. */
    lane: (index) => parts.first + (index + 0.5) * parts.size,
    /** A rectangle's attributes from its places. */
    rect(u0, u1, v0, v1) {
      const [x, y] = xy(u0, v0);
      const [x1, y1] = xy(u1, v1);
      return { x: round(x), y: round(y), width: round(x1 - x), height: round(y1 - y) };
    },
    /** A path through places; "C" takes three of them. */
    path: (...steps) =>
      steps
        .map((step) =>
          Array.isArray(step)
            ? xy(...step)
                .map(round)
                .join(" ")
            : step,
        )
        .join(" "),
  };
}

function round(value) {
  return Math.round(value * 10) / 10;
}
