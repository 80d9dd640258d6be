// Time to first token: against what was promised, and why turns were late.

import { changed as history, half, latest, metrics, recent, recentByWorker, steps } from '../history.js';
import { stacks } from '../chart.js';
import { count, moment, rate, share, span, text, time } from '../format.js';
import { lateTurns, limitOf, slo } from '../objective.js';
import { empty, figure, figures, from, loading, number, section, table, workerName } from '../parts.js';
import { total } from '../metrics.js';
import { h } from '../view.js';
import { columns, marksSince, quantiles, shown, trend } from './trend.js';

/** Causes, and what to look at, given the names of the workers that are slow now. */
const CAUSES = [
  ['queue', 'Queue', 'Waited, in the router or for others’ prefills.', (slow) => (slow ? `${slow} is slow now: look there first.` : 'More workers, or a higher weight on load.')],
  ['miss', 'Miss', 'Computed tokens that some worker had cached.', 'Locality, cache sizes, hints.'],
  ['slow_worker', 'Slow worker', 'A worker that became slow delayed the turn, or left its load to others.', (slow) => (slow ? `${slow} is slow now: cordon it, and look at its GPU (clock, throttling, neighbours).` : 'The worker that was slow: see Events.')],
  ['engine', 'Engine', 'Slower than the worker’s fitted cost.', 'That worker: throttling, neighbours, a wrong α.'],
  ['network', 'Network', 'Time outside the engine: network, proxies.', 'The way to the worker.'],
  ['prompt', 'Prompt', 'Its new tokens alone exceed the objective.', 'The objective of this traffic.'],
  ['whole', 'Whole answer', 'Not streamed: the first token came with the last.', 'Give such clients a separate objective.'],
];

function byClass(turns, name) {
  return [turns?.get(`true ${name}`) ?? 0, turns?.get(`false ${name}`) ?? 0];
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
    figure('Within objective', share(kept), { level, note: turns ? h('a', { href: lateTurns({ from: window.from }) }, `${text(count(missed))} of ${text(count(turns))} late`) : undefined }),
    figure('Budget burn', burn === undefined ? ['–', ''] : [burn.toFixed(burn < 10 ? 2 : 0), '×'], { level: burn > 1 ? 'bad' : '' }),
    figure('p50', time(p50), { note: `last ${shown().name}` }),
    figure('p95', time(p95), { level: limit && p95 > limit && promised >= 0.95 ? 'bad' : '' }),
    figure('p99', time(p99)),
    figure('Turns', rate(window ? total(window.ttft) / window.seconds : undefined)),
  );
}

function causes(window) {
  const sample = latest();
  if (!sample.tellsCauses) {
    return section('Why turns were late', { key: 'causes' }, empty('Not available in this version', 'This router counts late turns without their causes.'));
  }
  const all = [...(window?.causes ?? [])].reduce((sum, [, value]) => sum + value, 0);
  // What is slow now explains turns of now, and not those of hours ago.
  const slow = shown().seconds <= 300 ? sample.slow.join(', ') : '';
  const rows = CAUSES.map(([key, name, meaning, look]) => {
    const here = window?.causes.get(key) ?? 0;
    return {
      key,
      cells: {
        name: [h('span', { class: `swatch ${key}` }), name],
        recent: number(count(here)),
        share: number(share(all ? here / all : undefined)),
        ever: number(count(sample.sinceStart.get(key) ?? 0)),
        meaning,
        look: typeof look === 'function' ? look(slow) : look,
        turns: h('a', { href: lateTurns({ cause: key, from: here ? window.from : undefined }), 'aria-label': `Turns late for ${name.toLowerCase()}` }, 'Turns'),
      },
    };
  });
  const heads = [
    { key: 'name', name: 'Cause', head: true },
    { key: 'recent', name: shown().name, class: 'num' },
    { key: 'share', name: 'Share', class: 'num' },
    { key: 'ever', name: 'Since start', class: 'num' },
    { key: 'meaning', name: 'Meaning', class: 'whole' },
    { key: 'look', name: 'Look at', class: 'whole' },
    { key: 'turns', name: 'Late turns', hidden: true },
  ];
  // Causes that occurred come first.
  rows.sort((a, b) => (window?.causes.get(b.key) ?? 0) - (window?.causes.get(a.key) ?? 0));
  return section('Why turns were late', { key: 'causes', note: all ? undefined : 'None in this time.' }, causeTrend(),
    table({ caption: 'Late turns by cause', columns: heads, rows, more: 'causes', few: 2 }));
}

function causeTrend() {
  const { name, seconds, step: fine } = shown();
  const now = latest().at;
  const from = now - seconds * 1000;
  const step = Math.max(15, fine);
  const points = steps(step, step, seconds);
  const parts = ({ from, to, causes }) => CAUSES.map(([key]) => [key, causes.get(key) ?? 0, lateTurns({ cause: key, from, until: to })]);
  const bars = points.map((point) => ({ at: point.to, parts: parts(point) }));
  const all = bars.reduce((sum, { parts }) => sum + parts.reduce((sum, [, value]) => sum + value, 0), 0);
  return stacks({
    label: `Late turns by cause over the last ${name}, ${all} in all`,
    bars, step: step * 1000, from, to: now, clock: moment, height: 120,
    marks: marksSince(from),
    spots: columns(points, step * 1000),
    text: (value) => text(count(value)),
  });
}

function classes(data, window) {
  const heads = [
    { key: 'name', name: 'Class', head: true },
    { key: 'objective', name: 'Objective', class: 'num' },
    { key: 'met', name: `Within, ${shown().name}`, class: 'num' },
    { key: 'late', name: `Late, ${shown().name}`, class: 'num' },
    { key: 'ever', name: 'Within, since start', class: 'num' },
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
  return section('By class of objective', { key: 'classes' }, table({ caption: 'Objectives by class', columns: heads, rows, more: 'classes', few: 3 }));
}

function workers() {
  const window = recentByWorker(300);
  const errors = latest().errors;
  const heads = [
    { key: 'name', name: 'Worker', head: true },
    { key: 'p50', name: 'p50', class: 'num' },
    { key: 'p95', name: 'p95', class: 'num' },
    { key: 'p99', name: 'p99', class: 'num' },
    { key: 'turns', name: 'Turns', class: 'num' },
    { key: 'off', name: 'Median error', class: 'num', title: 'Actual minus predicted time to first token, over the last 256' },
    { key: 'range', name: '80 % of errors within', class: 'num' },
    { key: 'late', name: 'Late turns', hidden: true },
  ];
  const rows = [...(window?.ttft ?? [])]
    .toSorted(([a], [b]) => a.localeCompare(b, 'en', { numeric: true }))
    .map(([name, buckets]) => {
      const [p50, p95, p99] = quantiles(buckets).map((value) => number(time(value)));
      const off = errors.get(name);
      return {
        key: name,
        cells: {
          name: workerName(name), p50, p95, p99,
          turns: number(count(total(buckets))),
          off: off ? signed(off['50']) : '–',
          range: off ? `${signed(off['10'])} to ${signed(off['90'])}` : '–',
          late: h('a', { href: lateTurns({ worker: name }), 'aria-label': `Late turns of ${name}` }, 'Late turns'),
        },
      };
    });
  if (rows.length === 0) return null;
  const note = window.seconds < 290 ? `The last ${span(window.seconds)}, as far as there are figures. Errors: actual minus predicted.` : 'The last five minutes. Errors: actual minus predicted.';
  return section('By worker', { key: 'workers', note }, table({ caption: 'Time to first token by worker', columns: heads, rows, more: 'ttft workers', few: 3 }));
}

function signed(ms) {
  if (ms === undefined) return '–';
  return `${ms > 0 ? '+' : ''}${text(time(ms)).replace('-', '−')}`;
}

function tail(data) {
  const takers = data.workers.filter(({ dialect }) => dialect !== 'none').length;
  const none = data.workers.length && takers === 0 ? ' No worker takes such hints, so nothing is evicted early.' : '';
  return section('Early eviction', { key: 'tail' },
    h('p', { class: 'prose' }, 'A worker whose cache is full drops the least recently used tokens. The router can hint at better ones: the ends of conversations that are unlikely to continue soon. A conversation that continues after all computes its end again. ',
      h('strong', {}, data.tail.why), none));
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
  const window = recent(shown().seconds);
  return [
    h('div', { key: 'top' }, top(data, window)),
    trend(data),
    causes(window),
    classes(data, window),
    workers(),
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
