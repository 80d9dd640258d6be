// Events as they happen, and the audit log.

import { stream } from '../events.js';
import { changed as history, marks } from '../history.js';
import { moment, text, time } from '../format.js';
import { changed, Source } from '../live.js';
import { chip, empty, failed, from, loading, section, table } from '../parts.js';
import { h } from '../view.js';
import { differences } from './draft.js';

const audit = new Source('/admin/v1/audit?limit=100', { every: 5000 });
const KINDS = [['policy', 'Policy'], ['worker', 'Worker'], ['breaker', 'Breaker'], ['slow', 'Slow worker'], ['overload', 'Overload'], ['reload', 'Reload'], ['task', 'Task']];
const state = { hidden: new Set() };

/** What an event says, and how bad it is. */
export function told({ kind, subject, now }) {
  if (kind === 'policy') return [`revision ${now.revision}: ${now.settings?.policy}, by ${now.by}${now.reason ? `: “${now.reason}”` : ''}`, 'quiet'];
  if (kind === 'breaker') return [`breaker ${String(now.breaker).replaceAll('_', ' ')}`, now.breaker === 'open' ? 'bad' : 'warn'];
  if (kind === 'slow') return now.slow ? [`slow: a typical prompt takes ${text(time(now.typical_prompt_ms))} instead of ${text(time(now.baseline_typical_prompt_ms))}`, 'bad'] : ['has recovered', 'good'];
  if (kind === 'overload') return now.overloaded ? [`overloaded: waits ${text(time(now.wait_ms))} on ${now.workers_over} of ${now.workers_ready} workers`, 'bad'] : ['overload has ended', 'good'];
  if (kind === 'worker') {
    if (now.joined) return ['joined', 'quiet'];
    if (now.left) return ['removed', 'warn'];
    if (!now.well) return [`unwell: ${now.error ?? 'its probes fail'}`, 'bad'];
    if (now.hold && now.hold !== 'none') return [String(now.hold), 'warn'];
    return now.ready ? ['ready', 'good'] : ['not ready', 'warn'];
  }
  if (kind === 'reload') return now.refused ? [`refused: ${now.refused}`, 'bad'] : ['configuration reloaded', 'quiet'];
  if (kind === 'task') return [`${now.failed}; started again`, 'bad'];
  return [JSON.stringify(now), 'quiet', subject];
}

function filters() {
  const box = ([kind, name]) => {
    const toggle = (event) => {
      if (event.target.checked) state.hidden.delete(kind);
      else state.hidden.add(kind);
      changed();
    };
    return h('label', { class: 'check', key: kind }, h('input', { type: 'checkbox', checked: !state.hidden.has(kind), onchange: toggle }), name);
  };
  return h('div', { class: 'tools', role: 'group', 'aria-label': 'Kinds of events' }, KINDS.map(box));
}

const HEARING = {
  idle: 'not listening', connecting: 'connecting …', open: 'listening', waiting: 'reconnecting', failed: 'not listening',
};

function live() {
  if (stream.failure && stream.state === 'failed') return failed(stream.failure);
  const shown = [...stream.events.map(worded), ...earlier()].filter(({ event }) => !state.hidden.has(event.kind));
  if (shown.length === 0 && history.data === null && !history.failure) return loading('the events of the last day');
  if (shown.length === 0) return empty('No events in the last 24 hours', 'Changes of the policy, workers, breakers and reloads appear here at once.');
  const columns = [
    { key: 'when', name: 'When' },
    { key: 'kind', name: 'Kind' },
    { key: 'subject', name: 'Subject', head: true },
    { key: 'now', name: 'Change', class: 'whole' },
  ];
  const rows = merged(shown).map(({ event, words, level, times }, at) => ({
    key: `${event.at_unix_ms} ${event.number ?? at} ${event.subject}`,
    cells: {
      when: h('time', {}, moment(event.at_unix_ms)), kind: event.kind, subject: event.subject,
      now: [level === 'quiet' ? words : chip(words, level), times > 1 ? h('span', { class: 'note' }, `${times} times`) : null],
    },
  }));
  return table({ caption: 'Events, newest first', columns, rows, more: 'events' });
}

function worded(event) {
  const [words, level] = told(event);
  return { event, words, level };
}

/** Events before this page was opened, as the router's history has them, newest first. */
function earlier() {
  const first = stream.events.at(-1)?.at_unix_ms ?? Infinity;
  return marks(0).filter(({ at_unix_ms: at }) => at < first).reverse().map(({ text, ...event }) => ({ event, words: text, level: 'quiet' }));
}

/** Events that repeat the one before them on the same subject, as one. */
function merged(events) {
  const found = [];
  for (const { event, words, level } of events) {
    const last = found.at(-1);
    if (last && last.event.kind === event.kind && last.event.subject === event.subject && last.words === words) last.times += 1;
    else found.push({ event, words, level, times: 1 });
  }
  return found;
}

const WORDS = { none: 'in service', gone: 'removed' };
/** Fields of documents that are named first, and how many are named. */
const FIRST = ['url', 'policy', 'running', 'capacity_tokens', 'turns'];
const MOST = 3;

/** A value in a few words, numbers with so many digits. */
function short(value, digits = 4) {
  const number = Number(value);
  if (value === '' || value === null || value === undefined || value === 'null') return '–';
  if (Number.isFinite(number) && !Number.isInteger(number)) return String(Number(number.toPrecision(digits)));
  return WORDS[value] ?? String(value);
}

/** A change from one value to another, in as many digits as it takes to tell them apart. */
function arrow(was, will) {
  const digits = short(was) === short(will) ? 17 : 4;
  return `${short(was, digits)} → ${short(will, digits)}`;
}

function isDocument(value) {
  return typeof value === 'object' && value !== null;
}

/** What a change has changed: field by field for documents. */
function moved({ before, after }) {
  if (!isDocument(after)) return before === null && after === null ? h('span', { class: 'note' }, '–') : arrow(before, after);
  const settings = before?.settings && after.settings;
  const [old, now] = settings ? [before.settings, after.settings] : [before ?? {}, after];
  const rank = ({ path }) => (FIRST.indexOf(path.split('.').at(-1)) + 1 || FIRST.length + 1);
  const found = differences(old, now).filter(({ path }) => !path.endsWith('_unix_ms'));
  if (found.length === 0) return after.revision ? `revision ${before?.revision} → ${after.revision}` : 'the same';
  const named = settings ? found : found.toSorted((a, b) => rank(a) - rank(b)).filter((one) => before || rank(one) <= FIRST.length).slice(0, MOST);
  return named.map(({ path, was, will }) => {
    const name = path.split('.').at(-1).replaceAll('_', ' ');
    return was === '–' ? `${name} ${short(will)}` : `${name} ${arrow(was, will)}`;
  }).join(', ');
}

function changes({ entries, write_failures: lost }) {
  if (entries.length === 0) return empty('No changes since the start', 'Applied and refused changes are listed here.');
  const columns = [
    { key: 'when', name: 'When' },
    { key: 'who', name: 'Who' },
    { key: 'action', name: 'Action', head: true },
    { key: 'outcome', name: 'Outcome' },
    { key: 'moved', name: 'Change', class: 'whole' },
    { key: 'why', name: 'Reason', class: 'whole' },
  ];
  const rows = entries.map((entry) => ({
    key: entry.number,
    cells: {
      when: h('time', {}, moment(entry.at_unix_ms)),
      who: h('span', { title: entry.who.address ?? undefined }, entry.who.name),
      action: [h('code', {}, entry.action), entry.action.startsWith(entry.target) ? null : ` ${entry.target}`],
      outcome: entry.outcome === 'applied' ? chip('applied', 'good') : chip('refused', 'warn'),
      moved: entry.refused ?? moved(entry),
      why: entry.why ?? h('span', { class: 'note' }, '–'),
    },
  }));
  return [
    lost > 0 ? h('p', { class: 'error', role: 'alert', key: 'lost' }, `${lost} entries could not be written to the audit file.`) : null,
    table({ caption: 'Changes, newest first', columns, rows, more: 'changes' }),
  ];
}

export const events = {
  path: 'events',
  title: 'Events',
  sources: () => [audit, history],
  view: () => [
    section('Events', { key: 'live', note: HEARING[stream.state], tools: filters() },
      stream.missed ? h('p', { class: 'note', key: 'missed' }, `${stream.missed} events were missed: the page was too slow.`) : null,
      live()),
    section('Audit log', { key: 'audit', note: 'Changes by operators, the last 100.' }, from(audit, 'the audit log', changes)),
  ],
};
