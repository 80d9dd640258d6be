// A policy that is being edited: what was in force when it began, and what was typed since.

import { WEIGHTS } from './tables.js';

/** Settings by the policies that use them. */
export const GROUPS = [
  {
    policies: ['tail', 'least_ttft'],
    items: [
      ...WEIGHTS,
      { path: 'kappa_max', name: 'Limit of κ', symbol: 'κ', meaning: 'Largest factor by which a miss on a busy fleet is weighted.' },
    ],
  },
  {
    policies: ['cache_aware', 'cache_aware_smg'],
    items: [
      { path: 'cache_aware.match_threshold', name: 'Match from', meaning: 'Share of the prompt that a worker must hold to be chosen for it.' },
      { path: 'cache_aware.imbalance_abs', name: 'Imbalance', unit: 'requests', meaning: 'Out of balance if the busiest has more than this many above the idlest …' },
      { path: 'cache_aware.imbalance_rel', name: 'Imbalance', unit: 'times', meaning: '… and more than this many times its requests.' },
    ],
  },
];

/** Settings that a class of turns can override. */
export const OVERRIDES = GROUPS[0].items;

/** A path's keys. The name of a class may have dots in it. */
function keys(path) {
  const own = /^(classes|named)\.(.+)\.(weights\.[^.]+|policy|kappa_max)$/.exec(path);
  return own ? [own[1], own[2], ...own[3].split('.')] : path.split('.');
}

/** Whether everybody's value stands in for this one where it is left out. */
const isOverride = (path) => /^(classes|named)\./.test(path);

/** Every value of a document of settings, by its path. */
function leaves(settings, prefix = '') {
  return Object.entries(settings).flatMap(([key, value]) =>
    value !== null && typeof value === 'object' ? leaves(value, `${prefix}${key}.`) : [[`${prefix}${key}`, value]],
  );
}

/** What differs from one policy to another. */
export function differences(before, after) {
  const old = new Map(leaves(before));
  return leaves(after)
    .filter(([path, value]) => old.get(path) !== value)
    .map(([path, value]) => ({ path, was: String(old.get(path) ?? '–'), will: String(value) }));
}

export class Draft {
  constructor(base) {
    this.base = base;
    this.typed = new Map();
    this.values = new Map(leaves(base.settings));
  }

  has(path) {
    return this.values.has(path);
  }

  baseOf(path) {
    return this.values.get(path);
  }

  text(path) {
    return this.typed.get(path) ?? String(this.values.get(path) ?? '');
  }

  set(path, text) {
    this.typed.set(path, text);
  }

  value(path) {
    const text = this.text(path);
    if (isOverride(path) && text.trim() === '') return undefined;
    return keys(path).at(-1) === 'policy' ? text : Number(text.trim() === '' ? NaN : text);
  }

  isNumber(path) {
    const value = this.value(path);
    return typeof value !== 'number' || Number.isFinite(value);
  }

  isChanged(path) {
    return this.typed.has(path) && this.value(path) !== this.values.get(path);
  }

  isSound() {
    return [...this.typed.keys()].every((path) => this.isNumber(path));
  }

  changes() {
    return [...this.typed.keys()]
      .filter((path) => this.isChanged(path))
      .map((path) => ({ path, was: String(this.values.get(path) ?? '–'), will: this.text(path).trim() || '–' }));
  }

  /** The whole document. What was not typed is what was in force, to the last bit. */
  settings() {
    const whole = structuredClone(this.base.settings);
    for (const path of this.typed.keys()) {
      if (!this.isChanged(path)) continue;
      const parts = keys(path);
      const last = parts.pop();
      const place = parts.reduce((within, part) => (within[part] ??= {}), whole);
      if (this.value(path) === undefined) delete place[last];
      else place[last] = this.value(path);
    }
    for (const of of ['classes', 'named']) {
      for (const [name, own] of Object.entries(whole[of] ?? {})) {
        if (Object.keys(own.weights ?? { none: 0 }).length === 0) delete own.weights;
        if (Object.keys(own).length === 0) delete whole[of][name];
      }
    }
    return whole;
  }

  /** The same changes, made to another policy. */
  rebase(base) {
    this.base = base;
    this.values = new Map(leaves(base.settings));
  }
}
