// The last minutes, as this page has seen them: the router keeps totals since its start, and a trend is the difference of two.

import { text } from './api.js';
import { Source } from './live.js';
import { histograms, read, since, sumBy, total } from './metrics.js';

const KEPT_MS = 15 * 60_000;
/** Of larger fleets the single workers' histograms are too much to keep. */
const MOST_WORKERS = 64;

const WANTED = new Set([
  'tailroute_time_to_first_token_seconds_bucket',
  'tailroute_time_to_first_token_error_quantile_seconds',
  'tailroute_slo_turns_total',
  'tailroute_slo_violations_total',
  'tailroute_requests_total',
  'tailroute_prompt_tokens_total',
  'tailroute_hints_total',
  'tailroute_breaker_opened_total',
  'tailroute_admission_waiting',
  'tailroute_policy_revision',
]);

const DIMENSIONS = ['ttft', 'turns', 'causes', 'requests', 'prompt', 'hints', 'opened'];

function sample(page, at) {
  const metrics = read(page, WANTED);
  const get = (name) => metrics.get(`tailroute_${name}`);
  const ttft = histograms(get('time_to_first_token_seconds_bucket'));
  const byWorker = histograms(get('time_to_first_token_seconds_bucket'), 'worker');
  const errors = new Map();
  for (const { labels, value } of get('time_to_first_token_error_quantile_seconds')) {
    errors.set(labels.worker, { ...errors.get(labels.worker), [labels.quantile]: value * 1000 });
  }
  const violations = get('slo_violations_total');
  return {
    at,
    ttft: ttft.get('') ?? new Map(),
    byWorker: byWorker.size <= MOST_WORKERS ? byWorker : new Map(),
    turns: sumBy(get('slo_turns_total'), ({ class: name, met }) => `${met} ${name}`),
    causes: sumBy(violations, 'cause'),
    tellsCauses: violations.length > 0,
    requests: sumBy(get('requests_total'), 'outcome'),
    prompt: sumBy(get('prompt_tokens_total'), ({ worker, kind }) => `${kind} ${worker}`),
    hints: sumBy(get('hints_total'), ({ worker, delivered }) => `${delivered} ${worker}`),
    opened: sumBy(get('breaker_opened_total'), 'worker'),
    waiting: get('admission_waiting')[0]?.value,
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

function add(next) {
  const last = samples.at(-1);
  const beganAnew = last && (total(next.ttft) < total(last.ttft) || half(next.turns, 'true') < half(last.turns, 'true'));
  if (beganAnew) samples.length = 0;
  samples.push(next);
  while (samples.length > 2 && samples[1].at < next.at - KEPT_MS) samples.shift();
  return next;
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
}

function difference(before, now) {
  const window = { from: before.at, to: now.at, seconds: (now.at - before.at) / 1000 };
  for (const name of DIMENSIONS) window[name] = since(before[name], now[name]);
  window.byWorker = new Map();
  for (const [worker, buckets] of now.byWorker) {
    window.byWorker.set(worker, since(before.byWorker.get(worker), buckets));
  }
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
export const metrics = new Source(async () => add(sample(await text('/metrics'), Date.now())));
