/**
 * Owns: the hatching that tells what is modelled or predicted from what is measured.
 * Not here: where it lies.
 */

import { svg } from "./dom.js";

/** The pattern, for the drawing that fills with `url(#id)`; `width` is that of its lines. */
export function hatch(id, width) {
  const place = { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" };
  return svg("defs", {}, svg("pattern", place, svg("rect", { width, height: 6, class: "pl-hatch-line" })));
}
