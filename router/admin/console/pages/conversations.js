// The hottest prefixes of the index, and the conversations of recent decisions by the worker that answered their last turn.

import { json } from '../api.js';
import { meter } from '../chart.js';
import { count, share, span, text, tokens } from '../format.js';
import { changed, Source } from '../live.js';
import { empty, figure, figures, from, number, section, table } from '../parts.js';
import { h } from '../view.js';

/** A page of decisions is the most that is asked for at once; so many pages when the page is opened. */
const PAGE = 200;
const PAGES = 5;
const KEPT = 2000;

const known = new Map();
const seen = new Set();
const state = { worker: '' };

function learn(decision) {
  const key = decision.conversation;
  const attempt = `${decision.decision} ${decision.worker}`;
  if (!key || seen.has(attempt)) return;
  seen.add(attempt);
  const before = known.get(key) ?? { turns: 0, workers: new Set(), last: null };
  before.turns += 1;
  before.workers.add(decision.worker);
  if (!before.last || decision.arrived_unix_ms >= before.last.arrived_unix_ms) before.last = decision;
  known.set(key, before);
}

function forgetOldest() {
  if (known.size <= KEPT) return;
  const oldest = [...known].toSorted(([, a], [, b]) => a.last.arrived_unix_ms - b.last.arrived_unix_ms);
  for (const [key] of oldest.slice(0, known.size - KEPT)) known.delete(key);
  if (seen.size > 20 * KEPT) seen.clear();
}

const recent = new Source(async () => {
  let before = '';
  // At first some of what was; then what is new.
  for (let page = 0; page < (recent.data ? 1 : PAGES); page += 1) {
    const { decisions, next } = await json(`/admin/v1/decisions?limit=${PAGE}${before}`);
    decisions.forEach(learn);
    if (next === null || next === undefined) break;
    before = `&before=${next}`;
  }
  forgetOldest();
  return known;
}, { every: 4000 });

const fleet = new Source('/admin/v1/workers?limit=200', { every: 10_000 });

const hottest = new Source(async () => {
  const of = async (order, limit) => (await json(`/admin/v1/index?order=${order}&limit=${limit}`)).prefixes;
  return [...await of('shared', 5), ...await of('newest', 5)];
}, { every: 4000 });

const PREFIXES = [
  { key: 'name', name: 'Prefix', head: true, title: 'Its hash; the router keeps no text' },
  { key: 'size', name: 'Tokens', class: 'num', title: 'Of its longest copy' },
  { key: 'forks', name: 'Continuations', class: 'num', title: 'Different continuations in known prompts' },
  { key: 'holders', name: 'Workers', class: 'num', title: 'Workers that hold some of its last part' },
  { key: 'copies', name: 'Longest copies on', class: 'whole' },
];

/** The beginnings that most prompts share, then the conversations that were used last: as the index has them. */
function hot(prefixes) {
  const told = ({ worker, tokens: held }) => `${worker} (${held === null ? '?' : text(tokens(held))})`;
  const rows = prefixes.map(({ prefix, forks, holders, copies }) => ({
    key: `${forks > 1 ? 'shared' : 'own'} ${prefix}`,
    cells: {
      name: h('code', {}, prefix),
      size: copies[0]?.tokens === undefined || copies[0].tokens === null ? h('span', { class: 'note' }, 'not known') : number(tokens(copies[0].tokens)),
      forks: number(count(Math.max(1, forks))),
      holders: number(count(holders)),
      copies: copies.slice(0, 2).map(told).join(', '),
    },
  }));
  return section('Hottest prefixes', { key: 'hottest', note: 'The beginnings that most prompts share, then the conversations that were used last.' },
    rows.length ? table({ caption: 'Prefixes of the index, the hottest first', columns: PREFIXES, rows, more: 'prefixes', few: 4 }) : empty('The index is empty', 'It fills with the first responses.'));
}

/** What is where after the conversation's last turn: all of it where that was answered, and older copies elsewhere. */
function place([key, { turns, workers, last }]) {
  const size = (last.outcome?.prompt_tokens ?? last.prompt_tokens) + (last.outcome?.completion_tokens ?? 0);
  const copies = last.terms
    .filter(({ worker, cached_tokens: cached }) => worker !== last.worker && cached > 0)
    .map(({ worker, cached_tokens: cached }) => ({ worker, cached }))
    .toSorted((a, b) => b.cached - a.cached);
  return { key, size, turns, moved: workers.size - 1, home: last.worker, copies, last };
}

function top(all) {
  const held = all.reduce((sum, { size }) => sum + size, 0);
  const twice = all.reduce((sum, { copies }) => sum + copies.reduce((sum, { cached }) => sum + cached, 0), 0);
  const moved = all.filter(({ moved }) => moved > 0).length;
  return figures(
    figure('Conversations', count(all.length), { note: 'of the last decisions' }),
    figure('Sum of lengths', tokens(held), { note: 'not what is cached' }),
    figure('Longest', tokens(Math.max(0, ...all.map(({ size }) => size)))),
    figure('Older copies', tokens(twice), { note: 'on other workers' }),
    figure('Moved', count(moved), { note: `${all.length ? Math.round((moved / all.length) * 100) : 0} % changed workers` }),
  );
}

function byWorker(all) {
  const workers = new Map();
  for (const { home, size, copies } of all) {
    const own = workers.get(home) ?? { conversations: 0, tokens: 0, copies: 0 };
    own.conversations += 1;
    own.tokens += size;
    workers.set(home, own);
    for (const { worker, cached } of copies) {
      const other = workers.get(worker) ?? { conversations: 0, tokens: 0, copies: 0 };
      other.copies += cached;
      workers.set(worker, other);
    }
  }
  const most = Math.max(1, ...[...workers.values()].map(({ tokens }) => tokens));
  const columns = [
    { key: 'name', name: 'Worker', head: true },
    { key: 'conversations', name: 'Conversations', class: 'num' },
    { key: 'tokens', name: 'Sum of lengths', class: 'num' },
    { key: 'cache', name: 'In its cache', class: 'num' },
    { key: 'copies', name: 'Older copies', class: 'num', title: 'Of conversations whose last turn was elsewhere' },
  ];
  const rows = [...workers]
    .toSorted(([a], [b]) => a.localeCompare(b, 'en', { numeric: true }))
    .map(([name, own]) => ({
      key: name,
      cells: {
        name,
        conversations: number(count(own.conversations)),
        tokens: [meter(own.tokens / most, { label: `${text(tokens(own.tokens))}, the fullest has ${text(tokens(most))}`, warn: 2, bad: 2 }), number(tokens(own.tokens))],
        cache: cached(fleet.data?.workers.find((worker) => worker.name === name)),
        copies: number(tokens(own.copies)),
      },
    }));
  return section('By worker', { key: 'workers', note: 'The sum of lengths counts conversations in full, also the parts that the worker has evicted since.' },
    table({ caption: 'Conversations by the worker of their last turn', columns, rows, more: 'conversation workers', few: 4 }));
}

/** Tokens in a worker's cache, of its capacity. */
function cached(worker) {
  if (!worker) return '–';
  const filled = worker.held_tokens / Math.max(1, worker.capacity_tokens);
  return [meter(filled, { label: `${text(share(filled))} full`, warn: 2, bad: 2 }), number(tokens(worker.held_tokens)), ' of ', number(tokens(worker.capacity_tokens))];
}

const COLUMNS = [
  { key: 'name', name: 'Conversation', head: true, title: 'Hash of its name' },
  { key: 'size', name: 'Tokens', class: 'num' },
  { key: 'home', name: 'Worker' },
  { key: 'copies', name: 'Older copies on' },
  { key: 'turns', name: 'Turns seen', class: 'num' },
  { key: 'ago', name: 'Last turn', class: 'num' },
  { key: 'why', name: 'Last decision', hidden: true },
];

function row({ key, size, home, copies, turns, last }) {
  const some = copies.slice(0, 2).map(({ worker, cached }) => `${worker} (${text(count(cached))})`).join(', ');
  return {
    key,
    cells: {
      name: h('code', {}, key),
      size: number(tokens(size)),
      home,
      copies: some ? `${some}${copies.length > 2 ? ` and ${copies.length - 2} more` : ''}` : h('span', { class: 'note' }, 'none'),
      turns: number(count(turns)),
      ago: `${span((Date.now() - last.arrived_unix_ms) / 1000)} ago`,
      why: h('a', { href: `#/decisions?request=${encodeURIComponent(last.request)}`, 'aria-label': `Last decision about ${key}` }, 'Decision'),
    },
  };
}

function draw() {
  if (known.size === 0) return empty('No conversation has been seen yet', 'Send a chat completion through the data port. Conversations are known by X-Session-ID, or by their prompts.');
  const all = [...known].map(place);
  const workers = [...new Set(all.map(({ home }) => home))].toSorted((a, b) => a.localeCompare(b, 'en', { numeric: true }));
  const wanted = all.filter(({ home }) => !state.worker || home === state.worker).toSorted((a, b) => b.size - a.size);
  const choose = (event) => {
    state.worker = event.target.value;
    changed();
  };
  const tools = h('label', { class: 'pick' }, 'Worker',
    h('select', { value: state.worker, onchange: choose }, h('option', { value: '' }, 'any worker'), workers.map((name) => h('option', { value: name, key: name }, name))));
  const rows = wanted.map(row);
  return [
    h('div', { key: 'top' }, top(all)),
    byWorker(all),
    h('div', { key: 'hot' }, from(hottest, 'the index', hot)),
    section('The largest', { key: 'largest', note: 'As of each conversation’s last turn.', tools },
      rows.length ? table({ caption: 'Conversations, the largest first', columns: COLUMNS, rows, more: 'conversations' }) : empty('No conversation there', 'Choose another worker.')),
  ];
}

export const conversations = {
  path: 'conversations',
  title: 'Conversations',
  sources: () => [recent, hottest, fleet],
  view: () => from(recent, 'conversations', draw),
};
