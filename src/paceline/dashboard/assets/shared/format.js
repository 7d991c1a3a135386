/**
 * Owns: numbers as text: short, with units, tabular, never "NaN" where nothing was measured.
 * Not here: words. Units are the same in both languages.
 * Invariant: null and undefined give "–"; "nan", "inf" and "-inf" (as the API writes them) give NaN, ∞ and −∞.
 */

import { bareKey } from "./keys.js";

export const NOTHING = "–";
const NONFINITE = { nan: NaN, inf: Infinity, "-inf": -Infinity };

/** A number of the API: finite, or one of the strings for what JSON cannot hold. Null stays null. */
export function toNumber(value) {
  if (value === null || value === undefined) return null;
  if (typeof value === "string") return Object.hasOwn(NONFINITE, value) ? NONFINITE[value] : null;
  return value;
}

function special(value) {
  if (value === null) return NOTHING;
  if (Number.isNaN(value)) return "NaN";
  if (value === Infinity) return "∞";
  if (value === -Infinity) return "−∞";
  return null;
}

/** Wraps a format of finite numbers so that it takes whatever the API gives. */
function tolerant(formatted) {
  return (value, ...rest) => {
    const number = toNumber(value);
    return special(number) ?? formatted(number, ...rest).replace(/^-/, "−");
  };
}

function grouped(text) {
  const [whole, part] = text.split(".");
  const spaced = whole.replace(/\B(?=(\d{3})+(?!\d))/g, ",");
  return part === undefined ? spaced : `${spaced}.${part}`;
}

function significant(value, digits = 4) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e7 || size < 1e-4) {
    return value.toExponential(Math.max(0, digits - 2)).replace("e+", "e").replace("e-", "e−");
  }
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  const text = value.toFixed(Math.min(places, 8));
  const bare = text.includes(".") ? text.replace(/\.?0+$/, "") : text;
  return grouped(bare.replace(/^-?0?\.?0*/, "").replace(".", "").length <= 2 ? bare : text); // 0.1, but 0.3300
}

function scaled(value, units, { digits = 3 } = {}) {
  const size = Math.abs(value);
  const [factor, unit] = units.find(([least]) => size >= least) ?? units.at(-1);
  return `${significant(value / factor, digits)} ${unit}`;
}

const TIMES = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
const BYTES = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];

/** Any number: four significant digits. */
export const number = tolerant((value, digits = 4) => significant(value, digits));
/** A whole number with thousands. */
export const count = tolerant((value) => grouped(Math.round(value).toString()));
/** A short time: 3.21 ms. */
export const seconds = tolerant((value) => (value === 0 ? "0 s" : scaled(value, TIMES)));
/** Bytes in powers of 1000, as memory vendors and the rest of Paceline count. */
export const bytes = tolerant((value) => (value === 0 ? "0 B" : scaled(value, BYTES)));
/** Samples a second. */
export const rate = tolerant((value) =>
  `${Math.abs(value) >= 100 ? grouped(Math.round(value).toString()) : significant(value, 3)}/s`);
/** A share of one as percent, three significant digits. */
export const percent = tolerant((value) => {
  const hundred = value * 100;
  if (hundred > 0 && hundred < 0.01) return "<0.01 %";
  return `${significant(hundred, 3)} %`;
});
/** A long time: 1 h 04 min. */
export const duration = tolerant((value) => {
  const whole = Math.max(0, Math.round(value));
  const two = (part) => String(part).padStart(2, "0");
  const days = Math.floor(whole / 86400);
  const hours = Math.floor(whole / 3600) % 24;
  const minutes = Math.floor(whole / 60) % 60;
  if (days) return `${days} d ${two(hours)} h`;
  if (hours) return `${hours} h ${two(minutes)} min`;
  if (minutes) return `${minutes} min ${two(whole % 60)} s`;
  return `${whole} s`;
});
/** A moment of a clock (Unix seconds) as local date and time. */
export const moment = tolerant((value) => {
  const date = new Date(value * 1000);
  if (Number.isNaN(date.getTime())) return NOTHING;
  const two = (part) => String(part).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
});

/** A metric's value in the unit that its key ends in. */
export function metric(key, value) {
  const bare = bareKey(key);
  if (bare.endsWith("samples_per_s")) return rate(value);
  if (bare.endsWith("_per_s")) return `${number(value)} /s`;
  if (bare.endsWith("_s")) return seconds(value);
  if (bare.endsWith("_bytes")) return bytes(value);
  if (bare.endsWith("share") || bare.endsWith("accuracy")) return percent(value);
  return number(value);
}
