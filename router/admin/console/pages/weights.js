// The policy in force: edit, preview on captured turns, apply with a reason, undo.

import { json } from '../api.js';
import { moment, span } from '../format.js';
import { changed, Source } from '../live.js';
import { chip, dialog, empty, field, from, refusal, section, table } from '../parts.js';
import { may, mayNot } from '../session.js';
import { h } from '../view.js';
import { Draft, differences, GROUPS, OVERRIDES } from './draft.js';
import { POLICIES } from './tables.js';
import { shadow, shadowSection } from './shadow.js';
import { capture, captured, forgetPreview, preview, previewed, view as previewView } from './preview.js';

const POLICY = '/admin/v1/policy';
const inForce = new Source(POLICY, { every: 3000 });
const history = new Source(`${POLICY}/history?limit=50`, { every: 10_000 });

const FRESH = { reason: '', minutes: '', applying: false, failure: null, done: null };
const state = { draft: null, back: null, open: new Set(), ...FRESH };
let tell = () => {};

function edit(path, value) {
  state.draft.set(path, value);
  Object.assign(state, { failure: null, done: null });
  forgetPreview();
  changed();
}

function begin(now) {
  state.draft = new Draft(now);
  Object.assign(state, FRESH);
  forgetPreview();
}

function errorOf(path) {
  const told = state.failure?.errors?.find((error) => error.field === `settings.${path}`);
  if (told) return told.hint ? `${told.detail} (${told.hint})` : told.detail;
  return state.draft.isNumber(path) ? undefined : 'Expected a number.';
}

function body() {
  const asked = { settings: state.draft.settings(), reason: state.reason.trim() };
  if (state.minutes.trim() !== '') asked.revert_after_s = Number(state.minutes) * 60;
  return asked;
}

async function apply() {
  const { draft } = state;
  Object.assign(state, { applying: true, failure: null, done: null });
  changed();
  try {
    const now = await json(POLICY, { method: 'PUT', body: body(), headers: { 'if-match': draft.base.etag } });
    taken(now, `Revision ${now.revision} is in force.`);
  } catch (failure) {
    Object.assign(state, { failure, applying: false });
    if (failure.status === 412) await inForce.refresh();
  }
  changed();
}

function taken(now, sentence) {
  inForce.data = now;
  begin(now);
  state.back = null;
  state.done = sentence;
  tell(sentence);
  history.refresh();
}

function standing(now) {
  const words = { start: 'configuration', put: 'console or API', rollback: 'undo', revert: 'end of a temporary change', reload: 'reload' };
  const before = now.revision > 1;
  return section('In force', { key: 'now', tools: before ? undo(now) : null },
    h('p', {}, h('strong', {}, `Revision ${now.revision}`), ` · ${now.settings.policy} · since ${moment(now.since_unix_ms)} · by ${now.by} (${words[now.source] ?? now.source}) `,
      now.as_configured ? chip('as configured', 'quiet') : chip('differs from the configuration', 'warn')),
    now.reason ? h('p', { class: 'note' }, `“${now.reason}”`) : null,
    now.reverts ? h('p', { class: 'note' }, `Temporary: ${temporary(now.reverts.keys)}.`) : null,
    state.done ? h('p', { class: 'done', role: 'status' }, state.done) : null);
}

function temporary(keys) {
  const named = (pointer) => pointer.slice(1).replaceAll('/', '.').replaceAll('~1', '/').replaceAll('~0', '~');
  return Object.entries(keys).map(([key, { in_s, to }]) => `${named(key)} returns to ${to ?? 'the default'} in ${span(in_s)}`).join(', ');
}

function undo(now) {
  const why = mayNot('admin');
  return h('button', { type: 'button', disabled: Boolean(why), title: why, onclick: () => ask(now.revision - 1) }, `Undo: back to revision ${now.revision - 1}`);
}

function control(item) {
  const { path, name, unit, meaning, symbol } = item;
  const { draft } = state;
  const base = draft.baseOf(path);
  const moved = draft.isChanged(path);
  return h(
    'div',
    { key: path, class: `weight ${moved ? 'changed' : ''}` },
    field(`weight ${path}`, {
      label: [name, unit ? h('span', { class: 'unit' }, ` ${unit}`) : null, moved ? h('span', { class: 'was' }, ` was ${base ?? 'the default'}`) : null],
      symbol, note: meaning, error: errorOf(path),
      control: h('input', {
        type: 'text', inputmode: 'decimal', autocomplete: 'off', spellcheck: 'false', readonly: !may('operate'),
        value: draft.text(path), oninput: (event) => edit(path, event.target.value),
        onkeydown: (event) => nudge(event, path),
      }),
    }),
  );
}

/** Up and down arrows move the last digit that is written; with Shift ten of them. */
function nudge(event, path) {
  if (event.key !== 'ArrowUp' && event.key !== 'ArrowDown') return;
  const text = state.draft.text(path);
  const value = Number(text);
  if (text.trim() === '' || !Number.isFinite(value)) return;
  event.preventDefault();
  const digits = Math.max(text.includes('e') ? 0 : (text.split('.')[1] ?? '').length, value % 1 ? 1 : 0, path.endsWith('_ms') ? 0 : 1);
  const step = 10 ** -Math.min(digits, path.endsWith('imbalance_abs') ? 0 : digits) * (event.shiftKey ? 10 : 1);
  edit(path, String(Math.max(0, Number((value + (event.key === 'ArrowUp' ? step : -step)).toFixed(digits)))));
}

function form(now) {
  const { draft } = state;
  const policy = draft.text('policy');
  const groups = GROUPS.filter(({ policies }) => policies.includes(policy));
  const chosen = POLICIES.find(({ name }) => name === policy);
  return section('Weights', { key: 'weights', note: `Based on revision ${draft.base.revision}.` },
    field('weight policy', {
      label: 'Policy', note: chosen?.meaning, error: state.failure?.errors?.find(({ field }) => field === 'settings.policy')?.detail,
      control: h('select', { value: policy, disabled: !may('operate'), onchange: (event) => edit('policy', event.target.value) }, POLICIES.map(({ name }) => h('option', { value: name, key: name }, name))),
    }),
    groups.map(({ items }) => h('div', { class: 'weights', key: items[0].path }, items.map(control))),
    groups.length ? null : h('p', { class: 'note', key: 'none' }, `${policy} uses no weights. The weights of tail stay as they are.`),
    overtaken(now));
}

/** Settings of a class of turns, or of those that ask by a name. What is empty is as for everybody. */
function overrides(of, name) {
  const { draft } = state;
  const prefix = `${of}.${name}.`;
  const policy = `${prefix}policy`;
  const own = [...OVERRIDES.map(({ path }) => prefix + path), policy].filter((path) => draft.text(path).trim() !== '');
  const isOpen = state.open.has(prefix);
  const toggle = () => { if (!state.open.delete(prefix)) state.open.add(prefix); changed(); };
  return h('div', { key: prefix },
    h('p', {}, h('button', { type: 'button', class: 'quiet', 'aria-expanded': String(isOpen), onclick: toggle }, `${of === 'named' ? 'Asked for as' : 'Class'} ${name}`), ' ',
      own.length ? chip(`${own.length} overridden`, 'warn') : chip('default', 'quiet')),
    isOpen ? field(`weight ${policy}`, {
      label: `Policy of ${name}`, error: errorOf(policy),
      control: h('select', { value: draft.text(policy), disabled: !may('operate'), onchange: (event) => edit(policy, event.target.value) },
        h('option', { value: '', key: '' }, 'default'), POLICIES.map((one) => h('option', { value: one.name, key: one.name }, one.name))),
    }) : null,
    isOpen ? h('div', { class: 'weights', key: 'weights' }, OVERRIDES.map((item) => control({ ...item, path: prefix + item.path, name: `${item.name} of ${name}`, meaning: `Empty: ${draft.text(item.path)}, the default.` }))) : null);
}

function overridden(now) {
  const classes = new Set([...(now.turn_classes ?? []), ...Object.keys(now.settings.classes ?? {})]);
  const named = Object.keys(now.settings.named ?? {});
  return section('Classes of turns', { key: 'classes', note: 'Other weights for the turns of a class, and for turns that ask for a name (x-tailroute-policy).' },
    [...classes].map((name) => overrides('classes', name)),
    named.map((name) => overrides('named', name)));
}

function overtaken(now) {
  const { draft } = state;
  if (draft.base.etag === now.etag) return null;
  return h('div', { class: 'refusal', role: 'alert', key: 'overtaken' },
    h('p', {}, `Revision ${now.revision} by ${now.by} is now in force; this form was made from revision ${draft.base.revision}.`),
    h('p', {}, h('button', { type: 'button', onclick: () => { draft.rebase(now); state.failure = null; forgetPreview(); changed(); } }, 'Keep my changes, on top of it'), ' ',
      h('button', { type: 'button', onclick: () => { begin(now); changed(); } }, 'Drop my changes')));
}

function summary() {
  const moved = state.draft.changes();
  if (moved.length === 0) return h('p', { class: 'note', key: 'summary' }, 'No changes yet. Type, or press the arrow keys in a field.');
  return h('ul', { class: 'moved', key: 'summary' }, moved.map(({ path, was, will }) => h('li', { key: path }, h('code', {}, path), ` ${was} → `, h('strong', {}, will))));
}

function review(now) {
  const { draft } = state;
  const sound = draft.isSound();
  const moved = draft.changes().length > 0;
  const why = mayNot('admin');
  const minutes = Number(state.minutes);
  const wrongTime = state.minutes.trim() !== '' && !(minutes > 0 && minutes <= 10_080);
  const ready = moved && sound && !why && !wrongTime && state.reason.trim() !== '' && !state.applying && draft.base.etag === now.etag;
  const text = (key) => (event) => { state[key] = event.target.value; changed(); };
  return section('Change', { key: 'change' },
    summary(),
    h('div', { class: 'actions', key: 'try' },
      h('div', { class: 'action' },
        h('button', { type: 'button', disabled: !moved || !sound || previewed.state === 'asking' || Boolean(mayNot('operate')), title: mayNot('operate'), onclick: () => preview(draft.settings(), tell) }, previewed.state === 'asking' ? 'Scoring …' : 'Preview'),
        h('button', { type: 'button', class: 'quiet', disabled: !moved, onclick: () => { begin(now); changed(); } }, 'Discard'))),
    captured(tell),
    previewView(tell),
    h('form', { key: 'apply', class: 'apply', onsubmit: (event) => { event.preventDefault(); if (ready) apply(); } },
      field('apply reason', { label: 'Reason', note: 'Goes to the audit log.', control: h('input', { type: 'text', maxlength: 500, disabled: Boolean(why), value: state.reason, oninput: text('reason') }) }),
      field('apply minutes', { label: 'For minutes', note: 'Empty: until the next change.', error: wrongTime ? 'Above 0, at most 10,080: a week.' : undefined, control: h('input', { type: 'text', inputmode: 'decimal', disabled: Boolean(why), value: state.minutes, oninput: text('minutes') }) }),
      h('button', { type: 'submit', class: 'primary', disabled: !ready }, state.applying ? 'Applying …' : 'Apply'),
      why || ready || state.applying ? null : h('p', { class: 'note', key: 'missing' }, missing({ moved, sound, wrongTime })),
      why ? h('p', { class: 'note' }, why) : null),
    state.failure?.errors?.some(({ field }) => draft.has(field.replace(/^settings\./, ''))) ? refusal({ message: 'Nothing was changed: see the fields.', errors: [] }) : refusal(state.failure));
}

/** What is missing before a change can be applied. */
function missing({ moved, sound, wrongTime }) {
  if (!moved) return 'Apply: change a setting first.';
  if (!sound || wrongTime) return 'Apply: correct the marked field first.';
  if (state.reason.trim() === '') return 'Apply: give a reason first.';
  return 'Apply: another revision is in force; see the note beside the weights.';
}

function ask(revision) {
  state.back = { revision, reason: '', asking: false, failure: null };
  changed();
}

async function rollBack(now) {
  const { back } = state;
  Object.assign(back, { asking: true, failure: null });
  changed();
  try {
    const body = { to_revision: back.revision, reason: back.reason.trim() };
    const after = await json(`${POLICY}/rollback`, { method: 'POST', body, headers: { 'if-match': now.etag } });
    taken(after, `Revision ${after.revision} is in force: the settings of revision ${back.revision} again.`);
  } catch (failure) {
    Object.assign(back, { asking: false, failure });
    if (failure.status === 412) await inForce.refresh();
  }
  changed();
}

function backDialog(now, revisions) {
  const { back } = state;
  if (!back) return null;
  const to = revisions?.find(({ revision }) => revision === back.revision);
  const close = () => { state.back = null; changed(); };
  const moved = to ? differences(now.settings, to.settings) : [];
  return dialog({ title: `Back to revision ${back.revision}`, onclose: close },
    moved.length
      ? h('ul', { class: 'moved' }, moved.map(({ path, was, will }) => h('li', { key: path }, h('code', {}, path), ` ${was} → `, h('strong', {}, will))))
      : h('p', { class: 'note' }, to ? 'Its settings are those in force.' : 'Its settings come back bit for bit, as a new revision.'),
    h('form', { class: 'apply', onsubmit: (event) => { event.preventDefault(); rollBack(now); } },
      field('back reason', { label: 'Reason', note: 'Goes to the audit log.', control: h('input', { type: 'text', maxlength: 500, required: true, value: back.reason, oninput: (event) => { back.reason = event.target.value; changed(); } }) }),
      h('button', { type: 'submit', class: 'primary', disabled: back.asking || back.reason.trim() === '' }, back.asking ? 'Asking …' : 'Put it in force')),
    refusal(back.failure));
}

function past(now) {
  const columns = [
    { key: 'revision', name: 'Revision', head: true },
    { key: 'since', name: 'Since' },
    { key: 'by', name: 'By' },
    { key: 'moved', name: 'Changed', class: 'whole' },
    { key: 'reason', name: 'Reason', class: 'whole' },
    { key: 'back', name: 'Restore', hidden: true },
  ];
  const draw = ({ revisions }) => {
    if (revisions.length < 2) return empty('No changes since the start', 'Each change is listed here with its author and reason, and can be restored.');
    const rows = revisions.map((one, at) => ({ key: one.revision, cells: entry(one, revisions[at + 1], now) }));
    return table({ caption: 'Revisions, newest first', columns, rows, more: 'revisions' });
  };
  return section('History', { key: 'history' }, from(history, 'the history', draw));
}

function entry(one, before, now) {
  const moved = before ? differences(before.settings, one.settings) : [];
  const why = mayNot('admin');
  return {
    revision: String(one.revision),
    since: moment(one.since_unix_ms),
    by: one.by === 'router' ? `router (${one.source})` : one.by,
    moved: moved.length ? moved.map(({ path, was, will }, at) => h('span', { key: path }, at ? ', ' : '', h('code', {}, path.split('.').at(-1)), ` ${was} → ${will}`)) : h('span', { class: 'note' }, before ? 'nothing' : '–'),
    reason: one.reason ?? h('span', { class: 'note' }, '–'),
    back: one.revision === now.revision
      ? chip('in force', 'quiet')
      : h('button', { type: 'button', disabled: Boolean(why), title: why, 'aria-label': `Restore revision ${one.revision}`, onclick: () => ask(one.revision) }, 'Restore'),
  };
}

function draw(now) {
  if (!state.draft) begin(now);
  // Nothing was typed: what is in force is what is shown.
  if (state.draft.base.etag !== now.etag && state.draft.changes().length === 0) {
    const { done } = state;
    begin(now);
    state.done = done;
  }
  return [
    standing(now),
    h('div', { class: 'halves', key: 'halves' }, form(now), review(now)),
    overridden(now),
    shadowSection(now, state.draft, tell),
    past(now),
    backDialog(now, history.data?.revisions),
  ];
}

export const weights = {
  path: 'weights',
  title: 'Weights',
  sources: () => [inForce, history, capture, shadow],
  enter(_, say) {
    tell = say;
  },
  leave() {
    Object.assign(state, { back: null, done: null });
  },
  view: () => from(inForce, 'the policy', draw),
};
