/**
 * Owns: a table of columns and rows: one that scrolls sideways where it is too wide, and on a phone stands as blocks, a
 *   row each, whose cells bear the names of their columns (style/page.css, "stacked").
 * Not here: its cells.
 * Invariant: it is a table for a screen reader in both forms; some take a table that is not laid out as one for text,
 *   so the roles are written out.
 */

import { el } from "./dom.js";

/**
 * @param {{text: string, right?: boolean}[]} columns heads
 * @param {Node[]} rows `<tr>` elements
 * @param {Object} [frame] properties of the scrolling element, such as a label for readers of the keyboard
 * @returns {HTMLElement}
 */
export function columnTable(columns, rows, frame = {}) {
  return el("div", { class: "scroll", ...frame },
    el("table", { class: "table stacked", role: "table" }, columnHeads(columns),
      el("tbody", { role: "rowgroup" }, rows.map((row) => named(row, columns)))));
}

/** The row of heads. */
export function columnHeads(columns) {
  return el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, columns.map(({ text, right }) =>
    el("th", { scope: "col", role: "columnheader", class: right ? "right" : null }, text))));
}

/** Gives the cells of a row the names of their columns, for where the heads are not seen. */
export function named(row, columns) {
  row.setAttribute("role", "row");
  [...row.cells].forEach((cell, at) => {
    cell.setAttribute("role", cell.tagName === "TH" ? "rowheader" : "cell");
    cell.dataset.column = columns[at].text;
  });
  return row;
}
