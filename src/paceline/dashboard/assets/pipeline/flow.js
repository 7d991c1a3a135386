/**
 * Owns: the rows in motion: where each dot stands at a moment, and moving it.
 * Not here: the still drawing (draw.js).
 * Invariant: batches begin at the measured rate (times the scale that the page names), and a batch lives as long as the
 *   measured latency at the same scale: so the dots on the page are the rows in flight, L x T of them.
 *
 * Rows become gradients during the backward half of forward/backward; in the all-reduce each lane's gradients go to the
 * other lanes; in the update they are absorbed.
 */

import { svg } from "../shared/dom.js";
import { reach, slots } from "./draw.js";
import { dots, life, number, timeScale } from "./model.js";

const ROW = "M-2.6 0a2.6 2.6 0 1 0 5.2 0a2.6 2.6 0 1 0 -5.2 0Z";
const GRADIENT = "M0 -3.4L3.4 0L0 3.4L-3.4 0Z";
const FRAME_MS = 33; // thirty pictures a second are enough, and leave the machine to the training
const LONGEST_GAP_S = 0.25; // a page that slept must not jump
const STILL_PHASE = 0.62;
const MOST_DOTS_DOWN = 2; // a lane and batch, where stages are low: more would run into one another
const TURN = 0.4; // part of forward/backward at which rows turn to gradients

/**
 * The motion on a group of the drawing.
 *
 * @returns {{set: Function, run: Function, close: Function, caption: Function}}
 */
export function makeFlow(group) {
  let scene = null;
  let pool = [];
  let phase = STILL_PHASE; // batches begun since the page opened; its fraction is the step's progress
  let running = false;
  let frame = null;
  let before = null;

  function set(next) {
    scene = next && timed(next);
    const wanted = scene ? scene.alive * scene.perBatch : 0;
    while (pool.length < wanted) pool.push(svg("path", { class: "pl-dot" }));
    pool = pool.slice(0, wanted);
    if (group.childElementCount !== wanted) group.replaceChildren(...pool);
    place();
  }

  function run(wish) {
    if (wish === running) return;
    running = wish;
    before = null;
    if (frame !== null) cancelAnimationFrame(frame);
    frame = running ? requestAnimationFrame(tick) : null;
  }

  function tick(now_ms) {
    frame = requestAnimationFrame(tick);
    if (before !== null && now_ms - before < FRAME_MS) return;
    const gap_s = before === null ? 0 : Math.min(LONGEST_GAP_S, (now_ms - before) / 1000);
    before = now_ms;
    if (!scene?.step_s) return;
    phase += gap_s / (scene.step_s * scene.scale);
    place();
  }

  function place() {
    if (!scene?.step_s) {
      for (const dot of pool) dot.setAttribute("visibility", "hidden");
      return;
    }
    const newest = Math.floor(phase);
    let index = 0;
    for (let back = 0; back < scene.alive; back += 1) {
      const age_s = (phase - newest + back) * scene.step_s;
      for (let one = 0; one < scene.perBatch; one += 1) move(pool[index++], spot(scene, { age_s, one }));
    }
  }

  return { set, run, close: () => run(false), caption: () => scene };
}

/** The scene with everything that does not change from picture to picture. */
function timed(scene) {
  const { state, layout } = scene;
  const { perLane, rows, batches } = dots(state, layout.laneCount, layout.vertical ? MOST_DOTS_DOWN : undefined);
  const step_s = number(state.step_s);
  return {
    ...scene,
    step_s,
    perLane,
    perBatch: perLane * layout.laneCount,
    rowsADot: rows,
    alive: batches,
    scale: timeScale(step_s),
    life: life(state),
    slots: slots(layout, state),
    reach: reach(layout),
  };
}

function move(dot, place) {
  if (place === null) {
    if (dot.getAttribute("visibility") !== "hidden") dot.setAttribute("visibility", "hidden");
    return;
  }
  const shape = place.gradient ? GRADIENT : ROW;
  if (dot.getAttribute("d") !== shape) {
    dot.setAttribute("d", shape);
    dot.setAttribute("class", place.gradient ? "pl-dot pl-dot-gradient" : "pl-dot");
  }
  dot.setAttribute("visibility", "visible");
  dot.setAttribute("transform", `translate(${place.x.toFixed(1)} ${place.y.toFixed(1)})`);
}

/** Where dot `one` of a batch of this age stands; null when the batch is done. */
export function spot(scene, { age_s, one }) {
  const stage = scene.life.find((part) => age_s < part.end);
  if (!stage) return null;
  const part = (age_s - stage.begin) / (stage.end - stage.begin);
  const [u, v] = PLACES[stage.id](scene, { part, one, left_s: stage.end - age_s });
  const [x, y] = scene.layout.xy(u, v);
  return {
    x,
    y,
    gradient: stage.id === "all_reduce" || stage.id === "update" || (stage.id === "forward_backward" && part > TURN),
  };
}

/** Lane and place in the lane of a dot. */
function seat(scene, one) {
  return { lane: Math.floor(one / scene.perLane), column: one % scene.perLane };
}

/** The dots of a batch as a block around a place: lanes across, columns along. */
function block(scene, { one, u0, u1 }) {
  const { lane, column } = seat(scene, one);
  const v = scene.layout.middle + ((lane + 0.5) / scene.layout.laneCount - 0.5) * 2 * (scene.reach - 5);
  return [u0 + ((column + 0.5) / scene.perLane) * (u1 - u0), v];
}

const PLACES = {
  input(scene, { part, one }) {
    const { u0, u1 } = scene.layout.boxes.input;
    const inset = scene.layout.inset + 3;
    const width = Math.min(36, u1 - u0 - 2 * inset);
    const from = u0 + inset + (u1 - u0 - 2 * inset - width) * part;
    return block(scene, { one, u0: from, u1: from + width });
  },
  prefetch(scene, { one, left_s }) {
    const place = Math.min(scene.slots.length - 1, Math.floor(left_s / scene.step_s));
    const slot = scene.slots[Math.max(0, place)];
    return block(scene, { one, u0: slot.u0 + 2, u1: slot.u1 - 2 });
  },
  shard(scene, { part, one }) {
    const { u0, u1 } = scene.layout.boxes.shard;
    const { lane, column } = seat(scene, one);
    const late = Math.min(1, Math.max(0, part * 1.3 - 0.3 * (1 - column / scene.perLane)));
    return [u0 + 4 + (u1 - u0 - 8) * late, mix(scene.layout.middle, scene.layout.lane(lane), bend(late))];
  },
  placed(scene, { one, left_s }) {
    const { u0, u1 } = scene.layout.boxes.shard;
    const { lane, column } = seat(scene, one);
    const ahead = Math.floor(left_s / scene.step_s); // steps before this batch's own
    const spread = Math.min(7, (u1 - u0) / 3 / scene.perLane);
    const back = (ahead * scene.perLane + (scene.perLane - column)) * spread;
    return [Math.max(u0 + 0.4 * (u1 - u0), u1 - 4 - back), scene.layout.lane(lane)];
  },
  forward_backward(scene, { part, one }) {
    const { u0, u1 } = scene.layout.boxes.forward_backward;
    const { lane, column } = seat(scene, one);
    const spread = Math.min(8, (u1 - u0) / 16);
    return [u0 + 8 + (u1 - u0 - 16 - spread * (scene.perLane - 1)) * part + spread * column, scene.layout.lane(lane)];
  },
  all_reduce(scene, { part, one }) {
    const { u0, u1 } = scene.layout.boxes.all_reduce;
    const { lane, column } = seat(scene, one);
    const to = (lane + column + 1) % scene.layout.laneCount;
    return [u0 + 8 + (u1 - u0 - 16) * part, mix(scene.layout.lane(lane), scene.layout.lane(to), bend(part))];
  },
  update(scene, { part, one }) {
    const { u0, u1 } = scene.layout.boxes.update;
    const { lane, column } = seat(scene, one);
    const to = (lane + column + 1) % scene.layout.laneCount;
    return [u0 + 4 + (scene.layout.inset + 2) * part, scene.layout.lane(to)];
  },
};

function mix(from, to, part) {
  return from + (to - from) * part;
}

function bend(part) {
  return part * part * (3 - 2 * part);
}
