/**
 * Owns: how wide a text will be, before it is drawn: SVG does not flow text around anything.
 * Not here: what is drawn.
 */

let pen = null;

/** Width [px] of `text` in the page's font. */
export function textWidth(text, size_px, weight = 400) {
  pen ??= document.createElement("canvas").getContext("2d");
  pen.font = `${weight} ${size_px}px ${getComputedStyle(document.documentElement).fontFamily}`;
  return pen.measureText(text).width;
}
