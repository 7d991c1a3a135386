/**
 * Owns: the reader's own choice of theme and language, put on <html> before the first paint, so that nothing flashes.
 * Not here: the switches themselves (theme.js, words.js). A classic script: a module would run after the first paint.
 */
"use strict";
(function () {
  let theme = null;
  let language = null;
  try {
    theme = localStorage.getItem("paceline.theme");
    language = localStorage.getItem("paceline.language");
  } catch {
    // Storage may be forbidden; then the system's choice holds.
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  const first = language || (navigator.language || "en");
  document.documentElement.lang = first.startsWith("zh") ? "zh-Hans" : "en";
})();
