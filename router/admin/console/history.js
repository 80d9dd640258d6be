// The last day: samples of the router's counters. A trend is the difference of two samples. The router keeps samples of a
// day, which are loaded once; this page adds a finer one every two seconds, with counters of each worker.

import { json, text } from './api.js';
import { Source } from './live.js';
import { histograms, read, since, sumBy, total } from './metrics.js';

const KEPT_MS = 24 * 3_600_000;
/** Samples of this page are thinned out to this distance when they are older than the finest charts. */
const FINE_MS = 6 * 60_000;
const COARSE_MS = 10_000;
/** Of larger fleets the single workers' histograms are too much to keep. */
const MOST_WORKERS = 64;

const WANTED = new Set([
  'tailroute_time_to_first_token_seconds_bucket',
  'tailroute_time_to_first_token_signed_error_seconds',
  'tailroute_slo_turns_total',
  'tailroute_slo_violations_total',
  'tailroute_requests_total',
  'tailroute_prompt_tokens_total',
  'tailroute_worker_slow_ratio',
  'tailroute_admission_waiting',
  'tailroute_worker_turns_total',
]);

/** Counters that the router's history has as well. */
const SHARED = ['ttft', 'turns', 'causes', 'requests', 'prompt'];

function sample(page, at) {
  const metrics = read(page, WANTED);
  const get = (name) => metrics.get(`tailroute_${name}`);
  const ttft = histograms(get('time_to_first_token_seconds_bucket'));
  const byWorker = histograms(get('time_to_first_token_seconds_bucket'), 'worker');
  const errors = new Map();
  for (const { labels, value } of get('time_to_first_token_signed_error_seconds')) {
    errors.set(labels.worker, { ...errors.get(labels.worker), [labels.percentile]: value * 1000 });
  }
  const violations = get('slo_violations_total');
  return {
    at,
    own: true,
    ttft: ttft.get('') ?? new Map(),
    byWorker: byWorker.size <= MOST_WORKERS ? byWorker : new Map(),
    turns: sumBy(get('slo_turns_total'), ({ class: name, met }) => `${met} ${name}`),
    causes: sumBy(violations, 'cause'),
    tellsCauses: violations.length > 0,
    requests: sumBy(get('requests_total'), 'outcome'),
    prompt: sumBy(get('prompt_tokens_total'), 'kind'),
    turnsOf: sumBy(get('worker_turns_total'), 'worker'),
    promptOf: sumBy(get('prompt_tokens_total'), ({ worker, kind }) => `${kind} ${worker}`),
    waiting: get('admission_waiting')[0]?.value,
    slow: get('worker_slow_ratio').filter(({ value }) => value > 1).map(({ labels }) => labels.worker),
    errors,
  };
}

/** Adds up what belongs to one half of a two-part key: `met` of `true default`. */
export function half(map, wanted) {
  let sum = 0;
  for (const [key, value] of map ?? []) if (key.startsWith(`${wanted} `)) sum += value;
  return sum;
}

const samples = [];
let changes = [];
let loads = [];
let loading = null;
/** The last counters as they were read, and what was counted before by series that ended. */
let raw = null;
let ended = new Map();

/** Keeps counters from decreasing: they start again at zero with a process, and lose what a removed worker had counted. */
function carry(next) {
  const restarted = ['turns', 'requests'].some((name) => [...(raw?.[name] ?? [])].some(([key, value]) => (next[name].get(key) ?? 0) < value));
  const carried = { ...next, sinceStart: next.causes };
  for (const name of SHARED) {
    carried[name] = new Map();
    for (const key of new Set([...next[name].keys(), ...(raw?.[name].keys() ?? [])])) {
      const [was, now] = [raw?.[name].get(key) ?? 0, next[name].get(key) ?? 0];
      const before = (ended.get(`${name} ${key}`) ?? 0) + (restarted ? was : Math.max(0, was - now));
      ended.set(`${name} ${key}`, before);
      carried[name].set(key, before + now);
    }
  }
  raw = next;
  return carried;
}

function add(next) {
  samples.push(carry(next));
  while (samples.length > 2 && samples[1].at < next.at - KEPT_MS) samples.shift();
  thin(next.at - FINE_MS);
  return samples.at(-1);
}

/** Drops a sample that has become older than `limit` and follows another one closely. */
function thin(limit) {
  const at = samples.findLastIndex((sample) => sample.at < limit);
  if (at > 0 && samples[at].at - samples[at - 1].at < COARSE_MS) samples.splice(at, 1);
}

function counts(sums) {
  return new Map(Object.entries(sums ?? {}));
}

/** A sample of the router's history, in the form of this page's. */
function kept(sample) {
  const ttft = Object.entries(sample.ttft).map(([le, count]) => [le === '+Inf' ? Infinity : Number(le), count]);
  return {
    at: sample.at_unix_ms,
    own: false,
    ttft: new Map(ttft.toSorted(([a], [b]) => a - b)),
    turns: counts(sample.turns),
    causes: counts(sample.causes),
    requests: counts(sample.requests),
    prompt: counts(sample.prompt),
    waiting: sample.waiting,
    slow: [],
  };
}

/** Takes the router's samples, which come before those of this page. */
function load({ samples: past, marks }) {
  changes = marks;
  loads = past.map(({ at_unix_ms: at, workers }) => [at, workers]);
  past.map(kept).forEach(add);
}

/** Predicted waits of a worker before this page was opened: [[ms, wait]]. */
export function waits(worker, from) {
  return loads.filter(([at, of]) => at >= from && of[worker]).map(([at, of]) => [at, of[worker].wait_ms]);
}

/** Changes of the policy, workers and configuration since a time: [{at_unix_ms, kind, subject, text}]. */
export function marks(from) {
  return changes.filter(({ at_unix_ms: at }) => at >= from);
}

/** What is known last. */
export function latest() {
  return samples.at(-1);
}

/** How many seconds are known. */
export function known() {
  return samples.length > 1 ? (samples.at(-1).at - samples[0].at) / 1000 : 0;
}

/** Forgets everything. */
export function forget() {
  samples.length = 0;
  [changes, loads, loading, raw, ended] = [[], [], null, null, new Map()];
}

function difference(before, now) {
  const window = { from: before.at, to: now.at, seconds: (now.at - before.at) / 1000 };
  for (const name of SHARED) window[name] = since(before[name], now[name]);
  return window;
}

function before(at) {
  let found = samples[0];
  for (const one of samples) {
    if (one.at > at) break;
    found = one;
  }
  return found;
}

/** What came in the last so many seconds, as far as they are known. */
export function recent(seconds) {
  const now = latest();
  if (!now || samples.length < 2) return null;
  return difference(before(now.at - seconds * 1000), now);
}

/** The same by worker, as far as this page has seen it: the router's history has no counters of workers. */
export function recentByWorker(seconds) {
  const now = latest();
  const first = samples.find(({ own, at }) => own && at >= now.at - seconds * 1000);
  if (!first || first === now) return null;
  const ttft = new Map([...now.byWorker].map(([worker, buckets]) => [worker, since(first.byWorker.get(worker), buckets)]));
  return { seconds: (now.at - first.at) / 1000, ttft, prompt: since(first.promptOf, now.promptOf), turns: since(first.turnsOf, now.turnsOf) };
}

/** Windows of so many seconds, one for each of the last steps, oldest first. */
export function steps(step, width, back) {
  const now = latest();
  if (!now || samples.length < 2) return [];
  const found = [];
  const first = samples[0].at;
  for (let end = now.at - back * 1000; end <= now.at + 1; end += step * 1000) {
    const last = before(end);
    const start = before(end - width * 1000);
    if (end < first || last === start) continue;
    found.push({ ...difference(start, last), to: end });
  }
  return found;
}

/** The metrics page, asked for as long as the console is open. */
export const metrics = new Source(async () => {
  // A router without a history answers 404: the page then shows what it sees itself.
  loading ??= json('/admin/v1/history').then(load, () => {});
  await loading;
  return add(sample(await text('/metrics'), Date.now()));
});

/** Changes since the page was opened: the router's marks again. */
export const changed = new Source(async () => {
  const { marks: all } = await json('/admin/v1/history?samples=false');
  changes = all;
  return all;
}, { every: 10_000 });
