/**
 * Owns: the parts of a comparison that are text: what differs, the table of numbers, fidelity, predictions, what is not
 *   known.
 * Not here: drawings (draw.js), judging (the document says what is best, and why not).
 * Invariant: a number that is not known shows the reason; the best value has a word, not a colour alone.
 */

import { el } from "../shared/dom.js";
import { sentence } from "../shared/words.js";
import { columnTable } from "../shared/table.js";

const SETTINGS = ["scheme", "placement", "precision", "accumulation", "devices", "batch", "platform"];
const WORST_ROWS = 12;
/** Narrower than this [px] a verdict before the values would leave them no room. */
const NARROW_PX = 620;

/** Text of the page where it has some for the key, else the document's own. */
export function titled({ words, hasWords }, key, fallback) {
  return hasWords(key) ? words(key) : fallback;
}

/** What the document says under a name, in the reader's language; null where it says nothing. */
export function said(part, name) {
  const words = name === "text" && part.words ? part.words : part[`${name.replace(/_text$/, "")}_words`];
  return words ? sentence(words) : (part[name] ?? null);
}

/** The same of a list of sentences. */
function saidAll(part, name) {
  return part[`${name.replace(/s$/, "")}_words`]?.map(sentence) ?? part[name] ?? [];
}

/** The title of a row; of an evaluation it holds the name of a metric. */
function rowTitle(row, { words, hasWords }) {
  const name = row.title_words?.values?.name;
  const key = `compare.metric.${name}`;
  if (name === undefined || !hasWords(key)) return said(row, "title");
  return sentence({ ...row.title_words, values: { name: words(key) } });
}

/** The sign of a subject: its colour, and its name. */
export function subjectName(scene, subject) {
  return [swatch(subject), scene.document.subjects[subject].label];
}

function swatch(subject) {
  return el("span", { class: `cmp-swatch cmp-fill-${(subject % 8) + 1}`, "aria-hidden": "true" });
}

/** What differs between the subjects; the serious ones first, as the document has them. */
export function differences({ document, context }) {
  const found = document.differences ?? [];
  const { words } = context;
  if (!found.length) return null;
  return el(
    "section",
    { class: "cmp-block cmp-differences" },
    el("h3", {}, words("compare.differences")),
    el(
      "ul",
      {},
      found.map((one) =>
        el(
          "li",
          {},
          one.serious ? el("span", { class: "badge", data: { tone: "warn" } }, words("compare.serious")) : null,
          said(one, "text"),
        ),
      ),
    ),
  );
}

/**
 * The table of schemes: one column a subject, behind the verdict, which many subjects would push off the edge. On a
 * phone it comes last, and the values first; one subject has none.
 */
export function table(scene) {
  const { document, context } = scene;
  const { words } = context;
  const columns = document.subjects.length + (document.subjects.length > 1 ? 2 : 1);
  const body = [group(scene, "settings", columns), ...SETTINGS.map((setting) => settingRow(scene, setting))];
  let last = null;
  for (const row of document.rows) {
    if (row.group !== last) body.push(group(scene, row.group, columns));
    last = row.group;
    body.push(numberRow(scene, row));
  }
  return el(
    "section",
    { class: "cmp-block" },
    el("h3", { id: "cmp-table" }, words("compare.side_by_side")),
    el("p", { class: "cmp-small cmp-more", hidden: true }, words("compare.more_columns")),
    el(
      "div",
      { class: "scroll cmp-scroll", tabindex: 0, role: "region", "aria-labelledby": "cmp-table" },
      el(
        "table",
        { class: "table cmp-table" },
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            el("th", { scope: "col" }, el("span", { class: "unseen" }, words("compare.quantity"))),
            withVerdict(scene, {
              verdict: el("th", { scope: "col" }, words("compare.verdict")),
              values: document.subjects.map((subject, index) => head(scene, subject, index)),
            }),
          ),
        ),
        el("tbody", {}, body.filter(Boolean)),
      ),
    ),
  );
}

/** The cells of a row in their order. */
function withVerdict({ document, width }, { verdict, values }) {
  if (document.subjects.length < 2) return values;
  return width < NARROW_PX ? [...values, verdict] : [verdict, ...values];
}

/** Says so where the table is wider than its box, once both are on the page: one cut between columns looks whole. */
export function tellOverflow(body) {
  const box = body.querySelector(".cmp-scroll");
  body.querySelector(".cmp-more").hidden = box.scrollWidth <= box.clientWidth;
}

function head(scene, subject, index) {
  const { words } = scene.context;
  const state = subject.state ? ` · ${titled(scene.context, `compare.state.${subject.state}`, subject.state)}` : "";
  return el(
    "th",
    { scope: "col", title: subject.path },
    el("span", { class: "cmp-subject" }, subjectName(scene, index)),
    el("span", { class: "cmp-small" }, words(`compare.kind.${subject.kind}`), state),
  );
}

/** Where each subject lies and what is to be known of it: in the head of the table it would push the numbers down. */
export function subjects(scene) {
  return el(
    "section",
    { class: "cmp-block" },
    el("h3", {}, scene.context.words("compare.notes")),
    el(
      "ul",
      { class: "cmp-notes" },
      scene.document.subjects.map((subject, index) =>
        el(
          "li",
          {},
          el("span", { class: "cmp-subject" }, subjectName(scene, index)),
          el("span", { class: "cmp-small mono" }, subject.path),
          saidAll(subject, "notes").map((note) => el("span", { class: "cmp-small" }, note)),
        ),
      ),
    ),
  );
}

function group({ context }, name, columns) {
  return el(
    "tr",
    { class: "cmp-group" },
    el("th", { colspan: columns, scope: "colgroup" }, el("span", {}, titled(context, `compare.group.${name}`, name))),
  );
}

function settingRow(scene, setting) {
  const { document, context } = scene;
  const values = document.subjects.map((subject) => subject.settings?.[setting] ?? null);
  if (values.every((value) => value === null)) return null;
  const differ = (document.differences ?? []).some((one) => one.what === setting);
  const shown = (value, subject) => (setting === "platform" && said(subject, "platform")) || value;
  return el(
    "tr",
    { class: differ ? "cmp-differs" : null },
    el("th", { scope: "row" }, context.words(`compare.setting.${setting}`)),
    withVerdict(scene, {
      verdict: el("td", { class: "cmp-verdict" }, differ ? context.words("compare.setting_differs") : null),
      values: values.map((value, place) =>
        el(
          "td",
          {},
          value === null
            ? "–"
            : typeof value === "number"
              ? context.format.count(value)
              : shown(value, document.subjects[place]),
        ),
      ),
    }),
  );
}

function numberRow(scene, row) {
  const { context } = scene;
  return el(
    "tr",
    {},
    el("th", { scope: "row", title: said(row, "description") }, rowTitle(row, context)),
    withVerdict(scene, {
      verdict: el("td", { class: "cmp-verdict" }, said(row, "verdict")),
      values: row.cells.map((cell) => numberCell(context, cell)),
    }),
  );
}

function numberCell(context, cell) {
  const { words } = context;
  if (cell.value === null) {
    return el("td", { class: "cmp-unknown" }, "–", el("span", { class: "cmp-small" }, said(cell, "why")));
  }
  const known = cell.basis === "measured" || !cell.basis;
  const basis = known ? "" : titled(context, `compare.basis.${cell.basis}`, cell.basis);
  return el(
    "td",
    { class: cell.best ? "cmp-best" : null, title: said(cell, "detail") },
    el("span", { class: "cmp-value" }, said(cell, "text")),
    cell.best ? el("span", { class: "badge", data: { tone: "good" } }, words("compare.best")) : null,
    el(
      "span",
      { class: "cmp-small" },
      [said(cell, "interval_text"), basis].filter(Boolean).join(" · "),
    ),
  );
}

/** Whether each computes what one device would. */
export function fidelity(scene) {
  const { document, context } = scene;
  const tones = { equal: "good", differs: "bad", replicas_differ: "bad" };
  if (!document.fidelity?.length) return null;
  return el(
    "section",
    { class: "cmp-block" },
    el("h3", {}, context.words("compare.fidelity")),
    el(
      "ul",
      { class: "cmp-fidelity" },
      document.fidelity.map((one) =>
        el(
          "li",
          {},
          el("span", { class: "cmp-subject" }, subjectName(scene, one.subject)),
          el(
            "span",
            { class: "badge", data: tones[one.verdict] ? { tone: tones[one.verdict] } : {} },
            titled(context, `compare.fidelity.${one.verdict}`, one.verdict),
          ),
          el("span", {}, said(one, "text")),
          one.rows?.length ? worst(one, context) : null,
        ),
      ),
    ),
  );
}

function worst({ rows }, context) {
  const columns = ["case", "devices", "precision", "deviation", "tolerance", "verdict"];
  const { words, format } = context;
  return el(
    "details",
    { class: "cmp-details" },
    el("summary", {}, words("compare.worst", { count: Math.min(WORST_ROWS, rows.length), all: rows.length })),
    columnTable(
      columns.map((one) => ({ text: words(`compare.column.${one}`) })),
      rows
        .slice(0, WORST_ROWS)
        .map((row) =>
          el(
            "tr",
            {},
            el("td", {}, row.case),
            el("td", { class: "right" }, format.count(row.devices)),
            el("td", {}, row.precision),
            el("td", { class: "right" }, format.number(row.deviation, 3)),
            el("td", { class: "right" }, format.number(row.tolerance, 3)),
            el("td", {}, titled(context, `compare.fidelity.${row.verdict}`, row.verdict)),
          ),
        ),
    ),
  );
}

/** What was predicted beside what was measured. */
export function predictions({ document, context }) {
  const { words } = context;
  const found = (document.predictions ?? []).map((one) => prediction(one, words));
  const missing = saidAll(document, "not_predicted").map((why) => words("compare.not_predicted", { why }));
  if (!found.length && !missing.length) return null;
  return el(
    "section",
    { class: "cmp-block" },
    el("h3", {}, words("compare.predictions")),
    el(
      "ul",
      {},
      [...found, ...missing].map((text) => el("li", {}, text)),
    ),
  );
}

/** `throughput: 1,980 samples/s → 1,800 samples/s; plan.json says 10.0 % more than a; the intervals overlap` */
function prediction(one, words) {
  const numbers = `${said(one, "title")}: ${said(one, "predicted_text")} → ${said(one, "measured_text")}`;
  const overlap = typeof one.within === "boolean" ? [words(`compare.within.${one.within}`)] : [];
  return [numbers, said(one, "text"), ...overlap, ...saidAll(one, "conditions")].reduce((first, second) =>
    words("compare.both", { first, second }),
  );
}

/** Rows that no subject has a value for. */
export function unknownRows({ document, context }) {
  const found = document.unknown ?? [];
  if (!found.length) return null;
  return el(
    "details",
    { class: "cmp-block cmp-details" },
    el("summary", {}, context.words("compare.unknown", { count: found.length })),
    el(
      "ul",
      {},
      found.map((one) => el("li", {}, `${rowTitle(one, context)}: ${reasons(one, context.words)}`)),
    ),
  );
}

function reasons(one, words) {
  if (!one.why_words) return one.why;
  return one.why_words.map(sentence).reduce((first, second) => words("compare.both", { first, second }));
}
