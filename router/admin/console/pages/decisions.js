// Why turns went where they went: searched, and one taken apart.

import { json } from '../api.js';
import { split } from '../chart.js';
import { count, moment, plain, text, time, tokens } from '../format.js';
import { changed, Source } from '../live.js';
import { chip, dialog, empty, failed, from, number, section, table } from '../parts.js';
import { h } from '../view.js';

const CAUSES = ['queue', 'miss', 'engine', 'network', 'prompt', 'whole'];
const PART_NAMES = { queue: 'queue', miss: 'miss', prompt: 'prompt', engine: 'engine', network: 'network', whole: 'rest of the answer' };
const FRESH = { worker: '', late: '', cause: '', class: '', request: '' };
const state = { asked: { ...FRESH }, older: [], next: null, more: false, failure: null, open: null, held: false };

function query() {
  const parameters = new URLSearchParams({ limit: '25' });
  for (const key of ['worker', 'late', 'cause', 'class']) {
    const value = state.asked[key].trim();
    if (value) parameters.set(key, value);
  }
  return parameters;
}

function path(before) {
  const request = state.asked.request.trim();
  if (request) return `/admin/v1/decisions/${encodeURIComponent(request)}`;
  const parameters = query();
  if (before !== undefined) parameters.set('before', before);
  return `/admin/v1/decisions?${parameters}`;
}

const recent = new Source(async () => {
  // Somebody reads: what they read stays where it is.
  if (state.held && recent.data) return recent.data;
  const page = await json(path());
  if (state.older.length === 0) state.next = page.next;
  return page;
}, { every: 3000 });
const workers = new Source('/admin/v1/workers?limit=200', { every: 30_000 });

function search() {
  Object.assign(state, { older: [], next: null, failure: null, held: false });
  recent.reset();
}

function set(key, value) {
  state.asked[key] = value;
  if (key === 'cause' && value) state.asked.late = 'true';
  search();
}

async function more() {
  Object.assign(state, { more: true, failure: null, held: true });
  changed();
  try {
    const page = await json(path(state.next));
    state.older.push(...page.decisions);
    state.next = page.next;
  } catch (failure) {
    state.failure = failure;
  }
  state.more = false;
  changed();
}

function select(key, label, options) {
  return h('label', { class: 'pick', key }, label,
    h('select', { value: state.asked[key], onchange: (event) => set(key, event.target.value) }, options.map(([value, name]) => h('option', { value, key: value }, name))));
}

function tools() {
  const known = workers.data?.workers.map(({ name }) => name) ?? [];
  const submit = (event) => {
    event.preventDefault();
    search();
  };
  const any = Object.values(state.asked).some((value) => value !== '');
  return h('form', { class: 'tools', role: 'search', onsubmit: submit },
    h('label', { class: 'pick', key: 'request' }, 'Request', h('input', { type: 'search', class: 'request', placeholder: 'x-request-id', spellcheck: 'false', value: state.asked.request, oninput: (event) => { state.asked.request = event.target.value; changed(); }, onchange: search })),
    select('worker', 'Worker', [['', 'any'], ...known.map((name) => [name, name])]),
    select('late', 'Objective', [['', 'any'], ['true', 'late'], ['false', 'met, or not known yet']]),
    select('cause', 'Cause', [['', 'any'], ...CAUSES.map((cause) => [cause, PART_NAMES[cause]])]),
    h('button', { type: 'button', key: 'hold', 'aria-pressed': String(state.held), onclick: () => { state.held = !state.held; if (!state.held) search(); changed(); } }, state.held ? 'Go on' : 'Hold'),
    any ? h('button', { type: 'button', class: 'quiet', key: 'all', onclick: () => { Object.assign(state.asked, FRESH); search(); } }, 'All') : null);
}

function standing(decision) {
  const { outcome } = decision;
  if (!outcome) return chip('under way', 'off');
  if (outcome.met === false) return chip(outcome.cause ? `late: ${PART_NAMES[outcome.cause] ?? outcome.cause}` : 'late', 'bad');
  if (outcome.met) return chip('met', 'good');
  return chip(outcome.state, outcome.state === 'ok' ? 'quiet' : 'warn');
}

const COLUMNS = [
  { key: 'when', name: 'When' },
  { key: 'request', name: 'Request', head: true },
  { key: 'worker', name: 'Worker' },
  { key: 'standing', name: 'Objective' },
  { key: 'ttft', name: 'TTFT', class: 'num' },
  { key: 'predicted', name: 'Predicted', class: 'num' },
  { key: 'cached', name: 'Cached', class: 'num', title: 'Tokens of the prompt found in the cache, of all' },
  { key: 'saved', name: 'Ahead by', class: 'num', title: 'How much dearer the second best would have been, by the policy’s own measure' },
  { key: 'more', name: 'Explain', hidden: true },
];

function row(decision) {
  const [chosen] = decision.terms;
  const { outcome, runner_up: second } = decision;
  const cached = outcome?.cached_tokens ?? chosen?.cached_tokens;
  return {
    key: `${decision.decision} ${decision.request} ${decision.worker}`,
    class: outcome?.met === false ? 'troubled' : '',
    cells: {
      when: h('time', {}, moment(decision.arrived_unix_ms)),
      request: h('code', { class: 'name', title: decision.request }, decision.request),
      worker: decision.worker,
      standing: standing(decision),
      ttft: number(time(outcome?.ttft_ms ?? undefined)),
      predicted: number(time(chosen?.predicted_ttft_ms)),
      cached: [number(count(cached)), ' of ', number(count(outcome?.prompt_tokens ?? decision.prompt_tokens))],
      saved: second ? number(time(second.score_more)) : '–',
      more: h('button', { type: 'button', 'aria-label': `Explain ${decision.request}`, onclick: () => { state.open = decision; changed(); } }, 'Explain'),
    },
  };
}

function draw({ decisions, capacity }) {
  const shown = new Map();
  for (const decision of [...decisions, ...state.older]) {
    const one = row(decision);
    if (!shown.has(one.key)) shown.set(one.key, one);
  }
  if (shown.size === 0) {
    const any = Object.values(state.asked).some((value) => value !== '');
    return any
      ? empty('No decision matches', `The last ${text(count(capacity))} are kept (explain.max_bytes).`)
      : empty('No decision has been made yet', 'Send a chat completion through the data port, and its decision stands here.');
  }
  return [
    table({ caption: 'Decisions, newest first', columns: COLUMNS, rows: [...shown.values()] }),
    state.failure ? failed(state.failure, more) : null,
    state.next !== null && state.next !== undefined && !state.asked.request
      ? h('p', { class: 'more', key: 'more' }, h('button', { type: 'button', disabled: state.more, onclick: more }, state.more ? 'Asking …' : 'Older ones'))
      : null,
  ];
}

function parts({ outcome, objective_ms: objective }) {
  if (!outcome?.parts) return null;
  const named = ['queue', 'miss', 'prompt', 'engine', 'network', 'whole'].map((name) => [name, outcome.parts[`${name}_ms`] ?? 0]);
  const words = named.filter(([, ms]) => ms > 0);
  return [
    h('h3', { key: 'parts title' }, 'Where its time to first token went'),
    split(named, { label: `Of ${text(time(outcome.ttft_ms))}: ${words.map(([name, ms]) => `${PART_NAMES[name]} ${text(time(ms))}`).join(', ')}; objective ${text(time(objective))}`, limit: objective }),
    h('ul', { class: 'legend', key: 'parts' }, words.map(([name, ms]) => h('li', { key: name }, h('span', { class: `swatch ${name}` }), `${PART_NAMES[name]} `, number(time(ms)))),
      h('li', { key: 'limit' }, h('span', { class: 'swatch limit-swatch' }), `objective ${text(time(objective))}`)),
  ];
}

/** Terms in columns of their own; all others in milliseconds are extras. */
const SHOWN = new Set(['wait_ms', 'marginal_ms', 'fixed_ms', 'overhead_ms', 'predicted_ttft_ms']);

function extras(term) {
  const others = Object.entries(term).filter(([name]) => name.endsWith('_ms') && !SHOWN.has(name));
  return others.reduce((sum, [, ms]) => sum + ms, 0);
}

const TERMS = [
  ['cached', 'Cached', (t) => number(count(t.cached_tokens)), 'num'],
  ['uncached', 'Uncached', (t) => number(count(t.uncached_tokens)), 'num'],
  ['wait', 'Wait', (t) => number(time(t.wait_ms)), 'num'],
  ['marginal', 'Prefill', (t) => number(time(t.marginal_ms + t.fixed_ms)), 'num'],
  ['overhead', 'Overhead', (t) => number(time(t.overhead_ms)), 'num'],
  ['kappa', 'κ', (t) => number(plain(t.kappa)), 'num'],
  ['extra', 'Extras', (t) => number(time(extras(t))), 'num'],
  ['ttft', 'TTFT', (t) => number(time(t.predicted_ttft_ms)), 'num'],
  ['score', 'Score', (t) => (t.score === null ? 'never' : number(plain(t.score, 4))), 'num'],
];

function terms(decision) {
  const columns = [{ key: 'name', name: 'Worker', head: true }, ...TERMS.map(([key, name, , of]) => ({ key, name, class: of }))];
  const rows = decision.terms.map((term, at) => ({
    key: term.worker,
    cells: {
      name: [term.worker, at === 0 ? h('span', { class: 'note' }, 'chosen') : term.ready ? null : h('span', { class: 'note' }, 'not ready')],
      ...Object.fromEntries(TERMS.map(([key, , draw]) => [key, draw(term)])),
    },
  }));
  const left = decision.left_out;
  return [
    h('h3', { key: 'terms title' }, 'What the choice was between'),
    h('div', { class: 'wide-table', key: 'terms' }, table({ caption: 'Each worker’s terms', columns, rows })),
    left ? h('p', { class: 'note', key: 'left' }, `${left.workers} others are not shown, ${left.ready} of them ready${left.holder ? `; ${left.holder} held ${left.holder_cached_tokens} tokens` : ''}.`) : null,
  ];
}

function story(decision) {
  const { outcome, runner_up: second } = decision;
  const said = [];
  if (second) {
    said.push(`Second best was ${second.worker}, at ${text(time(second.predicted_ttft_ms))} predicted.`);
    if (typeof second.than_actual_ms === 'number') {
      said.push(second.than_actual_ms < 0
        ? `It might have been ${text(time(-second.than_actual_ms))} faster than what happened.`
        : `That is ${text(time(second.than_actual_ms))} slower than what happened.`);
    }
  }
  if (outcome?.avoidable_elsewhere_tokens) said.push(`${text(count(outcome.avoidable_elsewhere_tokens))} tokens were computed that a worker which was passed over held.`);
  if (outcome?.avoidable_mistaken_tokens) said.push(`${text(count(outcome.avoidable_mistaken_tokens))} tokens were expected in this worker’s cache and were not there.`);
  return said.length ? h('p', { class: 'prose' }, said.join(' ')) : null;
}

function explained() {
  const decision = state.open;
  if (!decision) return null;
  const { outcome } = decision;
  const close = () => {
    state.open = null;
    changed();
  };
  const facts = [
    ['Worker', decision.worker],
    ['By', `${decision.policy}: ${String(decision.reason).replaceAll('_', ' ')}`],
    ['Model', decision.model || '–'],
    ['Conversation', h('code', {}, decision.conversation ?? '–')],
    ['Objective', `${text(time(decision.objective_ms))} (${decision.class})`],
    ['TTFT', outcome?.ttft_ms ? `${text(time(outcome.ttft_ms))}, predicted ${text(time(decision.terms[0]?.predicted_ttft_ms))}` : 'not known yet'],
    ['Held here', text(time(decision.held_ms))],
    ['Ended', outcome ? outcome.state : 'not yet'],
    ['Prompt', `${text(tokens(outcome?.prompt_tokens ?? decision.prompt_tokens))}, cached ${text(count(outcome?.cached_tokens ?? undefined))}`],
    ['Decision', String(decision.decision)],
  ];
  return dialog({ title: decision.request, onclose: close, wide: true },
    h('dl', { class: 'facts', key: 'facts' }, facts.map(([name, value]) => h('div', { key: name }, h('dt', {}, name), h('dd', {}, value)))),
    parts(decision), story(decision), terms(decision));
}

export const decisions = {
  path: 'decisions',
  title: 'Decisions',
  sources: () => [recent, workers],
  enter(parameters) {
    const asked = Object.fromEntries(Object.keys(FRESH).map((key) => [key, parameters.get(key) ?? '']));
    if (Object.entries(asked).some(([key, value]) => value !== state.asked[key])) {
      state.asked = asked;
      Object.assign(state, { older: [], next: null, failure: null, held: false });
      recent.reset();
    }
  },
  leave() {
    state.open = null;
  },
  view: () => [
    section('Recent decisions', { key: 'recent', tools: tools(), note: state.held ? 'Held: new ones are not added.' : undefined },
      state.asked.request && recent.failure?.kind === 'missing' ? empty('Not kept', recent.failure.message) : from(recent, 'decisions', draw)),
    explained(),
  ],
};
