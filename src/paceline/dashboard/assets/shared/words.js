/**
 * Owns: the page's language: which one, its words, and the elements of index.html that hold them.
 * Not here: numbers and units (format.js), sentences of the server, which come as {key, values, text}.
 * Invariant: each key is in words/en.json and words/zh.json (a test compares them); a missing key shows itself.
 */

const STORED = "paceline.language";
let table = {};

/** Words for a key; `{name}` in them is replaced by `values.name`. */
export function words(key, values = {}) {
  const text = Object.hasOwn(table, key) ? table[key] : key;
  return text.replace(/\{(\w+)\}/g, (whole, name) => (Object.hasOwn(values, name) ? plain(values[name]) : whole));
}

function plain(value) {
  if (Array.isArray(value)) return value.map(plain).join(words("list.separator"));
  if (value !== null && typeof value === "object") return sentence(value);
  return typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(3))) : String(value);
}

/**
 * What the server says, in the reader's language; as the server wrote it where there are no words for its key.
 *
 * @param {{key: string, values: Object, text: string}} said values may be sentences themselves, or lists of them
 */
export function sentence({ key, values, text }) {
  return hasWords(key) ? words(key, values) : text;
}

/** Whether there are words for a key: kinds and states may come from a future version. */
export function hasWords(key) {
  return Object.hasOwn(table, key);
}

/** "en" or "zh": chosen by the reader, else by the browser. */
export function language() {
  return document.documentElement.lang.startsWith("zh") ? "zh" : "en";
}

/** Loads a language's words and puts them on the page. */
export async function loadWords(chosen = language()) {
  const response = await fetch(`/assets/words/${chosen}.json`);
  if (!response.ok) throw new Error(`words/${chosen}.json: ${response.status}`);
  table = await response.json();
  document.documentElement.lang = chosen === "zh" ? "zh-Hans" : "en";
  for (const element of document.querySelectorAll("[data-word]")) element.textContent = words(element.dataset.word);
  for (const element of document.querySelectorAll("[data-word-label]")) {
    element.setAttribute("aria-label", words(element.dataset.wordLabel));
  }
}

/** Keeps the reader's choice. */
export function keepLanguage(chosen) {
  try {
    localStorage.setItem(STORED, chosen);
  } catch {
    // Forbidden storage: the choice holds until the page is closed.
  }
}
