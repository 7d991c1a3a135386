/**
 * Owns: the frame of the page: start, header, tabs, and the context that every panel gets.
 * Not here: what the panels show; what is asked for selected runs (watching.js).
 *
 * A panel is a module that exports
 *
 *     mount(element, context) -> { update(), close() }
 *
 * `mount` is called when its tab is first shown, with an empty element; it may be async. `update()` is called when
 * the tab is shown again, and when the selection or the focus changes while it is shown; hidden panels are left alone.
 * `close()` ends timers and listeners. A change of language closes each mounted panel and mounts it anew, so a panel
 * never translates what is already there.
 *
 * context = {
 *   api,                   // requests: see api.js; throws ApiError {what, why, fix}
 *   words(key, values),    // text in the reader's language, from words/en.json and words/zh.json
 *   hasWords(key),         // for kinds and states that a future version may write
 *   state,                 // see store.js: runs, results, selected, focus, details, tab
 *   select(ids, focus),    // changes the selection
 *   on(event, handler),    // returns a function that ends it; end all of them in close()
 *   format,                // shared/format.js: number, count, seconds, bytes, rate, percent, duration, moment, metric
 *   colour(variable),      // value of a CSS variable now: colour("--text")
 *   runColour(id),         // a selected run's colour now (hex); runVariable(id) is its CSS variable's name
 *   plotly(),              // promise of window.Plotly, loaded once
 * }
 *
 * Events of `on`: "runs" (any summary changed), "selection" {selected, focus}, "detail" {run} (a selected run's
 * document came or was read anew), "events" {run, process, events} (live, in order), "reset" {run, why} (fetch its
 * series anew), "restream" {runs} (their stream has begun: ask once more for what came just before), "connection"
 * {state}, "removed" (state.removed changed), "theme", "tab" {tab}, "replay" {run, step} (the pipeline shows this
 * step; null: the latest).
 * `emit(event, data)` tells one.
 */

import { api } from "./api.js";
import { el, setText, show } from "../shared/dom.js";
import * as format from "../shared/format.js";
import { makeStore } from "./store.js";
import { chosenTheme, colour, giveColours, onSystemTheme, runColour, runVariable, setTheme } from "./theme.js";
import { watch } from "./watching.js";
import { hasWords, keepLanguage, language, loadWords, words } from "../shared/words.js";
import { mount as mountHeadline } from "./headline.js";
import { mount as mountNotices } from "./notices.js";
import { mount as mountRuns } from "./runs.js";

const TABS = ["pipeline", "curves", "replicas", "compare", "events"];

const store = makeStore();
const { state, on, emit } = store;
let plotlyLoading = null;

const context = {
  api, words, hasWords, state, on, emit, format, colour, runColour, runVariable, plotly,
  select: store.select,
};
/** Mounted panels by tab: {element, panel}; a panel is null while it loads. */
const mounted = new Map();
/** How often the module of a panel could not be loaded, by tab. */
const failures = new Map();

/** Loads plotly.min.js once: 5 MB that the first paint must not wait for. */
function plotly() {
  plotlyLoading ??= new Promise((resolve, reject) => {
    const script = el("script", { src: "/assets/plotly.min.js" });
    const admitSheets = keepSheetsOut();
    script.onload = () => {
      admitSheets();
      resolve(window.Plotly);
    };
    script.onerror = () => {
      admitSheets();
      plotlyLoading = null;
      reject(new Error("/assets/plotly.min.js"));
    };
    document.head.append(script);
  });
  return plotlyLoading;
}

/**
 * While Plotly loads it adds the style sheet of its maps, which the page's policy blocks with an error. No map is drawn
 * here, so filled style elements are not put in; the empty one that Plotly fills by script is. Returns what ends this.
 */
function keepSheetsOut() {
  const { head } = document;
  head.appendChild = (node) =>
    (node.tagName === "STYLE" && node.textContent ? node : Node.prototype.appendChild.call(head, node));
  return () => delete head.appendChild;
}

function buildTabs() {
  const list = document.getElementById("tabs");
  show(list, TABS.map((tab) => el("button", {
    type: "button", role: "tab", id: `tab-${tab}`, "aria-controls": `panel-${tab}`,
    onclick: () => showTab(tab),
  }, words(`app.tab_${tab}`))));
  list.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const end = { Home: TABS[0], End: TABS.at(-1) }[event.key];
    if (!step && !end) return;
    event.preventDefault();
    showTab(end ?? TABS[(TABS.indexOf(state.tab) + step + TABS.length) % TABS.length]);
    document.getElementById(`tab-${state.tab}`).focus();
  };
  const panels = document.getElementById("panels");
  if (panels.childElementCount) return;
  for (const tab of TABS) {
    panels.append(el("section", {
      class: "panel", id: `panel-${tab}`, role: "tabpanel", "aria-labelledby": `tab-${tab}`, hidden: true,
    }));
  }
}

function showTab(tab) {
  state.tab = TABS.includes(tab) ? tab : TABS[0];
  for (const one of TABS) {
    const button = document.getElementById(`tab-${one}`);
    const shown = one === state.tab;
    button.setAttribute("aria-selected", String(shown));
    button.tabIndex = shown ? 0 : -1;
    document.getElementById(`panel-${one}`).hidden = !shown;
  }
  revealTab();
  writeHash();
  openPanel(state.tab);
  emit("tab", { tab: state.tab });
}

/** On a narrow page the bar of tabs scrolls: the chosen one is brought into it. The page itself stays where it is. */
function revealTab() {
  const bar = document.getElementById("tabs");
  const [room, tab] = [bar, document.getElementById(`tab-${state.tab}`)].map((one) => one?.getBoundingClientRect());
  if (!tab) return;
  if (tab.right > room.right) bar.scrollLeft += tab.right - room.right;
  if (tab.left < room.left) bar.scrollLeft -= room.left - tab.left;
}

/** Mounts the panel of a tab, or brings it up to date; one that could not be loaded is tried again. */
async function openPanel(tab) {
  const present = mounted.get(tab);
  if (present) {
    present.panel?.update();
    return;
  }
  const element = document.getElementById(`panel-${tab}`);
  const entry = { element, panel: null };
  mounted.set(tab, entry);
  try {
    const again = failures.has(tab) ? `?again=${failures.get(tab)}` : ""; // some browsers keep the failure by address
    const module = await import(`../${tab}/${tab}.js${again}`);
    const panel = await module.mount(element, context);
    if (mounted.get(tab) === entry) entry.panel = panel;
    else panel.close(); // the language changed meanwhile
  } catch (error) {
    if (mounted.get(tab) !== entry) return;
    mounted.delete(tab);
    failures.set(tab, (failures.get(tab) ?? 0) + 1);
    console.error(error);
    show(element, el("p", { class: "empty", role: "alert" }, words("app.panel_failed", { why: error.message })));
  }
}

function remountPanels() {
  for (const [tab, { element, panel }] of [...mounted]) {
    panel?.close();
    element.replaceChildren();
    mounted.delete(tab);
  }
  buildTabs();
  showTab(state.tab);
}

/** The address names the tab and the runs, so that it can be kept and sent. */
function writeHash() {
  const query = new URLSearchParams({ tab: state.tab });
  for (const id of state.selected) query.append("run", id);
  if (state.selected.length > 1 && state.focus) query.set("focus", state.focus);
  history.replaceState(null, "", `#${query}`);
}

function readHash() {
  const query = new URLSearchParams(location.hash.slice(1));
  return { tab: query.get("tab"), runs: query.getAll("run"), focus: query.get("focus") };
}

function showConnection({ state: connection }) {
  const element = document.getElementById("connection");
  const key = `app.connection_${connection}`;
  element.dataset.state = connection;
  setText(element, words(key));
  element.title = hasWords(`${key}_why`) ? words(`${key}_why`) : "";
}

let was_live = false;

/** Connected again: what could not be loaded or asked for meanwhile is there now. */
function onConnection({ state: connection }) {
  showConnection({ state: connection });
  if (connection !== "live") return;
  if (was_live) openPanel(state.tab);
  was_live = true;
}

function wireSwitches() {
  const languages = document.getElementById("language");
  languages.value = language();
  languages.onchange = async () => {
    try {
      await loadWords(languages.value);
    } catch {
      languages.value = language(); // the server does not answer, which is said elsewhere
      return;
    }
    keepLanguage(languages.value);
    showWords();
  };
  const themes = document.getElementById("theme");
  themes.value = chosenTheme();
  themes.onchange = () => {
    setTheme(themes.value);
    emit("theme");
  };
  onSystemTheme(() => emit("theme"));
}

let side = null;
let headline = null;
let notices = null;

/** Everything that holds words, built anew: at the start and when the language changes. */
function showWords() {
  side?.close();
  headline?.close();
  notices?.close();
  side = mountRuns(document.getElementById("runs"), context);
  notices = mountNotices(document.getElementById("notices"), context);
  headline = mountHeadline(document.getElementById("headline"), context);
  showConnection({ state: state.connection });
  remountPanels();
}

/** The runs of the address, else the newest: first one that is running, else the one updated last. */
function firstSelection(asked) {
  const known = asked.filter((id) => state.runs.has(id));
  if (known.length) return known;
  const byTime = [...state.runs.values()].sort((a, b) => (b.updated_s ?? 0) - (a.updated_s ?? 0));
  const first = byTime.find((run) => run.state === "running") ?? byTime[0];
  return first ? [first.id] : [];
}

/** What the address names in vain is told; as long as there is no run at all it is waited for. */
function tellMissing(asked) {
  const any = state.runs.size > 0;
  state.missing = any ? asked.filter((id) => !state.runs.has(id)) : [];
  state.wanted = any ? [] : asked;
  emit("removed");
}

async function start() {
  const listing = api.runs();
  await loadWords();
  buildTabs();
  wireSwitches();
  const asked = readHash();
  state.tab = TABS.includes(asked.tab) ? asked.tab : TABS[0];
  on("selection", () => {
    giveColours(state.selected);
    writeHash();
    mounted.get(state.tab)?.panel?.update();
  });
  on("connection", onConnection);
  on("replay", (data) => {
    state.replayed = data; // a panel that is opened later must know too
  });
  try {
    const { root, runs, problems, problem_words, results } = await listing;
    Object.assign(state, { root, problems, problem_words, results });
    for (const run of runs) state.runs.set(run.id, run);
    setText(document.getElementById("root"), root);
  } catch (error) {
    state.problems = [error.message];
  }
  const chosen = firstSelection(asked.runs);
  giveColours(chosen);
  state.selected = chosen;
  tellMissing(asked.runs);
  state.focus = chosen.includes(asked.focus) ? asked.focus : chosen.at(-1) ?? null;
  showWords();
  watch({ store, api });
  window.addEventListener("resize", revealTab);
  window.addEventListener("hashchange", () => {
    const { tab, runs, focus } = readHash();
    const was = state.tab;
    if (TABS.includes(tab)) state.tab = tab; // before the selection writes the address
    if (runs.join("\n") !== state.selected.join("\n")) {
      store.select(firstSelection(runs), focus);
      tellMissing(runs);
    }
    if (state.tab !== was || tab !== state.tab) showTab(state.tab);
  });
}

start();
