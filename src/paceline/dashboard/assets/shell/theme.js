/**
 * Owns: light or dark, and the colours that scripts need (charts, swatches).
 * Not here: the colours themselves (colours.css, whose contrast a test computes).
 */

const STORED = "paceline.theme";
const COLOURS = 8;
const system = window.matchMedia("(prefers-color-scheme: dark)");
const given = new Map();

/** The reader's choice: "auto", "light" or "dark". */
export function chosenTheme() {
  return document.documentElement.dataset.theme ?? "auto";
}

/** Sets and keeps the choice. */
export function setTheme(choice) {
  if (choice === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
  try {
    localStorage.setItem(STORED, choice);
  } catch {
    // Forbidden storage: the choice holds until the page is closed.
  }
}

/** Calls back when the system's own theme changes. */
export function onSystemTheme(handler) {
  system.addEventListener("change", handler);
}

/** The value of a colour variable now, such as `colour("--text")`. */
export function colour(variable) {
  return getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
}

/** Gives each selected run a colour of its own; a run keeps its colour while it is selected. */
export function giveColours(ids) {
  for (const id of [...given.keys()]) if (!ids.includes(id)) given.delete(id);
  for (const id of ids) {
    if (given.has(id)) continue;
    const taken = new Set(given.values());
    let slot = 0;
    while (slot < COLOURS && taken.has(slot)) slot += 1;
    given.set(id, slot < COLOURS ? slot : given.size % COLOURS);
  }
}

/** The variable of a run's colour, such as "--run-3"; for style properties: `var(${runVariable(id)})`. */
export function runVariable(id) {
  return `--run-${(given.get(id) ?? 0) + 1}`;
}

/** The value of a run's colour now. */
export function runColour(id) {
  return colour(runVariable(id));
}
