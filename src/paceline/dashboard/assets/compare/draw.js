/**
 * Owns: the drawings of a comparison: bars of E_K with the ideal line, and the waterfall from 100 % to E_K.
 * Not here: text (compare_table.js).
 * Invariant: every drawing has its numbers as text too; what was predicted is hatched and says so; an efficiency that
 *   is not claimed has no bar.
 */

import { said, subjectName, titled } from "./table.js";
import { el, svg } from "../shared/dom.js";
import { number } from "../pipeline/model.js";
import { textWidth } from "../shared/text_width.js";
import { hatch } from "../shared/hatch.js";
import { columnTable } from "../shared/table.js";

const CARD_PX = 460;
const CHART = { height: 210, top: 16, bottom: 30, left: 44, right: 8 };
const ROW_PX = 24;

/** All drawings, in as many columns as fit. */
export function drawings(scene) {
  const cards = [
    bars(scene),
    ...(scene.document.waterfalls ?? []).map((one) => (room) => waterfall(scene, one, room)),
  ].filter(Boolean);
  if (!cards.length) return null;
  const columns = Math.max(1, Math.min(cards.length, Math.floor(scene.width / CARD_PX)));
  const room = (scene.width - (columns - 1) * 14) / columns - 30;
  return el(
    "div",
    { class: "cmp-drawings", data: { columns: String(Math.min(columns, 3)) } },
    cards.map((card) => card(room)),
  );
}

/* ------------------------------------------------------------------ E_K */

/** Bars of E_K by K, one series a scaling; null when no subject has one. */
function bars(scene) {
  const series = (scene.document.scaling ?? []).filter((one) => one.points.length);
  if (!series.length) return null;
  return (room) => {
    const { words, format } = scene.context;
    const devices = [...new Set(series.flatMap((one) => one.points.map((point) => point.devices)))].sort(
      (a, b) => a - b,
    );
    const values = series.flatMap((one) =>
      one.points.map((point) => point.efficiency?.high ?? point.efficiency?.value ?? 0),
    );
    const top = Math.max(1.1, Math.ceil(Math.max(...values) * 10) / 10);
    const frame = {
      ...CHART,
      width: room,
      x: (place) => CHART.left + place * (room - CHART.left - CHART.right),
      y: (share) => CHART.top + (1 - share / top) * (CHART.height - CHART.top - CHART.bottom),
    };
    const label = words("compare.bars_label", {
      list: series
        .map((one) =>
          one.points
            .map(
              (point) =>
                `${one.label} K=${point.devices} ${format.percent(point.efficiency?.value ?? null)}`,
            )
            .join(", "),
        )
        .join("; "),
    });
    return el(
      "section",
      { class: "cmp-block" },
      el("h3", {}, words("compare.efficiency")),
      svg(
        "svg",
        {
          width: room,
          height: CHART.height,
          viewBox: `0 0 ${room} ${CHART.height}`,
          role: "img",
          "aria-label": label,
          class: "cmp-chart",
        },
        hatch("cmp-hatch", 1.4),
        grid(frame, scene.context),
        slots(frame, { series, devices, scene }),
      ),
      el(
        "ul",
        { class: "cmp-key" },
        series.map((one) =>
          el(
            "li",
            {},
            subjectName(scene, one.subject),
            ` ${[mode(scene, one), basis(scene, one)].filter(Boolean).join(", ")}`,
          ),
        ),
        el(
          "li",
          {},
          svg(
            "svg",
            { width: 18, height: 8, "aria-hidden": "true" },
            svg("line", { x1: 0, x2: 18, y1: 4, y2: 4, class: "cmp-ideal" }),
          ),
          words("compare.ideal"),
        ),
      ),
      scalingTable(scene, series),
    );
  };
}

function mode({ context }, one) {
  return titled(context, `compare.mode.${one.mode}`, one.mode);
}

function basis({ context }, one) {
  return one.basis === "measured" ? "" : titled(context, `compare.basis.${one.basis}`, one.basis);
}

function grid(frame, { words }) {
  const lines = [0, 0.25, 0.5, 0.75].map((share) => [
    svg("line", {
      x1: frame.left,
      x2: frame.width - frame.right,
      y1: frame.y(share),
      y2: frame.y(share),
      class: "cmp-grid",
    }),
    svg("text", { x: frame.left - 6, y: frame.y(share) + 4, class: "cmp-tick cmp-end" }, `${share * 100} %`),
  ]);
  const y = frame.y(1);
  return [
    lines,
    svg("line", { x1: frame.left, x2: frame.width - frame.right, y1: y, y2: y, class: "cmp-ideal" }),
    svg("text", { x: frame.left - 6, y: y + 4, class: "cmp-tick cmp-end" }, "100 %"),
    svg("text", { x: frame.width - frame.right, y: y - 4, class: "cmp-tick cmp-end" }, words("compare.ideal")),
  ].flat(2);
}

/** One slot for each K, in it one bar for each scaling. */
function slots(frame, { series, devices, scene }) {
  const slot = (frame.width - frame.left - frame.right) / devices.length;
  const thick = Math.max(3, Math.min(46, (slot * 0.8) / series.length));
  const labels = devices.map(countText);
  const widest = Math.max(...labels.map((label) => textWidth(label, 11)));
  const every = Math.ceil((widest + 6) / slot); // those between would overlap
  const y = frame.height - frame.bottom + 16;
  const axis = svg("text", { x: frame.left - 6, y, class: "cmp-tick cmp-end" }, "K =");
  const parts = devices.flatMap((count, place) => {
    const middle = frame.left + (place + 0.5) * slot;
    const begin = middle - (thick * series.length) / 2;
    return [
      place % every ? null : svg("text", { x: middle, y, class: "cmp-tick cmp-middle" }, labels[place]),
      ...series.map((one, index) => {
        const point = one.points.find((each) => each.devices === count);
        return point ? bar(frame, { one, point, x: begin + index * thick, thick, scene }) : [];
      }),
    ].flat(2);
  });
  return [axis, ...parts];
}

/** A number of devices on the axis: `512`, `4k`. */
function countText(count) {
  return count >= 1024 && count % 1024 === 0 ? `${count / 1024}k` : String(count);
}

function bar(frame, { one, point, x, thick, scene }) {
  const { words, format } = scene.context;
  const title = `${one.label}, K = ${point.devices}: ${format.rate(point.samples_per_s.value)}, `;
  const value = number(point.efficiency?.value);
  if (value === null) {
    return [
      svg(
        "text",
        { x: x + thick / 2, y: frame.y(0) - 5, class: "cmp-tick cmp-middle" },
        "–",
        svg("title", {}, title + (said(point, "not_claimed") ?? words("compare.not_claimed"))),
      ),
    ];
  }
  const place = { x: x + 1, width: thick - 2, y: frame.y(value), height: frame.y(0) - frame.y(value) };
  const middle = x + thick / 2;
  const { low, high } = point.efficiency;
  const ends = number(low) !== null && number(high) !== null;
  const text = format.percent(value);
  return [
    svg("rect", { ...place, class: filled(one.subject) }, svg("title", {}, title + text)),
    one.basis === "measured" ? null : svg("rect", { ...place, fill: "url(#cmp-hatch)" }),
    ends
      ? svg("path", {
          d: [
            `M${middle} ${frame.y(low)}V${frame.y(high)}`,
            ...[low, high].map((end) => `M${middle - 3} ${frame.y(end)}h6`),
          ].join(""),
          class: "cmp-interval",
        })
      : null,
    ...written(text, { x: place.x, y: frame.y(0), width: place.width, kind: filled(one.subject) }),
  ];
}

/** The share at the foot of its bar if there is room, on the plain colour: hatching would make it hard to read. */
function written(text, { x, y, width, kind }) {
  if (textWidth(text, 11, 600) > width - 1) return [];
  return [
    svg("rect", { x, y: y - 19, width, height: 16, class: kind }),
    svg("text", { x: x + width / 2, y: y - 7, class: "cmp-tick cmp-middle cmp-on-bar" }, text),
  ];
}

/** The class that fills with a subject's colour. */
function filled(subject) {
  return `cmp-fill-${(subject % 8) + 1}`;
}

function scalingTable(scene, series) {
  const { words, format } = scene.context;
  const columns = ["subject", "devices", "rows", "throughput", "ideal", "efficiency"];
  const rows = series.flatMap((one) =>
    one.points.map((point) =>
      el(
        "tr",
        {},
        el("td", {}, `${one.label} ${mode(scene, one)}`),
        el("td", { class: "right" }, format.count(point.devices)),
        el("td", { class: "right" }, format.count(point.batch)),
        el("td", { class: "right" }, format.rate(point.samples_per_s.value)),
        el("td", { class: "right" }, format.rate(point.ideal_samples_per_s)),
        el(
          "td",
          { class: "right" },
          point.efficiency ? format.percent(point.efficiency.value) : (said(point, "not_claimed") ?? "–"),
        ),
      ),
    ),
  );
  return el(
    "details",
    { class: "cmp-details" },
    el("summary", {}, words("pipeline.as_table")),
    columnTable(columns.map((one) => ({ text: words(`compare.column.${one}`) })), rows),
  );
}

/* ------------------------------------------------------------------ waterfall */

/** From 100 % down to E_K: one row a term; what was won goes back up. */
function waterfall(scene, one, room) {
  const { words, format } = scene.context;
  const steps = walk(one);
  const labels = [
    words("compare.ideal"),
    ...one.terms.map((term) => said(term, "title")),
    `E (K = ${one.devices})`,
  ];
  const widest = Math.max(...labels.map((label) => textWidth(label, 12)));
  const left = Math.min(widest + 10, room * 0.52);
  const most = Math.max(100, ...steps.map((step) => Math.max(step.from, step.to)));
  const x = (percent) => left + (Math.max(0, percent) / most) * (room - left - 62);
  const height = labels.length * ROW_PX + 6;
  const parts = steps.map((step, index) =>
    row({ step, index, x, label: labels[index], left, fill: filled(one.subject), scene }),
  );
  const text = words("compare.waterfall_label", {
    name: one.label,
    list: labels.map((label, index) => `${label} ${shownText(steps[index])}`).join(", "),
  });
  return el(
    "section",
    { class: "cmp-block" },
    el("h3", {}, words("compare.waterfall", { devices: format.count(one.devices) })),
    el(
      "p",
      { class: "cmp-small cmp-subject" },
      subjectName(scene, one.subject),
      ` ${[mode(scene, one), basis(scene, one), words("compare.in_points")].filter(Boolean).join(", ")}`,
    ),
    svg(
      "svg",
      { width: room, height, viewBox: `0 0 ${room} ${height}`, role: "img", "aria-label": text, class: "cmp-chart" },
      hatch("cmp-hatch", 1.4),
      parts.flat(),
    ),
  );
}

/** Where each row of the waterfall begins and ends [%]. */
function walk(one) {
  const steps = [{ from: 0, to: 100, shown: 100, kind: "whole" }];
  let at = 100;
  for (const term of one.terms) {
    const points = number(term.percent.value) ?? 0;
    steps.push({ from: at, to: at - points, shown: -points, kind: points < 0 ? "won" : "lost" });
    at -= points;
  }
  steps.push({ from: 0, to: one.efficiency_percent, shown: one.efficiency_percent, kind: "end" });
  return steps;
}

function row({ step, index, x, label, left, fill }) {
  const y = index * ROW_PX + 3;
  const [low, high] = [x(Math.min(step.from, step.to)), x(Math.max(step.from, step.to))];
  const kind = { whole: "cmp-whole", end: fill, lost: "cmp-lost", won: "cmp-won" }[step.kind];
  return [
    svg("text", { x: 0, y: y + 13, class: "cmp-label" }, shortened(label, left - 8), svg("title", {}, label)),
    svg("rect", { x: low, y, width: Math.max(1, high - low), height: ROW_PX - 7, class: kind }),
    index > 0 && step.kind !== "end"
      ? svg("line", { x1: x(step.from), x2: x(step.from), y1: y - 7, y2: y, class: "cmp-link" })
      : null,
    svg("text", { x: high + 6, y: y + 13, class: "cmp-label" }, shownText(step)),
  ];
}

/** `88.0 %` where it begins and ends, `−8.0` between: percent points, as the line above the drawing says. */
function shownText({ shown, kind }) {
  const digits = Math.abs(shown).toFixed(1);
  if (kind === "whole" || kind === "end") return `${shown < 0 ? "−" : ""}${digits} %`;
  return Number(digits) ? `${shown < 0 ? "−" : "+"}${digits}` : digits;
}

function shortened(text, room) {
  if (textWidth(text, 12) <= room) return text;
  let end = text.length;
  while (end > 1 && textWidth(`${text.slice(0, end)}…`, 12) > room) end -= 1;
  return `${text.slice(0, end)}…`;
}
