// What is asked for again and again, and how old it is.

import { json } from './api.js';

/** A router that has said nothing for so long is not believed to be where it was. */
export const STALE_MS = 7_000;
/** Behind another tab nobody looks. */
const HIDDEN_MS = 10_000;

const watchers = new Set();

/** Calls back whenever anything has changed. */
export function watch(callback) {
  watchers.add(callback);
}

/** Something has changed. */
export function changed() {
  for (const callback of watchers) callback();
}

/** One thing that is asked for while somebody looks at it. */
export class Source {
  /** `state`: idle, loading, ok, failed. Data outlives a failure: it is shown as old. */
  constructor(ask, { every = 2000 } = {}) {
    this.ask = typeof ask === 'string' ? () => json(ask) : ask;
    this.every = every;
    this.state = 'idle';
    this.data = null;
    this.at = null;
    this.failure = null;
    this.wanted = false;
    this.timer = null;
    this.turn = 0;
  }

  start() {
    if (this.wanted) return;
    this.wanted = true;
    this.refresh();
  }

  stop() {
    this.wanted = false;
    clearTimeout(this.timer);
  }

  /** Forgets everything: another token, another question. */
  reset() {
    this.turn += 1;
    this.state = 'idle';
    this.data = null;
    this.at = null;
    this.failure = null;
    if (this.wanted) this.refresh();
  }

  async refresh() {
    clearTimeout(this.timer);
    this.turn += 1;
    const turn = this.turn;
    if (this.state === 'idle') this.state = 'loading';
    const from = performance.now();
    let took = 0;
    try {
      const data = await this.ask();
      if (turn !== this.turn) return;
      // A page of ten thousand workers takes its time: it is not asked for all the time.
      took = performance.now() - from;
      Object.assign(this, { state: 'ok', data, at: Date.now(), failure: null });
    } catch (failure) {
      if (turn !== this.turn) return;
      Object.assign(this, { state: 'failed', failure });
    }
    changed();
    const least = document.hidden ? HIDDEN_MS : this.every;
    if (this.wanted) this.timer = setTimeout(() => this.refresh(), Math.max(least, 5 * took));
  }
}
