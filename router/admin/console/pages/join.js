// A worker that joins the fleet.

import { json } from '../api.js';
import { changed } from '../live.js';
import { dialog, field, refusal } from '../parts.js';
import { mayNot } from '../session.js';
import { h } from '../view.js';

const FRESH = { url: '', name: '', capacity_tokens: '', alpha_ms_per_token: '', reason: '', asking: false, failure: null };

/** What is being typed, while the dialog is open. */
export const joining = { open: false, ...FRESH };

function set(values) {
  Object.assign(joining, values);
  changed();
}

export function closeJoin() {
  if (joining.open) set({ open: false, ...FRESH });
}

/** What opens it. */
export function joinButton() {
  const why = mayNot('admin');
  return h('button', { type: 'button', disabled: Boolean(why), title: why, onclick: () => set({ ...FRESH, open: true }) }, 'Add a worker');
}

const FIELDS = [
  { key: 'url', label: 'Address', note: 'As in http://10.0.0.7:8000, without /v1.' },
  { key: 'name', label: 'Name', note: 'Empty: host and port of the address.' },
  { key: 'capacity_tokens', label: 'Cache, tokens', note: 'Number of blocks times their size. Empty: as the worker reports.', number: true },
  { key: 'alpha_ms_per_token', label: 'α, ms per token', note: 'Empty: the median of the others, until it is learned.', number: true },
];

function wrong({ key, number }) {
  const told = joining.failure?.errors?.find((error) => error.field === `worker.${key}`);
  if (told) return told.hint ? `${told.detail} (${told.hint})` : told.detail;
  const typed = joining[key].trim();
  return number && typed !== '' && !(Number(typed) > 0) ? 'Expected a number above 0.' : undefined;
}

function body() {
  const worker = {};
  for (const { key, number } of FIELDS) {
    const typed = joining[key].trim();
    if (typed !== '') worker[key] = number ? Number(typed) : typed;
  }
  return { worker, reason: joining.reason.trim() };
}

async function join(refresh, tell) {
  set({ asking: true, failure: null });
  try {
    const { name } = await json('/admin/v1/workers', { method: 'POST', body: body() });
    set({ open: false, ...FRESH });
    tell(`${name} has joined; it gets work once its probes succeed.`);
    await refresh();
  } catch (failure) {
    set({ failure, asking: false });
  }
}

export function joinDialog(refresh, tell) {
  const sound = FIELDS.every((one) => joining.failure || !wrong(one));
  const ready = joining.url.trim() !== '' && joining.reason.trim() !== '' && sound && !joining.asking;
  const input = (key, more) => h('input', { type: 'text', autocomplete: 'off', spellcheck: 'false', value: joining[key], oninput: (event) => set({ [key]: event.target.value, failure: null }), ...more });
  return dialog({ title: 'Add a worker', onclose: closeJoin },
    h('p', { class: 'note', key: 'what' }, 'It stays until it is removed or the router ends. The configuration file is not changed.'),
    h('form', { key: 'join', class: 'apply', onsubmit: (event) => { event.preventDefault(); if (ready) join(refresh, tell); } },
      FIELDS.map((one) => field(`join ${one.key}`, { label: one.label, note: one.note, error: wrong(one), control: input(one.key, one.number ? { inputmode: 'decimal' } : {}) })),
      field('join reason', { label: 'Reason', note: 'Goes to the audit log.', control: input('reason', { maxlength: 500 }) }),
      h('button', { type: 'submit', disabled: !ready }, joining.asking ? 'Asking …' : 'Add'),
      refusal(joining.failure)));
}
