// What happens, as it happens; and what was changed, by whom and why.

import { stream } from '../events.js';
import { moment } from '../format.js';
import { changed, Source } from '../live.js';
import { chip, empty, failed, from, section, table } from '../parts.js';
import { h } from '../view.js';
import { differences } from './draft.js';

const audit = new Source('/admin/v1/audit?limit=100', { every: 5000 });
const KINDS = [['policy', 'Policy'], ['worker', 'Worker'], ['breaker', 'Breaker'], ['reload', 'Reload'], ['task', 'Task']];
const state = { hidden: new Set() };

/** What an event says, and how bad it is. */
export function told({ kind, subject, now }) {
  if (kind === 'policy') return [`revision ${now.revision}: ${now.settings?.policy}, by ${now.by}${now.reason ? `: “${now.reason}”` : ''}`, 'quiet'];
  if (kind === 'breaker') return [`breaker ${String(now.breaker).replaceAll('_', ' ')}`, now.breaker === 'open' ? 'bad' : 'warn'];
  if (kind === 'worker') {
    if (!now.well) return ['its probes fail', 'bad'];
    if (now.hold && now.hold !== 'none') return [String(now.hold), 'warn'];
    return [now.ready ? 'is given work' : 'is given no work', now.ready ? 'good' : 'warn'];
  }
  if (kind === 'reload') return now.refused ? [`refused: ${now.refused}`, 'bad'] : ['the configuration was read again', 'quiet'];
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
  idle: 'not listening', connecting: 'connecting …', open: 'listening', waiting: 'the stream broke off; it is taken up again', failed: 'not listening',
};

function live() {
  if (stream.failure && stream.state === 'failed') return failed(stream.failure);
  const shown = stream.events.filter(({ kind }) => !state.hidden.has(kind));
  if (shown.length === 0) return empty('Nothing has happened since this page was opened', 'Changes of the policy, workers that come and go, breakers and reloads appear here at once.');
  const columns = [
    { key: 'when', name: 'When' },
    { key: 'kind', name: 'Kind' },
    { key: 'subject', name: 'What', head: true },
    { key: 'now', name: 'Now', class: 'whole' },
  ];
  const rows = shown.map((event) => {
    const [words, level] = told(event);
    return {
      key: `${event.at_unix_ms} ${event.number}`,
      cells: { when: h('time', {}, moment(event.at_unix_ms)), kind: event.kind, subject: event.subject, now: level === 'quiet' ? words : chip(words, level) },
    };
  });
  return table({ caption: 'Events, newest first', columns, rows });
}

function short(value) {
  if (value === null || value === undefined) return '–';
  if (typeof value !== 'object') return String(value);
  return JSON.stringify(value);
}

function moved({ before, after }) {
  if (before?.settings && after?.settings) {
    const found = differences(before.settings, after.settings);
    return found.length ? found.map(({ path, was, will }) => `${path.split('.').at(-1)} ${was} → ${will}`).join(', ') : `revision ${before.revision} → ${after.revision}`;
  }
  if (before === null && after === null) return h('span', { class: 'note' }, '–');
  const [was, will] = [short(before), short(after)];
  return was.length + will.length > 120 ? h('span', { class: 'note' }, 'in the log') : `${was} → ${will}`;
}

function changes({ entries, write_failures: lost }) {
  if (entries.length === 0) return empty('Nobody has changed anything since the start', 'Changes stand here whether they were made or refused.');
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
    table({ caption: 'Changes, newest first', columns, rows }),
  ];
}

export const events = {
  path: 'events',
  title: 'Events',
  sources: () => [audit],
  view: () => [
    section('As it happens', { key: 'live', note: HEARING[stream.state], tools: filters() },
      stream.missed ? h('p', { class: 'note', key: 'missed' }, `${stream.missed} events were missed: more came than this page could take.`) : null,
      live()),
    section('Changes', { key: 'audit', note: 'The audit log’s last 100.' }, from(audit, 'the audit log', changes)),
  ],
};
