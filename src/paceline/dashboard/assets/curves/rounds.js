/**
 * Owns: when Plotly draws each chart: those in view at once, one after the other; the others when there is nothing else
 *   to do.
 * Not here: drawing one (chart.js), live values between two drawings (tail.js).
 * Invariant: drawing takes at most about half of the time, however many charts there are and however fast events come;
 *   charts are drawn in the order of the page; each is drawn in the end, so that a picture of the whole page has no
 *   empty boxes.
 */

/** What one frame may spend: the page answers between two frames. */
const FRAME_MS = 12;
/** A chart whose newest steps are shown by its tail is drawn that often. */
const LIVE_MS = 2000;
/** A chart that is not in view is drawn anew that often. */
const UNSEEN_MS = 5000;
const IDLE_MS = 200;

const whenIdle = window.requestIdleCallback?.bind(window) ?? ((action) => setTimeout(action, IDLE_MS));
const cancelIdle = window.cancelIdleCallback?.bind(window) ?? clearTimeout;

/**
 * @param {Object} options
 * @param {Object} options.context
 * @param {Element} options.element of the panel: nothing is drawn while it is hidden
 * @param {Set<string>} options.inView ids of charts
 * @param {(id: string) => Object|undefined} options.chartOf
 * @param {(id: string) => void} options.prepare asks for what the chart shows
 * @param {(why: string) => void} options.failed the charts' library could not be loaded
 */
export function makeRounds({ context, element, inView, chartOf, prepare, failed }) {
  const dirty = new Set(); // to be drawn
  const due = new Set(); // to be drawn now and then
  const drawnAt_ms = new Map();
  let Plotly = null;
  let frame = null;
  let timer = null;
  let resting = null;
  let idle = null;
  let pause_ms = 0;
  let closed = false;

  /** Draws a chart as soon as may be. */
  function draw(id) {
    dirty.add(id);
    start();
  }

  /** Draws a chart within two seconds: its newest steps can be seen already. */
  function later(id) {
    if (!dirty.has(id)) due.add(id);
    start();
  }

  /** Goes on where it stopped, for instance because the panel was hidden. */
  function start() {
    if (closed || frame !== null || timer !== null || element.hidden) return;
    timer = setTimeout(() => {
      timer = null;
      frame = requestAnimationFrame(drawSome);
    }, pause_ms);
    pause_ms = 0;
  }

  function next() {
    const now_ms = performance.now();
    for (const id of due) {
      const every_ms = inView.has(id) ? LIVE_MS : UNSEEN_MS;
      if (now_ms - (drawnAt_ms.get(id) ?? -Infinity) >= every_ms) dirty.add(id);
    }
    return inOrder([...dirty].filter((id) => inView.has(id)))[0];
  }

  async function drawSome() {
    try {
      Plotly ??= await context.plotly();
    } catch (error) {
      frame = null;
      failed(error.message);
      return;
    }
    if (closed) return;
    const began_ms = performance.now();
    let id = next();
    while (id !== undefined) {
      drawOne(id);
      if (performance.now() - began_ms > FRAME_MS / 2) break; // another one would not be done in this frame
      id = next();
    }
    frame = null;
    pause_ms = performance.now() - began_ms;
    if (next() !== undefined) start();
    else rest();
  }

  /** Nothing in view is to be drawn now: the others, one at a time, and later those that are due. */
  function rest() {
    if (unseen() !== undefined && idle === null) {
      idle = whenIdle(() => {
        idle = null;
        const id = element.hidden ? undefined : unseen();
        if (id !== undefined) drawOne(id);
        start();
      });
    }
    if (resting !== null || element.hidden || !(due.size || [...dirty].some((id) => isLaidOut(id)))) return;
    resting = setTimeout(() => {
      resting = null;
      start();
    }, LIVE_MS / 8);
  }

  function unseen() {
    const now_ms = performance.now();
    return [...dirty].find((id) => !inView.has(id) && isLaidOut(id)
      && now_ms - (drawnAt_ms.get(id) ?? -Infinity) >= UNSEEN_MS);
  }

  /** Charts under a closed heading are not drawn. */
  function isLaidOut(id) {
    return Boolean(chartOf(id)) && chartOf(id).element.closest("details:not([open])") === null;
  }

  function drawOne(id) {
    const chart = chartOf(id);
    dirty.delete(id);
    due.delete(id);
    if (!chart) return;
    prepare(id);
    chart.draw(Plotly);
    if (chart.element.dataset.waiting === "true") drawnAt_ms.delete(id); // what it waits for is drawn when it comes
    else drawnAt_ms.set(id, performance.now());
  }

  /** In the order of the page: the loss first. */
  function inOrder(ids) {
    const follows = (one, other) =>
      (chartOf(one)?.element.compareDocumentPosition(chartOf(other)?.element ?? element) ?? 0)
      & Node.DOCUMENT_POSITION_FOLLOWING;
    return ids.sort((one, other) => (follows(one, other) ? -1 : 1));
  }

  /** A printer gets every chart as it is now. */
  function beforePrint() {
    if (Plotly !== null && !element.hidden) for (const id of [...dirty, ...due]) drawOne(id);
  }

  window.addEventListener("beforeprint", beforePrint);
  return {
    draw, later, start, plotly: () => Plotly,
    close() {
      closed = true;
      window.removeEventListener("beforeprint", beforePrint);
      clearTimeout(timer);
      clearTimeout(resting);
      cancelAnimationFrame(frame);
      if (idle !== null) cancelIdle(idle);
    },
  };
}
