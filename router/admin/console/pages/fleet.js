// The fleet: each worker, what is done with it, and how busy it is.

import { half, latest, recent } from '../history.js';
import { changed, Source } from '../live.js';
import { json } from '../api.js';
import { meter, spark } from '../chart.js';
import { count, plain, rate, share, text, time, tokens } from '../format.js';
import { chip, empty, figure, figures, from, number, section, table } from '../parts.js';
import { quantile } from '../metrics.js';
import { h } from '../view.js';
import { closeJoin, joinButton, joinDialog, joining } from './join.js';
import { closeWorker, openWorker, shown, workerDialog } from './worker.js';

const PAGE = 200;
const TRAIL = 150;
const WINDOW_S = 60;
const LEVELS = { ready: 'good', unwell: 'bad', not_ready: 'warn', cordoned: 'warn', draining: 'warn', drained: 'off', leaving: 'warn' };
const BREAKERS = { closed: 'quiet', half_open: 'warn', open: 'bad' };

const state = { offset: 0, filter: '', troubled: false, sort: null };
const trails = new Map();
let tell = () => {};

const workers = new Source(async () => {
  const list = await json(`/admin/v1/workers?limit=${PAGE}&offset=${state.offset}`);
  for (const worker of list.workers) remember(worker);
  return list;
});

function remember(worker) {
  const trail = trails.get(worker.name) ?? [];
  trail.push(worker.wait_ms);
  if (trail.length > TRAIL) trail.shift();
  trails.set(worker.name, trail);
}

function words(name) {
  return name.replaceAll('_', ' ');
}

function isTroubled(worker) {
  return worker.state !== 'ready' || worker.breaker !== 'closed';
}

function top(list) {
  const window = recent(WINDOW_S);
  const ready = list.workers.filter((worker) => worker.state === 'ready' && worker.breaker !== 'open').length;
  const all = list.workers.length;
  const inFlight = list.workers.reduce((sum, worker) => sum + worker.in_flight, 0);
  const busiest = Math.max(0, ...list.workers.map((worker) => worker.utilisation));
  const met = half(window?.turns, 'true');
  const turns = met + half(window?.turns, 'false');
  const prompt = half(window?.prompt, 'all');
  const p95 = quantile(window?.ttft, 0.95);
  const requests = [...(window?.requests ?? [])].reduce((sum, [, value]) => sum + value, 0);
  return figures(
    figure('Ready', [`${ready} of ${all}`, ''], { level: ready < all ? (ready === 0 ? 'bad' : 'warn') : '' }),
    figure('Requests', rate(window ? requests / window.seconds : undefined)),
    figure('In flight', count(inFlight), { note: waiting() }),
    figure('Busiest, ρ', share(all ? busiest : undefined)),
    figure('TTFT, p95', time(p95 === undefined ? undefined : p95 * 1000)),
    figure('Met objective', share(turns ? met / turns : undefined)),
    figure('Cached prompt', share(prompt ? half(window.prompt, cachedKind(window.prompt)) / prompt : undefined)),
  );
}

function waiting() {
  const held = latest()?.waiting;
  return held ? `${text(count(held))} more wait in the router` : undefined;
}

/** What workers report where they do, else what was predicted. */
function cachedKind(prompt) {
  return half(prompt, 'reported_cached') > 0 ? 'reported_cached' : 'predicted_cached';
}

const COLUMNS = [
  { key: 'name', name: 'Worker', head: true, sort: (w) => w.name },
  { key: 'state', name: 'State', sort: (w) => w.state },
  { key: 'load', name: 'Load ρ', class: 'num', sort: (w) => w.utilisation, title: 'Prefill work routed to the worker, as a share of its time' },
  { key: 'wait', name: 'Wait', class: 'num', sort: (w) => w.wait_ms, title: 'Predicted time before a request sent now would start its prefill' },
  { key: 'trail', name: 'Wait, 5 min', class: 'trail' },
  { key: 'flight', name: 'In flight', class: 'num', sort: (w) => w.in_flight },
  { key: 'alpha', name: 'α', class: 'num', sort: (w) => w.cost.alpha_ms_per_token, title: 'Milliseconds per uncached prompt token' },
  { key: 'xi', name: 'ξ', class: 'num', sort: (w) => w.xi_tokens, title: 'Uncached tokens that fit in the objective' },
  { key: 'cache', name: 'Cache', class: 'num', sort: (w) => w.held_tokens / Math.max(1, w.capacity_tokens), title: 'Tokens believed to be in it, of its capacity' },
  { key: 'hits', name: 'Hits', class: 'num', title: 'Cached share of prompt tokens in the last minute' },
  { key: 'breaker', name: 'Breaker', sort: (w) => w.breaker },
  { key: 'hints', name: 'Hints', title: 'How it is told things, and how many wait for it' },
  { key: 'manage', name: 'Manage', hidden: true },
];

function hits(worker) {
  const window = recent(WINDOW_S);
  const all = window?.prompt.get(`all ${worker.name}`);
  const cached = window?.prompt.get(`${cachedKind(window.prompt)} ${worker.name}`);
  return share(all > 0 && cached !== undefined ? cached / all : undefined);
}

function cells(worker) {
  const filled = worker.held_tokens / Math.max(1, worker.capacity_tokens);
  const trail = trails.get(worker.name) ?? [];
  return {
    name: h('span', { class: 'name', title: worker.url }, worker.name),
    state: chip(words(worker.state), LEVELS[worker.state] ?? 'warn'),
    load: [meter(worker.utilisation, { label: `load ${text(share(worker.utilisation))}`, warn: 0.7, bad: 0.9 }), number(share(worker.utilisation))],
    wait: number(time(worker.wait_ms)),
    trail: spark(trail, { label: `predicted wait over the last minutes, now ${text(time(worker.wait_ms))}`, top: 20 }),
    flight: number(count(worker.in_flight)),
    alpha: [number(plain(worker.cost.alpha_ms_per_token)), alphaNote(worker)],
    xi: number(tokens(worker.xi_tokens)),
    cache: [meter(filled, { label: `cache ${text(share(filled))} full`, warn: 2, bad: 2 }), number(tokens(worker.held_tokens))],
    hits: number(hits(worker)),
    breaker: chip(words(worker.breaker), BREAKERS[worker.breaker] ?? 'warn'),
    hints: worker.hears_hints || worker.dialect !== 'none'
      ? h('span', {}, worker.dialect, worker.hints_waiting ? h('span', { class: 'note' }, `${worker.hints_waiting} waiting`) : null)
      : h('span', { class: 'note' }, 'none'),
    manage: h('button', { type: 'button', 'aria-label': `Manage ${worker.name}`, onclick: () => openWorker(worker.name) }, 'Manage'),
  };
}

function alphaNote(worker) {
  if (worker.alpha_set) return h('span', { class: 'note' }, 'set');
  return worker.calibrated ? h('span', { class: 'note', title: 'Measured with gpu-bench, and learned on from there' }, 'measured') : null;
}

function ordered(list) {
  const wanted = state.filter.trim().toLowerCase();
  const kept = list.filter((worker) => (!wanted || worker.name.toLowerCase().includes(wanted)) && (!state.troubled || isTroubled(worker)));
  const by = state.sort && COLUMNS.find((column) => column.key === state.sort.by)?.sort;
  if (!by) return kept;
  const sign = state.sort.down ? -1 : 1;
  return kept.toSorted((a, b) => {
    const [one, other] = [by(a), by(b)];
    return sign * (typeof one === 'string' ? one.localeCompare(other, 'en', { numeric: true }) : one - other);
  });
}

function sortBy(key) {
  const same = state.sort?.by === key;
  state.sort = same && !state.sort.down ? null : { by: key, down: !same };
  changed();
}

function tools(list) {
  const troubled = list.workers.filter(isTroubled).length;
  return h(
    'div',
    { class: 'tools' },
    h('input', { type: 'search', 'aria-label': 'Find a worker by name', placeholder: 'Find a worker', value: state.filter, oninput: (event) => { state.filter = event.target.value; changed(); } }),
    h('label', { class: 'check' }, h('input', { type: 'checkbox', checked: state.troubled, onchange: (event) => { state.troubled = event.target.checked; changed(); } }), `In trouble (${troubled})`),
    joinButton(),
    pager(list),
  );
}

function pager(list) {
  if (list.total <= PAGE) return null;
  const go = (offset) => () => {
    state.offset = offset;
    workers.refresh();
  };
  const last = Math.min(list.total, state.offset + list.workers.length);
  return h(
    'span',
    { class: 'pager' },
    h('button', { type: 'button', disabled: state.offset === 0, onclick: go(Math.max(0, state.offset - PAGE)) }, 'Previous'),
    ` ${state.offset + 1} to ${last} of ${list.total} `,
    h('button', { type: 'button', disabled: last >= list.total, onclick: go(state.offset + PAGE) }, 'Next'),
  );
}

function draw(list) {
  if (list.total === 0) {
    return [
      empty('No workers yet', 'Add one here until the router ends, or for good: a [[workers]] section of the configuration, or --worker http://HOST:PORT.', joinButton()),
      joining.open ? joinDialog(() => workers.refresh(), tell) : null,
    ];
  }
  const rows = ordered(list.workers).map((worker) => ({ key: worker.name, class: isTroubled(worker) ? 'troubled' : '', cells: cells(worker) }));
  const open = shown.name && list.workers.find((worker) => worker.name === shown.name);
  return [
    h('div', { key: 'top' }, top(list)),
    section('Workers', { key: 'workers', tools: tools(list) },
      rows.length
        ? h('div', { class: 'wide-table' }, table({ caption: 'Workers: state, load, cost, cache, breaker and hints', columns: COLUMNS, rows, sort: state.sort, onsort: sortBy }))
        : empty('No worker matches', state.troubled ? 'None of these is in trouble.' : 'No name contains this.')),
    open ? workerDialog(open, () => workers.refresh(), tell) : null,
    joining.open ? joinDialog(() => workers.refresh(), tell) : null,
  ];
}

export const fleet = {
  path: 'fleet',
  title: 'Fleet',
  sources: () => [workers],
  enter(_, say) {
    tell = say;
  },
  leave() {
    closeWorker();
    closeJoin();
  },
  view: () => from(workers, 'the workers', draw),
};
