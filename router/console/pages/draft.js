// A policy that is being edited: what was in force when it began, and what was typed since.

export const POLICIES = [
  ['tail', 'The least predicted time to first token, plus the load that a miss causes.'],
  ['least_ttft', 'The least predicted time to first token of this turn alone.'],
  ['cache_aware', 'SGLang’s rule: the holder of the prefix, unless the load is out of balance.'],
  ['cache_aware_smg', 'SMG’s rule: the holder of the prefix, unless it is far above the mean load.'],
  ['least_loaded', 'The fewest requests in flight.'],
  ['power_of_two', 'The one of two random workers that has fewer requests in flight.'],
  ['round_robin', 'Each ready worker in turn.'],
  ['random', 'Any ready worker.'],
  ['consistent_hash', 'A conversation’s worker by its name, whatever its load.'],
  ['prefix_hash', 'A worker by how the prompt begins, unless it is far above the mean load.'],
].map(([name, meaning]) => ({ name, meaning }));

/** What can be edited, by the policies that go by it. */
export const GROUPS = [
  {
    policies: ['tail', 'least_ttft'],
    items: [
      { path: 'weights.locality', name: 'Locality', meaning: 'Charge for the load that a miss causes. Higher: turns stay where their prefix is.' },
      { path: 'weights.load', name: 'Load', meaning: 'Multiplies the predicted wait. Higher: turns leave queues sooner.' },
      { path: 'weights.slo', name: 'SLO', unit: 'per ms', meaning: 'Extra cost of each millisecond predicted beyond the objective.' },
      { path: 'weights.home', name: 'Home', meaning: 'What it costs a new conversation to live among many.' },
      { path: 'weights.affinity_ms', name: 'Affinity', unit: 'ms', meaning: 'Credit for the conversation’s last worker.' },
      { path: 'weights.spread_ms', name: 'Spread', unit: 'ms', meaning: 'Random tie-breaking.' },
      { path: 'kappa_max', name: 'κ at most', meaning: 'Bound of the factor by which a busy worker is charged for a miss.' },
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

/** What a class of turns can have of its own. */
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
