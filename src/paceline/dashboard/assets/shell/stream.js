/**
 * Owns: the one open stream of server-sent events: opening it, going on after a dropped connection.
 * Not here: what events mean (watching.js and the panels).
 * Invariant: after a drop the next connection carries the cursor of the last message that was handled, so that no event
 *   is lost or comes twice.
 *
 * A cursor that the server refuses, because it is of another version or too long for what lies between, is given up:
 * the stream goes on from "anew", at which the server says for each run that its series are to be fetched again.
 *
 * The browser's own reconnection is not used: it gives up for good on some errors (a server that restarts behind a
 * proxy answers 502), and says nothing about it.
 */

const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 5000;
const UNANSWERED_MS = 10_000; // without an answer for so long, the server may have been stopped
const REFUSALS = 2; // in a row, with one cursor: one may be a server that is just starting
const ANEW = "anew";

/**
 * @param {Object} options
 * @param {(cursor: string|null) => string} options.address where to connect
 * @param {(name: string, data: Object) => void} options.onMessage name is "events", "runs" or "reset"
 * @param {(state: string, wait_ms?: number) => void} options.onState "live", "reconnecting", or after a while of that
 *   "unanswered"; it goes on trying
 * @param {string|null} [options.cursor] where to go on
 * @returns {{close: () => void, cursor: () => string|null}}
 */
export function openStream({ address, onMessage, onState, cursor = null }) {
  let source = null;
  let timer = null;
  let wait_ms = FIRST_WAIT_MS;
  let refusals = 0;
  let lost_ms = null; // when the connection was lost
  let last = cursor;
  let closed = false;

  function connect() {
    source = new EventSource(address(last));
    source.onopen = () => {
      wait_ms = FIRST_WAIT_MS;
      refusals = 0;
      lost_ms = null;
      onState("live");
    };
    source.onerror = () => {
      // Closed by the browser: an answer came and was no stream. A connection that broke leaves it connecting.
      refusals = source.readyState === EventSource.CLOSED ? refusals + 1 : 0;
      if (last !== null && refusals >= REFUSALS) last = ANEW;
      source.close();
      if (closed) return;
      lost_ms ??= performance.now();
      onState(performance.now() - lost_ms < UNANSWERED_MS ? "reconnecting" : "unanswered", wait_ms);
      clearTimeout(timer);
      timer = setTimeout(connect, wait_ms);
      wait_ms = Math.min(wait_ms * 2, LONGEST_WAIT_MS);
    };
    for (const name of ["events", "runs", "reset"]) {
      source.addEventListener(name, (message) => {
        onMessage(name, JSON.parse(message.data));
        if (message.lastEventId) last = message.lastEventId;
      });
    }
  }

  connect();
  return {
    cursor: () => last,
    close() {
      closed = true;
      clearTimeout(timer);
      source.close();
    },
  };
}
