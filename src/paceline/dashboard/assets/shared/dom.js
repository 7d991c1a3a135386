/**
 * Owns: making elements. Text goes in as text nodes only, so a name from a run folder can never become markup.
 * Not here: anything about runs.
 * Invariant: all text goes in as text, never as markup, and no markup has a style attribute (the policy forbids it).
 */

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element with properties and children.
 *
 * @param {string} tag
 * @param {Object} [properties] `data` and `style` are objects; `on*` functions are listeners; true and false set
 *   or leave out a boolean attribute; null and undefined are left out.
 * @param {...(Node|string|number|null|undefined)} children strings become text nodes; null is left out.
 * @returns {HTMLElement}
 */
export function el(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** The same for SVG. */
export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "data") Object.assign(element.dataset, value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...present(children));
  return element;
}

function present(children) {
  return children.flat().filter((child) => child !== null && child !== undefined && child !== false);
}

/** Replaces an element's children. */
export function show(element, ...children) {
  element.replaceChildren(...present(children));
}

/** Sets text only where it differs: a screen reader then hears real changes only. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
