// Recent decisions by filter, and the explanation of one.

import { json } from '../api.js';
import { split } from '../chart.js';
import { count, moment, text, time, tokens } from '../format.js';
import { changed, Source } from '../live.js';
import { chip, dialog, empty, failed, from, number, section, table, workerName } from '../parts.js';
import { h } from '../view.js';

const CAUSES = ['queue', 'miss', 'slow_worker', 'engine', 'network', 'prompt', 'whole'];
const PART_NAMES = { queue: 'queue', miss: 'miss', prompt: 'prompt', slow_worker: 'slow worker', engine: 'engine', network: 'network', whole: 'rest of the answer' };
const FRESH = { worker: '', late: '', finished: 'true', cause: '', class: '', from_unix_ms: '', until_unix_ms: '', request: '' };
const state = { asked: { ...FRESH }, older: [], next: null, more: false, failure: null, open: null, held: false };

function query() {
  const parameters = new URLSearchParams({ limit: '25' });
  for (const [key, asked] of Object.entries(state.asked)) {
    const value = key === 'request' ? '' : asked.trim();
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
  // The list does not move while it is being read.
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
  const any = isFiltered();
  return h('form', { class: 'tools', role: 'search', onsubmit: submit },
    h('label', { class: 'pick', key: 'request' }, 'Request', h('input', { type: 'search', class: 'request', placeholder: 'x-request-id', spellcheck: 'false', value: state.asked.request, oninput: (event) => { state.asked.request = event.target.value; changed(); }, onchange: search })),
    select('worker', 'Worker', [['', 'any'], ...known.map((name) => [name, name])]),
    select('late', 'Objective', [['', 'any'], ['true', 'late'], ['false', 'within objective, or not known yet']]),
    select('finished', 'Turns', [['true', 'finished'], ['false', 'running'], ['', 'any']]),
    select('cause', 'Cause', [['', 'any'], ...CAUSES.map((cause) => [cause, PART_NAMES[cause]])]),
    h('button', { type: 'button', key: 'hold', 'aria-pressed': String(state.held), onclick: () => { state.held = !state.held; if (!state.held) search(); changed(); } }, state.held ? 'Resume' : 'Pause'),
    any ? h('button', { type: 'button', class: 'quiet', key: 'all', onclick: () => { Object.assign(state.asked, FRESH); search(); } }, 'Clear filters') : null);
}

/** The time of the first token that is asked for, with a button that ends this. */
function period() {
  const { from_unix_ms: from, until_unix_ms: until } = state.asked;
  if (!from && !until) return null;
  const words = `First token ${from ? `from ${moment(Number(from))} ` : ''}${until ? `until ${moment(Number(until))}` : 'until now'}`;
  const clear = () => {
    Object.assign(state.asked, { from_unix_ms: '', until_unix_ms: '' });
    search();
  };
  return h('p', { class: 'period', key: 'period' }, words, ' ', h('button', { type: 'button', onclick: clear }, 'Any time'));
}

function standing(decision) {
  const { outcome } = decision;
  if (!outcome) return chip('running', 'quiet');
  if (outcome.met === false) return chip(outcome.cause ? `late: ${PART_NAMES[outcome.cause] ?? outcome.cause}` : 'late', 'bad');
  if (outcome.met) return chip('within objective', 'good');
  return chip(outcome.state, outcome.state === 'ok' ? 'quiet' : 'warn');
}

const COLUMNS = [
  { key: 'when', name: 'When' },
  { key: 'request', name: 'Request', head: true },
  { key: 'worker', name: 'Worker' },
  { key: 'standing', name: 'Objective' },
  { key: 'ttft', name: 'TTFT', class: 'num' },
  { key: 'predicted', name: 'Predicted', class: 'num' },
  { key: 'cached', name: 'Cached', class: 'num', title: 'Prompt tokens found in the cache, of all' },
  { key: 'saved', term: 'Margin', class: 'num' },
  { key: 'more', name: 'Explain', hidden: true },
];

function open(decision) {
  state.open = decision;
  changed();
}

function row(decision) {
  const [chosen] = decision.terms;
  const { outcome, runner_up: second } = decision;
  const cached = outcome?.cached_tokens ?? chosen?.cached_tokens;
  return {
    key: `${decision.decision} ${decision.request} ${decision.worker}`,
    class: outcome?.met === false ? 'troubled' : '',
    onclick: () => open(decision),
    cells: {
      when: h('time', {}, moment(decision.arrived_unix_ms)),
      request: h('code', { class: 'name', title: decision.request }, decision.request),
      worker: workerName(decision.worker),
      standing: standing(decision),
      ttft: number(time(outcome?.ttft_ms ?? undefined)),
      predicted: number(time(chosen?.predicted_ttft_ms)),
      cached: [number(count(cached)), ' of ', number(count(outcome?.prompt_tokens ?? decision.prompt_tokens))],
      saved: second ? number(decision.parts_of === 'score' ? time(second.score_more) : count(second.score_more)) : '–',
      more: h('button', { type: 'button', 'aria-label': `Explain ${decision.request}`, onclick: () => open(decision) }, 'Explain'),
    },
  };
}

/** Whether anything but finished turns of every kind is asked for. */
function isFiltered() {
  return Object.entries(state.asked).some(([key, value]) => value !== FRESH[key]);
}

/** How many turns run, and how many of them are predicted to be late. */
function running({ running: turns, running_predicted_late: late }) {
  if (!turns) return null;
  const show = () => set('finished', 'false');
  return h('p', { class: 'period', key: 'running' }, `${text(count(turns))} running${late ? `, ${text(count(late))} of them predicted late` : ''} `, state.asked.finished === 'false' ? null : h('button', { type: 'button', onclick: show }, 'Show them'));
}

function draw(page) {
  const { decisions, capacity } = page;
  const shown = new Map();
  for (const decision of [...decisions, ...state.older]) {
    const one = row(decision);
    if (!shown.has(one.key)) shown.set(one.key, one);
  }
  if (shown.size === 0) {
    if (isFiltered()) return [running(page), empty('No decision matches', `The router keeps the last ${text(count(capacity))} (explain.max_bytes), and none of an earlier process.`)];
    return [running(page), page.running ? empty('No turn has finished yet') : empty('No decision has been made yet', 'Send a chat completion through the data port.')];
  }
  return [
    running(page),
    table({ caption: 'Decisions, newest first', columns: COLUMNS, rows: [...shown.values()], more: 'decisions' }),
    state.failure ? failed(state.failure, more) : null,
    state.next !== null && state.next !== undefined && !state.asked.request
      ? h('p', { class: 'more', key: 'more' }, h('button', { type: 'button', disabled: state.more, onclick: more }, state.more ? 'Asking …' : 'Older decisions'))
      : null,
  ];
}

function parts({ outcome, objective_ms: objective }) {
  if (!outcome?.parts) return null;
  const named = ['queue', 'miss', 'prompt', 'slow_worker', 'engine', 'network', 'whole'].map((name) => [name, outcome.parts[`${name}_ms`] ?? 0]);
  const words = named.filter(([, ms]) => ms > 0);
  return [
    h('h3', { key: 'parts title' }, 'Parts of the time to first token'),
    split(named, { label: `Of ${text(time(outcome.ttft_ms))}: ${words.map(([name, ms]) => `${PART_NAMES[name]} ${text(time(ms))}`).join(', ')}; objective ${text(time(objective))}`, limit: objective }),
    h('ul', { class: 'legend', key: 'parts' }, words.map(([name, ms]) => h('li', { key: name }, h('span', { class: `swatch ${name}` }), `${PART_NAMES[name]} `, number(time(ms)))),
      h('li', { key: 'limit' }, h('span', { class: 'swatch limit-swatch' }), `objective ${text(time(objective))}`)),
  ];
}

/** Each worker's terms. The parts add up to the column behind the equals sign. */
function terms(decision) {
  const isCost = decision.parts_of === 'score';
  const [chosen] = decision.terms;
  const parts = (chosen?.parts ?? []).map(({ name }) => ({ key: `part ${name}`, term: name, class: 'num' }));
  const predicted = { key: 'ttft', name: isCost ? 'Predicted' : '= Predicted', class: 'num sum' };
  const columns = [
    { key: 'name', name: 'Worker', head: true },
    { key: 'cached', name: 'Cached', class: 'num' },
    { key: 'uncached', name: 'Computed', class: 'num' },
    ...(isCost ? [predicted, ...parts] : [...parts, predicted]),
    { key: 'score', name: isCost ? '= Score' : 'Score', class: 'num sum' },
  ];
  const rows = decision.terms.map((term, at) => {
    const sum = term.parts.reduce((sum, { ms }) => sum + ms, 0).toFixed(1);
    const score = term.score === null ? 'none' : isCost ? sum : String(Number(term.score.toPrecision(4)));
    return {
      key: term.worker,
      class: at === 0 ? 'chosen' : '',
      cells: {
        name: [workerName(term.worker), at === 0 ? h('span', { class: 'note' }, 'chosen') : null],
        cached: number(count(term.cached_tokens)),
        uncached: number(count(term.uncached_tokens)),
        ttft: isCost ? term.predicted_ttft_ms.toFixed(1) : sum,
        ...Object.fromEntries(term.parts.map(({ name, ms }) => [`part ${name}`, ms.toFixed(1)])),
        score: term.ready ? score : 'not ready',
      },
    };
  });
  const left = decision.left_out;
  return [
    h('h3', { key: 'terms title' }, 'Each worker’s terms'),
    h('p', { class: 'note', key: 'terms note' }, isCost
      ? `Milliseconds. The columns after Predicted add up to the score; the lowest score wins. κ is ${Number(chosen.kappa.toPrecision(3))} on ${chosen.worker}. Parts that are zero everywhere are left out.`
      : `Milliseconds. ${decision.policy} does not minimise a cost: the parts add up to the predicted time to first token, and the score is the policy’s own measure.`),
    h('div', { class: 'wide-table', key: 'terms' }, table({ caption: 'Each worker’s terms', columns, rows })),
    left ? h('p', { class: 'note', key: 'left' }, `${left.workers} others are not shown, ${left.ready} of them ready${left.holder ? `; ${left.holder} held ${text(count(left.holder_cached_tokens))} tokens of the prompt` : ''}.`) : null,
  ];
}

/** When the first token came, against the objective and the prediction. */
function came({ outcome, objective_ms: objective, runner_up: second, terms }) {
  const ttft = outcome?.ttft_ms;
  if (!ttft) return outcome ? `It ended without a first token: ${outcome.state}.` : 'It has no first token yet.';
  const limit = `the objective of ${text(time(objective))}`;
  const late = outcome.met === false;
  const cause = outcome.cause ? ` (cause: ${PART_NAMES[outcome.cause] ?? outcome.cause})` : '';
  const said = [`First token after ${text(time(ttft))}, ${late ? `${text(time(ttft - objective))} late for ${limit}${cause}` : `within ${limit}`}.`];
  const sooner = second && terms[0] ? terms[0].predicted_ttft_ms - second.predicted_ttft_ms : 0;
  if (sooner >= 1) said.push(`On ${second.worker} it was predicted ${text(time(sooner))} sooner than here.`);
  if (outcome.avoidable_elsewhere_tokens) said.push(`Another worker held ${text(count(outcome.avoidable_elsewhere_tokens))} of the tokens that were computed.`);
  if (outcome.avoidable_mistaken_tokens) said.push(`${text(count(outcome.avoidable_mistaken_tokens))} tokens were predicted in this worker’s cache and were missing.`);
  return said.join(' ');
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
    ['In the router', text(time(decision.held_ms))],
    ['Ended', outcome ? outcome.state : 'not yet'],
    ['Prompt', text(tokens(outcome?.prompt_tokens ?? decision.prompt_tokens))],
    ['Cached', `available ${text(count(decision.available_tokens))}, captured ${text(count(decision.captured_tokens))}, delivered ${text(count(outcome?.cached_tokens ?? undefined))}`],
    ['Decision', String(decision.decision)],
  ];
  return dialog({ title: decision.request, onclose: close, wide: 'wide broad' },
    h('p', { class: 'verdict', key: 'verdict' }, decision.verdict),
    h('p', { class: 'prose', key: 'came' }, came(decision)),
    parts(decision),
    terms(decision),
    h('h3', { key: 'facts title' }, 'The turn'),
    h('dl', { class: 'facts', key: 'facts' }, facts.map(([name, value]) => h('div', { key: name }, h('dt', {}, name), h('dd', {}, value)))));
}

export const decisions = {
  path: 'decisions',
  title: 'Decisions',
  sources: () => [recent, workers],
  enter(parameters) {
    const asked = Object.fromEntries(Object.entries(FRESH).map(([key, fresh]) => [key, parameters.get(key) ?? fresh]));
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
    section('Recent decisions', { key: 'recent', tools: tools(), note: state.held ? 'Paused: new decisions are not added.' : undefined },
      period(),
      state.asked.request && recent.failure?.kind === 'missing' ? empty('Not kept', recent.failure.message) : from(recent, 'decisions', draw)),
    explained(),
  ],
};
