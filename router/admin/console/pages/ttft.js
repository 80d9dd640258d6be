// Time to first token: against what was promised, and why turns were late.

import { changed as history, half, known, latest, marks, metrics, recent, steps } from '../history.js';
import { lines, stacks } from '../chart.js';
import { clock, count, rate, share, span, text, time } from '../format.js';
import { empty, figure, figures, from, loading, number, section, table } from '../parts.js';
import { changed, Source } from '../live.js';
import { quantile, total } from '../metrics.js';
import { h } from '../view.js';

/** Windows to choose from: seconds, name, seconds between points, seconds that a point covers. */
const WINDOWS = [
  { seconds: 300, name: '5 min', step: 10, width: 30 },
  { seconds: 3_600, name: '1 h', step: 60, width: 60 },
  { seconds: 21_600, name: '6 h', step: 300, width: 300 },
  { seconds: 86_400, name: '24 h', step: 900, width: 900 },
];
let shown = WINDOWS[0];
const slo = new Source('/admin/v1/slo', { every: 5000 });

/** Causes, and what to look at. */
const CAUSES = [
  ['queue', 'Queue', 'Waited, in the router or for others’ prefills.', 'More workers, or a higher weight on load.'],
  ['miss', 'Miss', 'Computed tokens that some worker had cached.', 'Locality, cache sizes, hints.'],
  ['engine', 'Engine', 'Slower than the worker’s fitted cost.', 'That worker: throttling, neighbours, a wrong α.'],
  ['network', 'Network', 'Time that the engine knows nothing of.', 'The way to the worker.'],
  ['prompt', 'Prompt', 'Its own new tokens alone take longer than that.', 'The objective of this traffic.'],
  ['whole', 'Whole answer', 'Not streamed: the first token came with the last.', 'An objective of its own for such clients.'],
];

function byClass(turns, name) {
  return [turns?.get(`true ${name}`) ?? 0, turns?.get(`false ${name}`) ?? 0];
}

function quantiles(buckets) {
  return [0.5, 0.95, 0.99].map((q) => {
    const value = quantile(buckets, q);
    return value === undefined ? undefined : value * 1000;
  });
}

function limitOf(data) {
  const classes = data.objective.classes;
  return classes.find(({ class: name }) => name === 'default')?.ttft_ms ?? classes.find(({ ttft_ms: ms }) => ms)?.ttft_ms;
}

function top(data, window) {
  const { share: promised } = data.objective;
  const limit = limitOf(data);
  const [met, missed] = [half(window?.turns, 'true'), half(window?.turns, 'false')];
  const turns = met + missed;
  const kept = turns ? met / turns : undefined;
  const burn = turns ? missed / turns / Math.max(1e-9, 1 - promised) : undefined;
  const [p50, p95, p99] = quantiles(window?.ttft);
  const level = kept === undefined ? '' : kept < promised ? 'bad' : '';
  return figures(
    figure('Objective', time(limit), { note: `for ${text(share(promised))} of turns` }),
    figure('Met', share(kept), { level, note: turns ? `${text(count(missed))} of ${text(count(turns))} late` : undefined }),
    figure('Budget burn', burn === undefined ? ['–', ''] : [burn.toFixed(burn < 10 ? 2 : 0), '×'], { level: burn > 1 ? 'bad' : '' }),
    figure('p50', time(p50)),
    figure('p95', time(p95), { level: limit && p95 > limit && promised >= 0.95 ? 'bad' : '' }),
    figure('p99', time(p99)),
    figure('Turns', rate(window ? total(window.ttft) / window.seconds : undefined)),
  );
}

function legend(entries) {
  return h('ul', { class: 'legend' }, entries.map(([name, words]) => h('li', {}, h('span', { class: `swatch ${name}` }), words)));
}

function choice() {
  const pick = (window) => () => {
    shown = window;
    changed();
  };
  return h('div', { class: 'tools', role: 'group', 'aria-label': 'Time shown' }, WINDOWS.map((window) =>
    h('button', { type: 'button', 'aria-pressed': String(window === shown), onclick: pick(window) }, window.name)));
}

function drawn(now) {
  return marks(now - shown.seconds * 1000).map(({ at_unix_ms: at, kind, subject, text }) => ({ at, kind, text: `${clock(at)} ${subject}: ${text}` }));
}

function trend(data) {
  const now = latest().at;
  const points = steps(shown.step, shown.width, shown.seconds);
  const series = ['p50', 'p95', 'p99'].map((name, at) => ({
    name,
    points: points.map(({ to, ttft }) => [to, quantiles(ttft)[at]]),
  }));
  const limit = limitOf(data);
  const seen = Math.min(shown.seconds, known());
  const each = `Each point covers ${span(shown.width)}.`;
  const note = seen < shown.seconds - shown.step ? `The router has kept ${span(seen)} so far. ${each}` : each;
  const last = quantiles(points.at(-1)?.ttft).map((value) => text(time(value)));
  return section('Time to first token', { key: 'trend', note, tools: [choice(), legend([['p50', 'p50'], ['p95', 'p95'], ['p99', 'p99']])] },
    lines({
      label: `Time to first token over the last ${shown.name}; now p50 ${last[0]}, p95 ${last[1]}, p99 ${last[2]}, objective ${text(time(limit))}`,
      series, from: now - shown.seconds * 1000, to: now, clock,
      marks: drawn(now),
      limit: limit ? { value: limit, name: `objective ${text(time(limit))}` } : undefined,
      text: (value) => text(time(value)),
    }));
}

function causes(window) {
  const sample = latest();
  if (!sample.tellsCauses) {
    return section('Why turns were late', { key: 'causes' }, empty('Not told by this version', 'This router counts late turns, and not why they were.'));
  }
  const all = [...(window?.causes ?? [])].reduce((sum, [, value]) => sum + value, 0);
  const rows = CAUSES.map(([key, name, meaning, look]) => {
    const here = window?.causes.get(key) ?? 0;
    return {
      key,
      cells: {
        name: [h('span', { class: `swatch ${key}` }), name],
        recent: number(count(here)),
        share: number(share(all ? here / all : undefined)),
        ever: number(count(sample.causes.get(key) ?? 0)),
        meaning,
        look: [look, ' ', h('a', { href: `#/decisions?late=true&cause=${key}`, 'aria-label': `Decisions late for ${name.toLowerCase()}` }, 'Decisions')],
      },
    };
  });
  const columns = [
    { key: 'name', name: 'Cause', head: true },
    { key: 'recent', name: shown.name, class: 'num' },
    { key: 'share', name: 'Share', class: 'num' },
    { key: 'ever', name: 'Since start', class: 'num' },
    { key: 'meaning', name: 'Means' },
    { key: 'look', name: 'Look at' },
  ];
  return section('Why turns were late', { key: 'causes', note: all ? undefined : 'None in this time.' }, causeTrend(), table({ caption: 'Late turns by cause', columns, rows }));
}

function causeTrend() {
  const now = latest().at;
  const step = Math.max(15, shown.step);
  const bars = steps(step, step, shown.seconds).map(({ to, causes }) => ({ at: to, parts: CAUSES.map(([key]) => [key, causes.get(key) ?? 0]) }));
  const all = bars.reduce((sum, { parts }) => sum + parts.reduce((sum, [, value]) => sum + value, 0), 0);
  return stacks({
    label: `Late turns by cause over the last ${shown.name}, ${all} in all`,
    bars, step: step * 1000, from: now - shown.seconds * 1000, to: now, clock, height: 120,
    marks: drawn(now),
    text: (value) => text(count(value)),
  });
}

function classes(data, window) {
  const columns = [
    { key: 'name', name: 'Class', head: true },
    { key: 'objective', name: 'Objective', class: 'num' },
    { key: 'met', name: `Met, ${shown.name}`, class: 'num' },
    { key: 'late', name: `Late, ${shown.name}`, class: 'num' },
    { key: 'ever', name: 'Met since start', class: 'num' },
    { key: 'all', name: 'Turns since start', class: 'num' },
  ];
  const rows = data.objective.classes.map(({ class: name, ttft_ms: limit, met, missed }) => {
    const [now, late] = byClass(window?.turns, name);
    return {
      key: name,
      cells: {
        name: h('code', {}, name),
        objective: limit ? number(time(limit)) : h('span', { class: 'note' }, 'as asked'),
        met: number(share(now + late ? now / (now + late) : undefined)),
        late: number(count(late)),
        ever: number(share(met + missed ? met / (met + missed) : undefined)),
        all: number(count(met + missed)),
      },
    };
  });
  return section('By class of objective', { key: 'classes' }, table({ caption: 'Objectives by class', columns, rows }));
}

function workers(window) {
  const errors = latest().errors;
  const columns = [
    { key: 'name', name: 'Worker', head: true },
    { key: 'p50', name: 'p50', class: 'num' },
    { key: 'p95', name: 'p95', class: 'num' },
    { key: 'p99', name: 'p99', class: 'num' },
    { key: 'turns', name: 'Turns', class: 'num' },
    { key: 'off', name: 'Prediction off by', class: 'num', title: 'Actual less predicted: the 0.1, 0.5 and 0.9 quantiles of the last 256' },
  ];
  const rows = [...(window?.byWorker ?? [])]
    .toSorted(([a], [b]) => a.localeCompare(b, 'en', { numeric: true }))
    .map(([name, buckets]) => {
      const [p50, p95, p99] = quantiles(buckets).map((value) => number(time(value)));
      const off = errors.get(name);
      return {
        key: name,
        cells: {
          name, p50, p95, p99,
          turns: number(count(total(buckets))),
          off: off ? `${signed(off['0.1'])} · ${signed(off['0.5'])} · ${signed(off['0.9'])}` : '–',
        },
      };
    });
  if (rows.length === 0) return null;
  return section('By worker', { key: 'workers', note: 'The last five minutes.' }, table({ caption: 'Time to first token by worker', columns, rows }));
}

function signed(ms) {
  if (ms === undefined) return '–';
  return `${ms > 0 ? '+' : ''}${text(time(ms)).replace('-', '−')}`;
}

function tail(data) {
  const { why } = data.tail;
  return section('Eviction hints', { key: 'tail' },
    h('p', { class: 'prose' }, 'When a worker needs room, the router tells it which ends of silent conversations to evict first. ', why.charAt(0).toUpperCase(), why.slice(1), why.endsWith('.') ? '' : '.'));
}

function draw(data) {
  const sample = latest();
  if (!sample) return loading('figures');
  if (total(sample.ttft) === 0) {
    return [
      h('div', { key: 'top' }, top(data, null)),
      empty('No turn has had its first token yet', 'Send a streamed chat completion through the data port, and this page fills.'),
    ];
  }
  const window = recent(shown.seconds);
  return [
    h('div', { key: 'top' }, top(data, window)),
    trend(data),
    causes(window),
    classes(data, window),
    workers(recent(Math.min(300, shown.seconds))),
    tail(data),
  ];
}

export const ttft = {
  path: 'ttft',
  title: 'TTFT',
  heading: 'Time to first token',
  sources: () => [slo, history],
  view: () => (metrics.data === null && metrics.failure ? from(metrics, 'figures', () => null) : from(slo, 'the objective', draw)),
};
