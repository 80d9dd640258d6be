// The fleet: each worker, what is done with it, and how busy it is.

import { changed as history, half, latest, recent, recentByWorker, waits } from '../history.js';
import { changed, Source } from '../live.js';
import { json } from '../api.js';
import { meter, spark } from '../chart.js';
import { count, moment, plain, rate, share, text, time, tokens } from '../format.js';
import { lateTurns, limitOf, slo } from '../objective.js';
import { chip, empty, figure, figures, from, number, section, table, workerName } from '../parts.js';
import { quantile } from '../metrics.js';
import { h } from '../view.js';
import { trend } from './trend.js';
import { closeJoin, joinButton, joinDialog, joining } from './join.js';
import { closeWorker, openWorker, shown, slowness, workerDialog } from './worker.js';

const PAGE = 200;
const TRAIL_MS = 15 * 60_000;
const WINDOW_S = 60;
/** Meters are short: the table has many columns. */
const METER = 40;
const LEVELS = { ready: 'good', starting: 'warn', asleep: 'off', unwell: 'bad', not_ready: 'warn', cordoned: 'warn', draining: 'warn', drained: 'off', leaving: 'warn' };
const BREAKERS = { half_open: 'warn', open: 'bad' };

const state = { offset: 0, filter: '', troubled: false, sort: null };
const trails = new Map();
let tell = () => {};

const workers = new Source(async () => {
  const list = await json(`/admin/v1/workers?limit=${PAGE}&offset=${state.offset}`);
  for (const worker of list.workers) remember(worker);
  return list;
});

function remember(worker) {
  const now = Date.now();
  const trail = trails.get(worker.name) ?? [];
  trail.push([now, worker.wait_ms]);
  while (trail[0][0] < now - TRAIL_MS) trail.shift();
  trails.set(worker.name, trail);
}

/** Predicted waits of the last quarter of an hour: as the router has kept them, then as this page has seen them. */
function trail(name) {
  const own = trails.get(name) ?? [];
  const first = own[0]?.[0] ?? Infinity;
  return [...waits(name, Date.now() - TRAIL_MS).filter(([at]) => at < first), ...own];
}

function words(name) {
  return name.replaceAll('_', ' ');
}

function isTroubled(worker) {
  return worker.state !== 'ready' || worker.breaker !== 'closed' || Boolean(worker.slow) || isOver(worker);
}

/** Whether the predicted wait alone exceeds the objective. */
function isOver(worker) {
  return worker.wait_ms > (limitOf(slo.data) ?? Infinity);
}

function top(list) {
  const window = recent(WINDOW_S);
  const ready = list.workers.filter((worker) => worker.state === 'ready' && worker.breaker !== 'open').length;
  const all = list.workers.length;
  const inFlight = list.workers.reduce((sum, worker) => sum + worker.in_flight, 0);
  const busiest = Math.max(0, ...list.workers.map((worker) => worker.utilisation));
  const longest = Math.max(0, ...list.workers.map((worker) => worker.wait_ms));
  const met = half(window?.turns, 'true');
  const late = half(window?.turns, 'false');
  const turns = met + late;
  const promised = slo.data?.objective.share;
  const limit = limitOf(slo.data);
  const prompt = window?.prompt.get('all');
  const p95 = quantile(window?.ttft, 0.95);
  const requests = [...(window?.requests ?? [])].reduce((sum, [, value]) => sum + value, 0);
  return figures(
    figure('Ready', [`${ready} of ${all}`, ''], { level: ready < all ? (ready === 0 ? 'bad' : 'warn') : '' }),
    figure('Requests', rate(window ? requests / window.seconds : undefined)),
    figure('In flight', count(inFlight), { note: waiting() }),
    figure('Longest wait', time(all ? longest : undefined), { level: longest > limit ? 'bad' : '', note: `prefill work up to ${text(share(busiest))}` }),
    figure('TTFT, p95', time(p95 === undefined ? undefined : p95 * 1000), { level: p95 * 1000 > limit ? 'bad' : '', note: limit ? `objective ${text(time(limit))}` : undefined }),
    figure('Within objective', share(turns ? met / turns : undefined), {
      level: isMissed() ? 'bad' : '',
      note: turns ? h('a', { href: lateTurns({ from: window.from }) }, `${text(count(late))} of ${text(count(turns))} late`) : promised && `for ${text(share(promised))} of turns`,
    }),
    figure('Cached prompt', share(prompt ? window.prompt.get(cachedKind(window.prompt, '')) / prompt : undefined)),
  );
}

/** Whether fewer turns of the last minute met the objective than have to. */
function isMissed() {
  const window = recent(WINDOW_S);
  const [met, late] = [half(window?.turns, 'true'), half(window?.turns, 'false')];
  return met + late > 0 && slo.data !== null && met / (met + late) < slo.data.objective.share;
}

function waiting() {
  const held = latest()?.waiting;
  return held ? `${text(count(held))} wait in the router` : undefined;
}

/** Cached tokens as workers report them, else as predicted. */
function cachedKind(prompt, of) {
  return prompt.get(`reported_cached${of}`) > 0 ? `reported_cached${of}` : `predicted_cached${of}`;
}

const COLUMNS = [
  { key: 'name', name: 'Worker', head: true, sort: (w) => w.name },
  { key: 'state', name: 'State', sort: (w) => w.state },
  { key: 'load', name: 'Prefill work', term: 'ρ', class: 'num', sort: (w) => w.utilisation, title: 'Share of the time that the worker computes prompts; the decoding of answers is not in it' },
  { key: 'turns', name: 'Turns', class: 'num', sort: (w) => turnsPerS(w) ?? -1, title: 'Turns sent to it per second, in the last minute' },
  { key: 'failures', name: 'Failures', class: 'num', sort: (w) => failuresOf(w) ?? -1, title: 'Attempts that failed by its fault in the last minute: lost connections, timeouts, 5xx, broken answers' },
  { key: 'p95', name: 'TTFT, p95', class: 'num', sort: (w) => p95Of(w) ?? -1, title: 'In the last minute' },
  { key: 'wait', name: 'Wait', class: 'num', sort: (w) => w.wait_ms, title: 'Predicted time before a request sent now would start its prefill' },
  { key: 'trail', name: 'Wait, 15 min', class: 'trail' },
  { key: 'flight', name: 'In flight', class: 'num', sort: (w) => w.in_flight },
  { key: 'alpha', name: 'Cost', term: 'α', class: 'num', sort: (w) => w.cost.alpha_ms_per_token },
  { key: 'xi', name: 'Headroom', term: 'ξ', class: 'num', sort: (w) => w.xi_tokens },
  { key: 'cache', name: 'Cache', class: 'num', sort: (w) => w.held_tokens / Math.max(1, w.capacity_tokens), title: 'Tokens believed to be in it, of its capacity' },
  { key: 'hits', name: 'Hits', class: 'num', title: 'Cached share of prompt tokens in the last minute' },
  { key: 'hints', name: 'Hints', title: 'How the worker takes hints, and how many wait to be sent' },
  { key: 'manage', name: 'Manage', hidden: true },
];

/** Turns sent to a worker per second, in the last minute. */
function turnsPerS({ name }) {
  const window = recentByWorker(WINDOW_S);
  return window ? (window.turns.get(name) ?? 0) / window.seconds : undefined;
}

/** Attempts that failed by a worker's fault in the last minute. */
function failuresOf({ name }) {
  const window = recentByWorker(WINDOW_S);
  return window ? (window.failures.get(name) ?? 0) : undefined;
}

/** The 95th percentile of its time to first token in milliseconds, in the last minute. */
function p95Of({ name }) {
  const value = quantile(recentByWorker(WINDOW_S)?.ttft.get(name), 0.95);
  return value === undefined ? undefined : value * 1000;
}

function hits(worker) {
  const prompt = recentByWorker(WINDOW_S)?.prompt;
  const all = prompt?.get(`all ${worker.name}`);
  const cached = prompt?.get(cachedKind(prompt, ` ${worker.name}`));
  return share(all > 0 && cached !== undefined ? cached / all : undefined);
}

/** The state, and since when and why a worker is unwell. The cause of an error comes last in it. */
function standing(worker) {
  const error = worker.last_error?.split(': ').at(-1);
  const since = worker.since_unix_ms ? `since ${moment(worker.since_unix_ms)}` : '';
  const why = [since, error].filter(Boolean).join(': ');
  return [
    chip(words(worker.state), LEVELS[worker.state] ?? 'warn'),
    worker.breaker === 'closed' ? null : [' ', chip(`breaker ${words(worker.breaker)}`, BREAKERS[worker.breaker] ?? 'warn')],
    why ? h('span', { class: 'why', title: worker.last_error }, why) : null,
  ];
}

function cells(worker, { most, missed }) {
  const filled = worker.held_tokens / Math.max(1, worker.capacity_tokens);
  const now = Date.now();
  // A busy worker is no trouble while turns are within objective.
  const [warn, bad] = missed ? [0.7, 0.9] : [2, 2];
  return {
    name: workerName(worker.name),
    state: [standing(worker), worker.slow ? h('span', { class: 'note' }, slowness(worker)) : null],
    load: [meter(worker.utilisation, { label: `prefill work ${text(share(worker.utilisation))}`, warn, bad, width: METER }), number(share(worker.utilisation))],
    turns: number(rate(turnsPerS(worker))),
    failures: number(count(failuresOf(worker)), failuresOf(worker) > 0 ? { class: 'bad' } : {}),
    p95: number(time(p95Of(worker)), p95Of(worker) > limitOf(slo.data) ? { class: 'bad' } : {}),
    wait: number(time(worker.wait_ms), isOver(worker) ? { class: 'bad', title: `beyond the objective of ${text(time(limitOf(slo.data)))}` } : {}),
    trail: spark(trail(worker.name), { label: `predicted wait over the last 15 minutes, now ${text(time(worker.wait_ms))}, at most ${text(time(most))} on any worker`, from: now - TRAIL_MS, to: now, most }),
    flight: number(count(worker.in_flight)),
    alpha: [number([plain(worker.cost.alpha_ms_per_token)[0], 'ms/tok']), alphaNote(worker)],
    xi: number(tokens(worker.xi_tokens)),
    cache: [meter(filled, { label: `cache ${text(share(filled))} full`, warn: 2, bad: 2, width: METER }), number(tokens(worker.held_tokens))],
    hits: number(hits(worker)),
    hints: worker.hears_hints || worker.dialect !== 'none'
      ? h('span', {}, worker.dialect, worker.hints_waiting ? h('span', { class: 'note' }, `${worker.hints_waiting} waiting`) : null)
      : h('span', { class: 'note' }, 'none'),
    manage: h('button', { type: 'button', 'aria-label': `Manage ${worker.name}`, onclick: () => openWorker(worker.name) }, 'Manage'),
  };
}

function alphaNote(worker) {
  if (worker.alpha_set) return h('span', { class: 'note' }, 'set');
  return worker.calibrated ? h('span', { class: 'note', title: 'Measured with gpu-bench; learning starts from it' }, 'measured') : null;
}

function ordered(list) {
  const wanted = state.filter.trim().toLowerCase();
  const kept = list.filter((worker) => (!wanted || worker.name.toLowerCase().includes(wanted)) && (!state.troubled || isTroubled(worker)));
  const by = state.sort && COLUMNS.find((column) => column.key === state.sort.by)?.sort;
  if (!by) return kept.toSorted((a, b) => isTroubled(b) - isTroubled(a));
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
      empty('No workers yet', 'Add one here, which lasts until the router ends, or in the configuration ([[workers]] or --worker http://HOST:PORT).', joinButton()),
      joining.open ? joinDialog(() => workers.refresh(), tell) : null,
    ];
  }
  const sight = { most: Math.max(20, ...list.workers.flatMap(({ name }) => trail(name).map(([, wait]) => wait))), missed: isMissed() };
  const rows = ordered(list.workers).map((worker) => ({ key: worker.name, class: isTroubled(worker) ? 'troubled' : '', cells: cells(worker, sight), onclick: () => openWorker(worker.name) }));
  const open = shown.name && list.workers.find((worker) => worker.name === shown.name);
  return [
    h('div', { key: 'top' }, top(list)),
    slo.data?.hits ? h('p', { class: 'note hits', key: 'hits' }, slo.data.hits.verdict) : null,
    section('Workers', { key: 'workers', tools: tools(list) },
      rows.length
        ? h('div', { class: 'wide-table' }, table({ caption: 'Workers: state, prefill work, wait, cost, cache, breaker and hints', columns: COLUMNS, rows, sort: state.sort, onsort: sortBy, more: 'workers' }))
        : empty('No worker matches', state.troubled ? 'None of these is in trouble.' : 'No name contains this.')),
    slo.data && latest() ? trend(slo.data) : null,
    open ? workerDialog(open, () => workers.refresh(), tell) : null,
    joining.open ? joinDialog(() => workers.refresh(), tell) : null,
  ];
}

export const fleet = {
  path: 'fleet',
  title: 'Fleet',
  sources: () => [workers, slo, history],
  enter(_, say) {
    tell = say;
  },
  leave() {
    closeWorker();
    closeJoin();
  },
  view: () => from(workers, 'the workers', draw),
};
