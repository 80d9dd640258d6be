// Time to first token over time, with the changes of that time. Each point leads to its late turns.

import { half, known, latest, marks, steps } from '../history.js';
import { lines } from '../chart.js';
import { count, moment, span, text, time } from '../format.js';
import { changed } from '../live.js';
import { quantile } from '../metrics.js';
import { lateTurns, limitLine } from '../objective.js';
import { section } from '../parts.js';
import { h } from '../view.js';

/** Windows to choose from: seconds, name, seconds between points, seconds that a point covers. */
const WINDOWS = [
  { seconds: 300, name: '5 min', step: 10, width: 30 },
  { seconds: 3_600, name: '1 h', step: 60, width: 60 },
  { seconds: 21_600, name: '6 h', step: 300, width: 300 },
  { seconds: 86_400, name: '24 h', step: 900, width: 900 },
];
const SERIES = ['p50', 'p95', 'p99'];
const MOST_LISTED = 200;
let chosen = null;

/** The time that is shown: as chosen, else the last five minutes. */
export function shown() {
  return chosen ?? WINDOWS[0];
}

export function quantiles(buckets) {
  return [0.5, 0.95, 0.99].map((q) => {
    const value = quantile(buckets, q);
    return value === undefined ? undefined : value * 1000;
  });
}

/** Changes as marks of a chart. */
export function marksSince(from) {
  return marks(from).map(({ at_unix_ms: at, kind, subject, text }) => ({ at, kind, text: `${moment(at)} ${subject}: ${text}` }));
}

/** Windows of the chart as columns that lead to their late turns. */
export function columns(points, step) {
  return points.map(({ from, to, turns, ttft }) => {
    const late = half(turns, 'false');
    const [, p95] = quantiles(ttft);
    return {
      from: to - step, until: to, href: lateTurns({ from, until: to }),
      text: `${moment(to)}: p95 ${text(time(p95))}, ${text(count(late))} late of ${text(count(late + half(turns, 'true')))}`,
    };
  });
}

function legend() {
  return h('ul', { class: 'legend' }, SERIES.map((name) => h('li', {}, h('span', { class: `swatch ${name}` }), name)));
}

function choice() {
  const pick = (window) => () => {
    chosen = window;
    changed();
  };
  return h('div', { class: 'tools', role: 'group', 'aria-label': 'Time shown' }, WINDOWS.map((window) =>
    h('button', { type: 'button', 'aria-pressed': String(window === shown()), onclick: pick(window) }, window.name)));
}

function list(from) {
  const all = marks(from);
  if (all.length === 0) return null;
  const listed = all.slice(-MOST_LISTED).reverse();
  return h('details', { class: 'changes', key: 'changes' },
    h('summary', {}, `${all.length} ${all.length === 1 ? 'change' : 'changes'} of the policy, workers and configuration`),
    h('ul', {}, listed.map(({ at_unix_ms: at, subject, text }) => h('li', {}, h('time', {}, moment(at)), ` ${subject}: ${text}`))),
    all.length > listed.length ? h('p', { class: 'note' }, `The latest ${listed.length} are listed.`) : null);
}

/** The chart. */
export function trend(data) {
  const { name, seconds, step, width } = shown();
  const now = latest().at;
  const from = now - seconds * 1000;
  const points = steps(step, width, seconds);
  const values = points.map(({ to, ttft }) => [to, quantiles(ttft)]);
  const series = SERIES.map((name, at) => ({ name, points: values.map(([to, all]) => [to, all[at]]) }));
  const seen = Math.min(seconds, known());
  const each = `Each point covers ${span(width)}; select one to see its late turns.`;
  const note = seen < seconds - step ? `The router has kept ${span(seen)} so far. ${each}` : each;
  const last = quantiles(points.at(-1)?.ttft).map((value) => text(time(value)));
  const limit = limitLine(data);
  return section('Time to first token', { key: 'trend', note, tools: [choice(), legend()] },
    lines({
      label: `Time to first token over the last ${name}; now p50 ${last[0]}, p95 ${last[1]}, p99 ${last[2]}${limit ? `, ${limit.name}` : ''}`,
      series, limit, from, to: now, clock: moment,
      marks: marksSince(from),
      spots: columns(points, step * 1000),
      text: (value, like) => text(time(value, like)),
    }),
    list(from));
}
