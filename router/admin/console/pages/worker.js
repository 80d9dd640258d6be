// One worker: its state, and the changes that can be made to it.

import { json } from '../api.js';
import { count, moment, plain, share, span, text, time, tokens } from '../format.js';
import { recentByWorker } from '../history.js';
import { changed } from '../live.js';
import { lateTurns } from '../objective.js';
import { dialog, field, number, refusal } from '../parts.js';
import { mayNot } from '../session.js';
import { term } from '../terms.js';
import { h } from '../view.js';

/** Which worker is open, and what somebody is about to do with it. */
export const shown = { name: null };
const FRESH = { reason: '', alpha: '', minutes: '', asking: null, failure: null, lastReady: false, force: false };
/** Failures are counted over a quarter of an hour: as long as they are kept by worker. */
const FAILURES_S = 900;
const LAST_READY = 'urn:tailroute:problem:last-worker';
Object.assign(shown, FRESH);

export function openWorker(name) {
  Object.assign(shown, FRESH, { name });
  changed();
}

export function closeWorker() {
  if (shown.name === null) return;
  Object.assign(shown, FRESH, { name: null });
  changed();
}

const ACTIONS = {
  cordon: { name: 'Cordon', done: 'is cordoned', meaning: 'No new turns, except those that no other worker can serve.' },
  drain: { name: 'Drain', done: 'drains', meaning: 'No new turns at all. Drained once its running turns have ended.' },
  uncordon: { name: 'Return to work', done: 'is back in service', meaning: 'Ends a cordon or a drain.' },
  remove: { name: 'Remove', done: 'leaves', role: 'admin', meaning: 'Its running turns end, then the router forgets it, its cache and its cost. The configuration file is not changed.' },
};

function possible(worker) {
  const held = worker.state === 'cordoned' || worker.state === 'draining' || worker.state === 'drained';
  if (worker.state === 'leaving') return [];
  if (!held) return ['cordon', 'drain', 'remove'];
  return worker.state === 'cordoned' ? ['uncordon', 'drain', 'remove'] : ['uncordon', 'remove'];
}

async function act(worker, { path, method = 'POST', body = {}, done }, refresh, tell) {
  Object.assign(shown, { asking: path, failure: null });
  changed();
  try {
    await json(`/admin/v1/workers/${encodeURIComponent(worker.name)}/${path}`, { method, body: { ...body, reason: shown.reason.trim() } });
    tell(`${worker.name} ${done}.`);
    Object.assign(shown, FRESH, { name: null });
    await refresh();
  } catch (failure) {
    Object.assign(shown, { failure, asking: null, lastReady: shown.lastReady || failure.type === LAST_READY });
  }
  changed();
}

/** How slow a worker is. */
export function slowness({ slow }) {
  const baseline = slow.against === 'fleet' ? 'the fleet’s median' : 'its own past';
  return `slow: a typical prompt takes ${text(time(slow.typical_prompt_ms))} instead of ${text(time(slow.baseline_typical_prompt_ms))} (${baseline})`;
}

function facts(worker) {
  const { cost } = worker;
  const rows = [
    ['Address', worker.url],
    ['State', `${worker.state.replaceAll('_', ' ')}${worker.breaker === 'closed' ? '' : `, breaker ${worker.breaker.replaceAll('_', ' ')}`}`],
    ...(worker.well ? [] : [['Probes', `fail${worker.since_unix_ms ? ` since ${moment(worker.since_unix_ms)}` : ''}${worker.last_error ? `: ${worker.last_error}` : ''}`]]),
    ...(worker.slow ? [['Speed', `${slowness(worker)}, for ${span(worker.slow.since_s)}`]] : []),
    ['Failures', failures(worker)],
    [['Cost ', term('α')], [number(plain(cost.alpha_ms_per_token)), ' ms per uncached token', worker.alpha_set ? setNote(worker.alpha_set) : null]],
    [['Fixed ', term('β')], number(time(cost.beta_ms))],
    [['Quadratic ', term('γ')], [number(plain(cost.gamma_ms_per_token2, 3)), ' ms per token²']],
    ['Floor', [number(plain(cost.floor_ms, 3)), ' ms']],
    ['Overhead', [number(time(cost.overhead_ms)), ' beside queue and prefill']],
    ['Mean error', number(time(cost.error_ms))],
    ['Measured', worker.calibrated ? measuredNote(worker.calibrated) : 'not since the start'],
    [['Headroom ', term('ξ')], number(tokens(worker.xi_tokens))],
    ['Cache', [number(tokens(worker.held_tokens)), ' of ', number(tokens(worker.capacity_tokens)), worker.events_live ? ', by its cache events' : ', estimated by the router']],
    ['Hints', worker.hears_hints ? `${worker.dialect}; ${text(count(worker.hints_waiting))} waiting` : `${worker.dialect}; none outside its requests`],
    ['Last hint', worker.told ? `ξ ${text(tokens(worker.told.xi_tokens))}, next prompt ${text(tokens(worker.told.next_prompt_tokens))}` : 'nothing'],
    ['Models', worker.models.join(', ') || 'not known yet'],
    ['Decisions', h('a', { href: lateTurns({ worker: worker.name }) }, 'Late turns of this worker')],
  ];
  return h('dl', { class: 'facts' }, rows.map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))));
}

function failures({ name }) {
  const window = recentByWorker(FAILURES_S);
  if (!window) return 'not known yet';
  const failed = window.failures.get(name) ?? 0;
  return [number(count(failed), failed ? { class: 'bad' } : {}), ` in the last ${span(window.seconds)}`];
}

function measuredNote({ alpha_ms_per_token: alpha, measured_at_unix_s: at, r_squared: held }) {
  return `α ${text(plain(alpha, 4))}, ${moment(at * 1000)}, R² ${held.toFixed(3)}`;
}

function setNote({ learned_alpha_ms_per_token: learned, reverts_in_s: left }) {
  const end = left === null || left === undefined ? 'until it is unset' : `for another ${span(left)}`;
  return h('span', { class: 'note' }, `; set by hand ${end}; learned: ${text(plain(learned, 4))}`);
}

function controls(worker, refresh, tell) {
  const why = mayNot('operate');
  const busy = shown.asking !== null;
  const needsReason = shown.reason.trim() === '';
  const off = Boolean(why) || busy || needsReason;
  const button = (name) => {
    const { name: label, done, meaning, role } = ACTIONS[name];
    const more = role && mayNot(role);
    const body = shown.force && name !== 'uncordon' ? { force: true } : {};
    return h('div', { class: 'action', key: name },
      h('button', { type: 'button', disabled: off || Boolean(more), title: more, onclick: () => act(worker, { path: name, body, done }, refresh, tell) }, shown.asking === name ? 'Asking …' : label),
      h('span', { class: 'note' }, meaning));
  };
  return [
    why ? h('p', { class: 'note', key: 'why' }, why) : null,
    field('worker reason', {
      label: 'Reason', note: needsReason && !why ? 'Give a reason to enable the buttons. It goes to the audit log.' : 'Goes to the audit log.',
      control: h('input', { type: 'text', maxlength: 500, disabled: Boolean(why), value: shown.reason, oninput: (event) => { shown.reason = event.target.value; changed(); } }),
    }),
    h('div', { class: 'actions', key: 'hold' }, possible(worker).map(button)),
    shown.lastReady
      ? h('label', { class: 'check', key: 'force' }, h('input', { type: 'checkbox', checked: shown.force, onchange: (event) => { shown.force = event.target.checked; changed(); } }), 'Take the last ready worker out of service')
      : null,
    alpha(worker, off, refresh, tell),
    refusal(shown.failure),
  ];
}

function alpha(worker, off, refresh, tell) {
  const value = Number(shown.alpha);
  const wrong = shown.alpha.trim() !== '' && !(value > 0 && value <= 1e6);
  const minutes = Number(shown.minutes);
  const wrongTime = shown.minutes.trim() !== '' && !(minutes > 0 && minutes <= 10_080);
  const body = { alpha_ms_per_token: value };
  if (shown.minutes.trim() !== '') body.revert_after_s = minutes * 60;
  const input = (key) => ({ type: 'text', inputmode: 'decimal', value: shown[key], oninput: (event) => { shown[key] = event.target.value; changed(); } });
  return h(
    'form',
    { class: 'line', key: 'alpha', onsubmit: (event) => { event.preventDefault(); act(worker, { path: 'alpha', method: 'PUT', body, done: 'has a new α' }, refresh, tell); } },
    field('worker alpha', { label: 'α, ms per token', error: wrong ? 'Above 0, at most 1,000,000.' : undefined, control: h('input', input('alpha')) }),
    field('worker minutes', { label: 'For minutes (empty: until unset)', error: wrongTime ? 'Above 0, at most a week.' : undefined, control: h('input', input('minutes')) }),
    h('button', { type: 'submit', disabled: off || wrong || wrongTime || shown.alpha.trim() === '' }, 'Set α'),
    worker.alpha_set
      ? h('button', { type: 'button', disabled: off, onclick: () => act(worker, { path: 'alpha/revert', done: 'uses the learned α' }, refresh, tell) }, 'Back to learned')
      : null,
  );
}

export function workerDialog(worker, refresh, tell) {
  return dialog({ title: worker.name, onclose: closeWorker, wide: true }, facts(worker), h('h3', {}, 'Change'), controls(worker, refresh, tell));
}
