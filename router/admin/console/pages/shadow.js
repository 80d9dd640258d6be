// A policy that scores the live traffic and steers none of it: where it would have sent turns, and what it predicts there.

import { json } from '../api.js';
import { count, moment, share, time } from '../format.js';
import { changed, Source } from '../live.js';
import { chip, field, figure, figures, from, refusal, section } from '../parts.js';
import { mayNot } from '../session.js';
import { h } from '../view.js';
import { differences } from './draft.js';

const SHADOW = '/admin/v1/policy/shadow';
const FRESH = { reason: '', asking: false, failure: null };
const state = { ...FRESH };

/** What follows the traffic. */
export const shadow = new Source(SHADOW, { every: 3000 });

async function send(path, options, sentence, tell) {
  Object.assign(state, { asking: true, failure: null });
  changed();
  try {
    shadow.data = await json(path, options);
    Object.assign(state, FRESH);
    tell(sentence);
    shadow.refresh();
  } catch (failure) {
    Object.assign(state, { failure, asking: false });
  }
  changed();
}

function follow(settings, tell) {
  const options = { method: 'PUT', body: { settings, reason: state.reason.trim() } };
  return send(SHADOW, options, `${settings.policy} follows the live traffic.`, tell);
}

function stop(tell) {
  return send(`${SHADOW}/stop`, { method: 'POST', body: { reason: state.reason.trim() } }, 'No policy follows the live traffic any more.', tell);
}

function seen({ tally }) {
  const of = (part, whole) => share(whole ? part / whole : undefined);
  const change = tally.turns ? tally.predicted_change_ms / tally.turns : undefined;
  const [value, unit] = time(change === undefined ? undefined : Math.abs(change));
  return figures(
    figure('Turns seen', count(tally.turns)),
    figure('Would go elsewhere', of(tally.elsewhere, tally.turns)),
    figure('Of these sooner', of(tally.faster, tally.elsewhere)),
    figure('TTFT, predicted', [change < 0 ? `−${value}` : change > 0 ? `+${value}` : value, unit], { note: 'mean of all turns' }),
  );
}

function apart(settings, now) {
  const moved = differences(now.settings, settings);
  if (moved.length === 0) return h('p', { class: 'note' }, 'It is the policy in force by now.');
  return h('ul', { class: 'moved' }, moved.map(({ path, was, will }) => h('li', { key: path }, h('code', {}, path), ` ${was} → `, h('strong', {}, will))));
}

function running(data, now) {
  return h('div', { key: 'running', class: 'following' },
    h('p', {}, h('strong', {}, data.settings.policy), ` since ${moment(data.since_unix_ms)} `, chip('routes nothing', 'quiet')),
    apart(data.settings, now),
    seen(data),
    h('p', { class: 'note' }, 'It sees the state that results from the policy in force: the figures show where the two disagree, not how the fleet would behave under it.'));
}

function controls(data, draft, tell) {
  const why = mayNot('operate');
  const edited = draft.changes().length > 0 && draft.isSound();
  const ready = !why && !state.asking && state.reason.trim() !== '';
  return h('div', { key: 'controls', class: 'apply' },
    why ? h('p', { class: 'note', key: 'why' }, why) : null,
    field('shadow reason', {
      label: 'Why', note: 'Goes to the audit log.',
      control: h('input', { type: 'text', maxlength: 500, disabled: Boolean(why), value: state.reason, oninput: (event) => { state.reason = event.target.value; changed(); } }),
    }),
    h('div', { class: 'actions' },
      h('div', { class: 'action', key: 'follow' },
        h('button', { type: 'button', disabled: !ready || !edited, onclick: () => follow(draft.settings(), tell) }, state.asking ? 'Asking …' : 'Follow live traffic'),
        h('span', { class: 'note' }, edited ? 'With the weights as they are typed above.' : 'Change something above first.')),
      data.running
        ? h('div', { class: 'action', key: 'stop' }, h('button', { type: 'button', disabled: !ready, onclick: () => stop(tell) }, 'Stop following'))
        : null),
    refusal(state.failure));
}

export function shadowSection(now, draft, tell) {
  const draw = (data) => [
    data.running ? running(data, now) : h('p', { key: 'none' }, 'No policy follows the live traffic. A shadow policy scores each turn and counts its choices; it does not route any turn.'),
    controls(data, draft, tell),
  ];
  return section('Shadow', { key: 'shadow' }, from(shadow, 'the shadow policy', draw));
}
