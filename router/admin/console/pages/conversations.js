// Where prefixes live: the hottest of the index, and the conversations of the last decisions, by what each worker held when they
// were made.

import { json } from '../api.js';
import { meter } from '../chart.js';
import { count, span, text, tokens } from '../format.js';
import { changed, Source } from '../live.js';
import { empty, figure, figures, from, number, section, table } from '../parts.js';
import { h } from '../view.js';

/** A page of decisions is the most that is asked for at once; so many pages when the page is opened. */
const PAGE = 200;
const PAGES = 5;
const KEPT = 2000;
const SHOWN = 50;

const known = new Map();
const seen = new Set();
const state = { worker: '', all: false };

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

const hottest = new Source(async () => {
  const of = async (order, limit) => (await json(`/admin/v1/index?order=${order}&limit=${limit}`)).prefixes;
  return [...await of('shared', 5), ...await of('newest', 5)];
}, { every: 4000 });

const PREFIXES = [
  { key: 'name', name: 'Prefix', head: true, title: 'The hash that names it; text is not kept' },
  { key: 'size', name: 'Tokens', class: 'num', title: 'Of its longest copy' },
  { key: 'forks', name: 'Goes on in', class: 'num', title: 'Ways in which known prompts go on from it' },
  { key: 'holders', name: 'Workers', class: 'num', title: 'That hold any of its last part' },
  { key: 'copies', name: 'Longest copies on' },
];

/** The beginnings that most prompts share, then the conversations that were used last: as the index has them. */
function hot(prefixes) {
  const told = ({ worker, tokens: held }) => `${worker} (${held === null ? '?' : text(tokens(held))})`;
  const rows = prefixes.map(({ prefix, forks, holders, copies }) => ({
    key: `${forks > 1 ? 'shared' : 'own'} ${prefix}`,
    cells: {
      name: h('code', {}, prefix),
      size: copies[0]?.tokens === undefined || copies[0].tokens === null ? h('span', { class: 'note' }, 'not known') : number(tokens(copies[0].tokens)),
      forks: forks > 1 ? number(count(forks)) : h('span', { class: 'note' }, 'itself'),
      holders: number(count(holders)),
      copies: copies.slice(0, 2).map(told).join(', '),
    },
  }));
  return section('Hottest prefixes', { key: 'hottest', note: 'Of the index: the beginnings that most prompts share, then the conversations that were used last.' },
    rows.length ? table({ caption: 'Prefixes of the index, the hottest first', columns: PREFIXES, rows }) : empty('The index is empty', 'It fills with the first answers.'));
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
    figure('Their tokens', tokens(held)),
    figure('Longest', tokens(Math.max(0, ...all.map(({ size }) => size)))),
    figure('Held elsewhere as well', tokens(twice)),
    figure('Moved', count(moved), { note: `${all.length ? Math.round((moved / all.length) * 100) : 0} % of them` }),
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
    { key: 'tokens', name: 'Their tokens', class: 'num' },
    { key: 'copies', name: 'Older copies', class: 'num', title: 'Of conversations that live elsewhere by now' },
  ];
  const rows = [...workers]
    .toSorted(([a], [b]) => a.localeCompare(b, 'en', { numeric: true }))
    .map(([name, own]) => ({
      key: name,
      cells: {
        name,
        conversations: number(count(own.conversations)),
        tokens: [meter(own.tokens / most, { label: `${text(tokens(own.tokens))}, the fullest has ${text(tokens(most))}`, warn: 2, bad: 2 }), number(tokens(own.tokens))],
        copies: number(tokens(own.copies)),
      },
    }));
  return section('By worker', { key: 'workers' }, table({ caption: 'Conversations by the worker they live on', columns, rows }));
}

const COLUMNS = [
  { key: 'name', name: 'Conversation', head: true, title: 'Its name, hashed' },
  { key: 'size', name: 'Tokens', class: 'num' },
  { key: 'home', name: 'Lives on' },
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
  const tools = h('label', { class: 'pick' }, 'Lives on',
    h('select', { value: state.worker, onchange: choose }, h('option', { value: '' }, 'any worker'), workers.map((name) => h('option', { value: name, key: name }, name))));
  const rows = wanted.slice(0, state.all ? wanted.length : SHOWN).map(row);
  return [
    h('div', { key: 'top' }, top(all)),
    byWorker(all),
    h('div', { key: 'hot' }, from(hottest, 'the index', hot)),
    section('The largest', { key: 'largest', note: 'By what each worker held at the conversation’s last turn.', tools },
      rows.length ? table({ caption: 'Conversations, the largest first', columns: COLUMNS, rows }) : empty('None lives there', 'Choose another worker.'),
      wanted.length > rows.length
        ? h('p', { class: 'more', key: 'more' }, h('button', { type: 'button', onclick: () => { state.all = true; changed(); } }, `All ${wanted.length}`))
        : null),
  ];
}

export const conversations = {
  path: 'conversations',
  title: 'Conversations',
  sources: () => [recent, hottest],
  view: () => from(recent, 'conversations', draw),
};
