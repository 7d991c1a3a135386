/**
 * Owns: the still part of the pipeline's drawing: stages, lanes, queue, exchange, times, shapes, the bottleneck.
 * Not here: motion (flow.js), asking (pipeline.js), what the numbers are (model.js).
 * Invariant: how a number was found shows without colour: measured is a disc, what follows from it by Little's law a
 *   ring, modelled a broken ring, not known a dotted one, each with its word; the bottleneck has a word.
 */

import { svg } from "../shared/dom.js";
import { number } from "./model.js";
import { textWidth } from "../shared/text_width.js";

const MOST_SLOTS = 8;
const CHARACTER_PX = { wide: 6.7, tight: 6.1 }; // of the monospaced text of shapes

/**
 * The elements of the still part.
 *
 * @param {Object} scene `{state, stages, lanes, layout, words, format}`
 */
export function drawn(scene) {
  const { layout, stages } = scene;
  const parts = [layout.vertical ? null : sides(scene)];
  for (const stage of stages) parts.push(band(scene, stage));
  parts.push(
    rails(scene),
    input(scene),
    queue(scene),
    fan(scene),
    devices(scene),
    exchange(scene),
    updates(scene),
    output(scene),
  );
  for (const stage of stages) parts.push(head(scene, stage), foot(scene, stage));
  return parts.flat(Infinity).filter(Boolean);
}

/** What is written in the lanes: drawn over the dots, which would cover it. */
export function labels({ layout, lanes, state, words }) {
  const { forward_backward: devices, update } = layout.boxes;
  const found = lanes.flatMap((lane, index) => {
    const v = layout.lane(index);
    const [x, y] = layout.xy((update.u0 + update.u1) / 2, v);
    return [
      number(state.devices) !== null && laneLabel(layout, lane, { v, u0: devices.u0, u1: devices.u1, words }),
      !layout.vertical &&
        svg("text", { x, y: y + 3.5, class: "pl-lane-label pl-middle pl-parameters" }, words("pipeline.parameters")),
    ];
  });
  return found.filter(Boolean);
}

/** Where queue slots stand, front (nearest the devices) first: `[{u0, u1}]`. */
export function slots(layout, state) {
  const depth = number(state.queue?.depth) ?? Math.ceil(number(state.queue?.batches) ?? 0);
  const count = Math.max(1, Math.min(MOST_SLOTS, depth));
  const { u0, u1 } = layout.boxes.prefetch;
  const from = u0 + layout.inset;
  const pitch = (u1 - layout.inset - from) / count;
  return Array.from({ length: count }, (_, index) => {
    const begin = from + (count - 1 - index) * pitch;
    return { u0: begin + 1.5, u1: begin + pitch - 1.5 };
  });
}

/** Half the extent of the art before the lanes, across the flow. */
export function reach(layout) {
  return Math.min(layout.vertical ? 60 : 44, Math.max(26, (layout.size * layout.laneCount) / 2));
}

function sides({ layout, lanes, state, words }) {
  const side = (from, to, text) => {
    const x0 = layout.boxes[from].u0 + 8;
    const x1 = layout.boxes[to].u1 - 8;
    return [
      svg("text", { x: x0, y: 12, class: "pl-side" }, text),
      svg("line", { x1: x0, x2: x1, y1: 18, y2: 18, class: "pl-side-line" }),
    ];
  };
  const devices = devicesText({ state, lanes, words });
  return [side("input", "shard", words("pipeline.host")), side("forward_backward", "update", devices)].flat();
}

/** A bottleneck that is as it should be (the devices compute) is no warning. */
export function tone(id) {
  return id === "forward_backward" ? "pl-calm" : "pl-alarm";
}

function devicesText({ state, lanes, words }) {
  if (number(state.devices) === null) return words("pipeline.devices_unknown");
  if (state.devices === 1) return words("pipeline.one_device");
  const key = lanes.length === state.devices ? "pipeline.devices" : "pipeline.devices_grouped";
  return words(key, { count: state.devices, lanes: lanes.length });
}

function band({ layout, state }, stage) {
  if (state.bottleneck?.stage !== stage.id) return null;
  const box = layout.band(stage.id);
  return [
    svg("rect", { ...box, rx: 4, class: `pl-bottleneck-band ${tone(stage.id)}` }),
    svg("rect", {
      x: box.x,
      y: box.y,
      width: layout.vertical ? 3 : box.width,
      height: layout.vertical ? box.height : 3,
      class: `pl-bottleneck-edge ${tone(stage.id)}`,
    }),
  ];
}

/** The thin lines on which everything runs. */
function rails({ layout, lanes }) {
  const { middle, boxes } = layout;
  const found = [
    svg("path", {
      class: "pl-rail",
      d: layout.path("M", [boxes.input.u0 + layout.inset, middle], "L", [boxes.shard.u0 + 4, middle]),
    }),
  ];
  lanes.forEach((_, index) => {
    const v = layout.lane(index);
    found.push(
      svg("path", {
        class: "pl-rail",
        d: layout.path("M", [boxes.shard.u1 - 4, v], "L", [boxes.update.u1 - layout.inset, v]),
      }),
    );
  });
  return found;
}

function input({ layout, state }) {
  const { u0, u1 } = layout.boxes.input;
  const half = reach(layout);
  const found = [
    svg("rect", {
      ...layout.rect(u0 + layout.inset, u1 - layout.inset, layout.middle - half, layout.middle + half),
      rx: 4,
      class: "pl-box",
    }),
  ];
  if (number(state.rows) === null) return found;
  const lines = Math.min(9, Math.max(2, state.rows));
  for (let index = 1; index < lines; index += 1) {
    const v = layout.middle - half + (2 * half * index) / lines;
    found.push(
      svg("path", { class: "pl-row-line", d: layout.path("M", [u0 + layout.inset, v], "L", [u1 - layout.inset, v]) }),
    );
  }
  return found;
}

function queue({ layout, state }) {
  const batches = number(state.queue?.batches);
  const half = reach(layout);
  return slots(layout, state).flatMap((slot, index) => {
    const whole = layout.rect(slot.u0, slot.u1, layout.middle - half, layout.middle + half);
    const full = batches === null ? 0 : Math.min(1, Math.max(0, batches - index));
    const level = layout.rect(slot.u0, slot.u1, layout.middle + half - 2 * half * full, layout.middle + half);
    return [
      full > 0 && svg("rect", { ...level, rx: 2, class: "pl-slot-full" }),
      svg("rect", { ...whole, rx: 3, class: batches === null ? "pl-slot pl-unknown" : "pl-slot" }),
    ];
  });
}

function fan({ layout, lanes }) {
  const { u0, u1 } = layout.boxes.shard;
  const bend = (u0 + u1) / 2;
  return lanes.map((_, index) => {
    const v = layout.lane(index);
    const d = layout.path("M", [u0 + 4, layout.middle], "C", [bend, layout.middle], [bend, v], [u1 - 4, v]);
    return svg("path", { class: "pl-rail", d });
  });
}

function devices(scene) {
  const { layout, lanes, state } = scene;
  const { u0, u1 } = layout.boxes.forward_backward;
  const gap = Math.min(3, layout.size * 0.12);
  const half = layout.size / 2 - gap;
  const rows = number(state.rows) === null || !state.devices ? null : state.rows / state.devices;
  return lanes.flatMap((lane, index) => {
    const v = layout.lane(index);
    const place = { ...layout.rect(u0 + 4, u1 - 4, v - half, v + half), rx: 3 };
    if (number(state.devices) === null) return [svg("rect", { ...place, class: "pl-lane pl-unknown" })];
    const title = laneTitle(scene, lane, rows);
    return [svg("rect", { ...place, class: "pl-lane" }, svg("title", {}, title))];
  });
}

function laneTitle({ words, format }, lane, rows) {
  const name = laneName(lane, words);
  return rows === null ? name : words("pipeline.lane_rows", { lane: name, rows: format.count(rows * lane.count) });
}

function laneName(lane, words) {
  if (lane.count === 1) return words("pipeline.lane", { device: lane.first });
  return words("pipeline.lanes", { first: lane.first, last: lane.last, count: lane.count });
}

function laneLabel(layout, lane, { v, u0, u1, words }) {
  if (layout.vertical) {
    const text =
      lane.count === 1 ? String(lane.first) : layout.size > 42 ? `${lane.first}–${lane.last}` : `×${lane.count}`;
    return layout.size < 12 ? null : svg("text", { x: v, y: u1 - 10, class: "pl-lane-label pl-middle" }, text);
  }
  return svg("text", { x: u0 + 11, y: v + 3.5, class: "pl-lane-label" }, laneName(lane, words));
}

/** The lanes joined: a line between each two neighbours, crossing. One lane has nothing to exchange. */
function exchange({ layout, lanes, stages }) {
  const { u0, u1 } = layout.boxes.all_reduce;
  const stage = stages.find((one) => one.id === "all_reduce");
  const found = [];
  for (let index = 0; index + 1 < lanes.length; index += 1) {
    const [a, b] = [layout.lane(index), layout.lane(index + 1)];
    for (const [from, to] of [
      [a, b],
      [b, a],
    ]) {
      const bend = (u0 + u1) / 2;
      const d = layout.path("M", [u0 + 8, from], "C", [bend, from], [bend, to], [u1 - 8, to]);
      found.push(svg("path", { d, class: stage.basis === "none" ? "pl-exchange pl-unknown" : "pl-exchange" }));
    }
  }
  return found;
}

function updates({ layout, lanes, words }) {
  const { u0, u1 } = layout.boxes.update;
  const half = layout.size / 2 - Math.min(3, layout.size * 0.12);
  return lanes.map((_, index) => {
    const v = layout.lane(index);
    const place = layout.rect(u0 + layout.inset, u1 - layout.inset, v - half, v + half);
    const title = svg("title", {}, words("pipeline.same_parameters"));
    return svg("rect", { ...place, rx: 3, class: "pl-update" }, title);
  });
}

function output({ layout, lanes, state, words, format }) {
  const { u0, u1 } = layout.boxes.output;
  const joint = layout.vertical ? u0 + (u1 - u0) * 0.3 : u0 + 6;
  const found = lanes.map((_, index) => {
    const v = layout.lane(index);
    const d = layout.path(
      "M",
      [layout.boxes.update.u1 - layout.inset, v],
      "C",
      [joint, v],
      [u0, layout.middle],
      [joint, layout.middle],
    );
    return svg("path", { class: "pl-rail", d });
  });
  const [x, y] = layout.xy(layout.vertical ? (u0 + u1) / 2 + 4 : joint + 4, layout.middle);
  const loss = format.number(state.loss ?? null);
  const label = words("pipeline.loss");
  found.push(svg("circle", { cx: x, cy: y, r: 3.5, class: "pl-output-dot" }));
  found.push(
    svg(
      "text",
      { x: x + 9, y: y + 5, class: "pl-loss" },
      loss,
      layout.vertical && svg("tspan", { class: "pl-note", dx: 6 }, label),
    ),
  );
  if (!layout.vertical) found.push(svg("text", { x: x + 9, y: y + 21, class: "pl-note" }, label));
  return found;
}

/** Name, time, share, basis. */
function head({ layout, state, words, format }, stage) {
  const { x, y, right } = layout.head(stage.id);
  const name = words(`pipeline.stage.${stage.id}`);
  const unknown = stage.seconds === null;
  const time = unknown ? "–" : format.seconds(stage.seconds);
  const share = stage.share === null ? null : format.percent(stage.share);
  const basis = words(`pipeline.basis.${stage.basis}`);
  const needless = stage.id === "output" || (stage.id === "all_reduce" && state.devices === 1);
  if (needless) return svg("text", { x, y, class: "pl-name" }, name);
  if (layout.vertical) {
    return [
      svg("text", { x, y, class: "pl-name" }, name),
      svg("text", { x: right, y, class: "pl-time pl-end" }, share === null ? time : `${time} · ${share}`),
      ...mark(stage, { x: right, y: y + 16, text: basis, end: true }),
    ];
  }
  return [
    svg("text", { x, y, class: "pl-name" }, name),
    svg(
      "text",
      { x, y: y + 18, class: unknown ? "pl-time pl-none" : "pl-time" },
      time,
      share !== null && svg("tspan", { class: "pl-share", dx: 7 }, share),
      svg("title", {}, words("pipeline.share_help")),
    ),
    ...mark(stage, { x, y: y + 33, text: basis, end: false }),
  ];
}

/** The sign and word of how a number was found: full, broken, or dotted ring. */
function mark(stage, { x, y, text, end }) {
  const cx = end ? x - textWidth(text, 11) - 8 : x + 3.5;
  return [
    svg("circle", { cx, cy: y - 3.5, r: 3, class: `pl-mark pl-mark-${stage.basis}` }),
    svg("text", { x: end ? x : x + 11, y, class: end ? "pl-note pl-end" : "pl-note" }, text),
  ];
}

/** The shape of the batch, what else is known of the stage, and the bottleneck's word. */
function foot(scene, stage) {
  const { layout, state, words } = scene;
  const { x, y, width } = layout.foot(stage.id);
  const limit = layout.vertical ? width * 0.66 : width;
  const room = { limit, character_px: layout.tight ? CHARACTER_PX.tight : CHARACTER_PX.wide };
  const notes = noteLines(scene, stage);
  const shapes = shapeLines(stage.shape, room);
  const lines = stage.id === "prefetch" ? [...notes, ...(layout.vertical ? [] : shapes)] : [...shapes, ...notes];
  const joined = lines.join(stage.id === "update" ? " " : " · ");
  const shown = layout.vertical ? [joined].filter(Boolean) : lines.slice(0, 2);
  const found = shown.map((text, index) => {
    const fitted = fit(text, room);
    const full = stage.shape?.all.join("\n") ?? text;
    return svg("text", { x, y: y + index * 14, class: "pl-shape" }, fitted, svg("title", {}, full));
  });
  if (state.bottleneck?.stage === stage.id) found.push(flag(scene, stage));
  return found;
}

function shapeLines(shape, { limit, character_px }) {
  if (shape === null) return [];
  const copies = shape.copies === null || shape.copies === undefined ? "" : `${shape.copies} × `;
  const whole = copies + shape.shape;
  const fits = (text) => text.length * character_px <= limit;
  if (fits(whole)) return [whole];
  return [copies.trim(), fits(shape.shape) ? shape.shape : shape.shape.replaceAll(" ", "")].filter(Boolean);
}

function noteLines({ state, words, format }, stage) {
  if (stage.id === "prefetch") {
    const { batches, depth } = state.queue ?? {};
    if (number(batches) === null) return [words("pipeline.queue_unknown")];
    const ready = format.number(batches, 2);
    return [
      depth === null || depth === undefined
        ? words("pipeline.queue_open", { ready })
        : words("pipeline.queue", { ready, depth }),
    ];
  }
  if (stage.id === "all_reduce") {
    if (state.devices === 1) return [words("pipeline.nothing_to_reduce")];
    const { wire_bytes, blocking_collectives } = stage.detail;
    const bytes = number(wire_bytes) === null ? null : words("pipeline.wire", { bytes: format.bytes(wire_bytes) });
    const blocking =
      number(blocking_collectives) === null ? null : words("pipeline.blocking", { count: blocking_collectives });
    return [bytes, blocking].filter(Boolean);
  }
  if (stage.id === "update") {
    return number(state.learning_rate) === null ? [] : [words("pipeline.rate"), format.number(state.learning_rate, 3)];
  }
  return [];
}

function fit(text, { limit, character_px }) {
  const most = Math.floor(limit / character_px);
  return text.length <= most ? text : `${text.slice(0, Math.max(1, most - 1))}…`;
}

/** The word on the bottleneck: below its lanes, or on the upper edge of its band, where no time stands. */
function flag({ layout, words }, stage) {
  const text = words("pipeline.bottleneck");
  const width = textWidth(text, 11, 650) + 14;
  const box = layout.band(stage.id);
  const [x, y] = [box.x + 8, layout.vertical ? box.y - 14 : box.y + box.height - 22];
  return [
    svg("rect", { x, y, width, height: 17, rx: 3, class: `pl-flag ${tone(stage.id)}` }),
    svg("text", { x: x + width / 2, y: y + 12.5, class: "pl-flag-text pl-middle" }, text),
  ];
}
