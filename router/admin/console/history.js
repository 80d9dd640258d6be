// The last day: samples of the router's counters. A trend is the difference of two samples. The router keeps samples of a
// day, which are loaded once; this page adds a finer one every two seconds. Those of the last quarter of an hour have
// counters of each worker.

import { json, text } from './api.js';
import { Source } from './live.js';
import { bound, read, since, sumBy } from './metrics.js';

const KEPT_MS = 24 * 3_600_000;
/** Samples of this page are thinned out to this distance when they are older than the finest charts. */
const FINE_MS = 6 * 60_000;
const COARSE_MS = 10_000;
/** Counters of single workers are kept for so long, and in the router's history as well. */
const OF_WORKERS_MS = 15 * 60_000;
/** Of larger fleets the single workers' histograms are too much to keep, and the router's history has none of their counters. */
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
  'tailroute_worker_failures_total',
]);

/** Counters of the whole fleet. */
const SHARED = ['ttft', 'turns', 'causes', 'requests', 'prompt'];
/** Counters of single workers, by `WORKER`, `KIND WORKER` or `BOUND WORKER`; a sample may lack them. */
const OF_WORKERS = ['turnsOf', 'failuresOf', 'promptOf', 'ttftOf'];

function sample(page, at) {
  const metrics = read(page, WANTED);
  const get = (name) => metrics.get(`tailroute_${name}`);
  const buckets = get('time_to_first_token_seconds_bucket');
  const isSmall = get('worker_turns_total').length <= MOST_WORKERS;
  const errors = new Map();
  for (const { labels, value } of get('time_to_first_token_signed_error_seconds')) {
    errors.set(labels.worker, { ...errors.get(labels.worker), [labels.percentile]: value * 1000 });
  }
  const violations = get('slo_violations_total');
  return {
    at,
    ttft: sumBy(buckets, ({ le }) => bound(le)),
    turns: sumBy(get('slo_turns_total'), ({ class: name, met }) => `${met} ${name}`),
    causes: sumBy(violations, 'cause'),
    tellsCauses: violations.length > 0,
    requests: sumBy(get('requests_total'), 'outcome'),
    prompt: sumBy(get('prompt_tokens_total'), 'kind'),
    turnsOf: sumBy(get('worker_turns_total'), 'worker'),
    failuresOf: sumBy(get('worker_failures_total'), 'worker'),
    promptOf: sumBy(get('prompt_tokens_total'), ({ worker, kind }) => `${kind} ${worker}`),
    ...(isSmall ? { ttftOf: sumBy(buckets, ({ worker, le }) => `${le} ${worker}`) } : {}),
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
  for (const name of [...SHARED, ...OF_WORKERS].filter((name) => next[name])) {
    carried[name] = new Map();
    for (const key of new Set([...next[name].keys(), ...(raw?.[name]?.keys() ?? [])])) {
      const [was, now] = [raw?.[name]?.get(key) ?? 0, next[name].get(key) ?? 0];
      const before = (ended.get(`${name} ${key}`) ?? 0) + (restarted ? was : Math.max(0, was - now));
      ended.set(`${name} ${key}`, before);
      carried[name].set(key, before + now);
    }
  }
  // What this sample lacks goes on from the last one that has it.
  raw = { ...raw, ...next };
  return carried;
}

function add(next) {
  samples.push(carry(next));
  while (samples.length > 2 && samples[1].at < next.at - KEPT_MS) samples.shift();
  thin(next.at - FINE_MS);
  dropWorkers(next.at - OF_WORKERS_MS);
  return samples.at(-1);
}

/** Drops a sample that has become older than `limit` and follows another one closely. */
function thin(limit) {
  const at = samples.findLastIndex((sample) => sample.at < limit);
  if (at > 0 && samples[at].at - samples[at - 1].at < COARSE_MS) samples.splice(at, 1);
}

/** Drops the counters of single workers from samples older than `limit`. */
function dropWorkers(limit) {
  for (let at = samples.findLastIndex((sample) => sample.at < limit); at >= 0 && samples[at].turnsOf; at -= 1) {
    for (const name of OF_WORKERS) delete samples[at][name];
  }
}

function counts(sums) {
  return new Map(Object.entries(sums ?? {}));
}

/** A sample of the router's history, in the form of this page's. */
function kept(sample) {
  const bounds = Object.keys(sample.ttft).toSorted((a, b) => bound(a) - bound(b));
  return {
    at: sample.at_unix_ms,
    ttft: new Map(bounds.map((le) => [bound(le), sample.ttft[le]])),
    turns: counts(sample.turns),
    causes: counts(sample.causes),
    requests: counts(sample.requests),
    prompt: counts(sample.prompt),
    waiting: sample.waiting,
    tellsCauses: true,
    slow: [],
    errors: new Map(),
    ...ofWorkers(Object.entries(sample.workers), bounds),
  };
}

/** Counters of the workers of a sample of the router's history, if it has them. */
function ofWorkers(workers, bounds) {
  if (!workers.length || !workers.every(([, { counters }]) => counters)) return {};
  const by = (parts) => new Map(workers.flatMap(([name, { counters }]) => parts(counters).map(([key, value]) => [`${key}${name}`, value])));
  return {
    turnsOf: by(({ turns }) => [['', turns]]),
    failuresOf: by(({ failures }) => [['', failures]]),
    promptOf: by((of) => [['all ', of.prompt], ['predicted_cached ', of.predicted_cached], ['reported_cached ', of.reported_cached]]),
    ttftOf: by(({ ttft }) => ttft.map((value, at) => [`${bounds[at]} `, value])),
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
  [changes, loads, loading, raw, ended, lastByWorker] = [[], [], null, null, new Map(), {}];
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

/** The first sample of so many seconds that has counters of single workers. */
function firstOfWorkers(seconds) {
  const from = latest().at - seconds * 1000;
  const at = samples.findIndex((sample) => sample.at >= from && sample.turnsOf);
  const one = samples[at - 1];
  return one?.turnsOf && from - one.at < COARSE_MS ? one : samples[at];
}

let lastByWorker = {};

/** What came by worker in the last so many seconds, up to a quarter of an hour, as far as it is known. */
export function recentByWorker(seconds) {
  const now = latest();
  if (!now?.turnsOf) return null;
  // A page asks for each of its cells.
  if (lastByWorker.now !== now) lastByWorker = { now };
  lastByWorker[seconds] ??= differenceByWorker(firstOfWorkers(seconds), now);
  return lastByWorker[seconds];
}

function differenceByWorker(first, now) {
  if (first === now) return null;
  const grown = (name) => (first[name] && now[name] ? since(first[name], now[name]) : new Map());
  const ttft = new Map();
  for (const [key, count] of grown('ttftOf')) {
    const space = key.indexOf(' ');
    const worker = key.slice(space + 1);
    if (!ttft.has(worker)) ttft.set(worker, new Map());
    ttft.get(worker).set(bound(key.slice(0, space)), count);
  }
  return { seconds: (now.at - first.at) / 1000, ttft, prompt: grown('promptOf'), turns: grown('turnsOf'), failures: grown('failuresOf') };
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
