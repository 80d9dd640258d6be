// What a change would have done to the turns that were captured last, and the capture that it takes.

import { json } from '../api.js';
import { shift } from '../chart.js';
import { count, share, text, time } from '../format.js';
import { changed, Source } from '../live.js';
import { failed, number, refusal, table, unreliable } from '../parts.js';
import { mayNot } from '../session.js';
import { h } from '../view.js';

const PATIENCE_MS = 120_000;
/** A change of less is none that anybody would see. */
const SAME = 0.005;

/** `state`: none, asking, there, failed. */
export const previewed = { state: 'none', result: null, failure: null, asked: null };

/** What is captured in memory. */
export const capture = new Source('/admin/v1/capture', { every: 5000 });
const starting = { busy: false, failure: null };

export function forgetPreview() {
  Object.assign(previewed, { state: 'none', result: null, failure: null, asked: null });
}

/** Scores the captured turns under these settings; with `anyway` also if the simulation is unlike what was measured. */
export async function preview(settings, tell, anyway = false) {
  Object.assign(previewed, { state: 'asking', result: null, failure: null, asked: settings });
  capture.refresh();
  changed();
  let found;
  try {
    const signal = AbortSignal.timeout(PATIENCE_MS);
    const result = await json('/admin/v1/policy/preview', { method: 'POST', body: { settings, anyway }, signal });
    found = { state: 'there', result };
    tell(`Preview: ${sentence(result)}`);
  } catch (failure) {
    found = { state: 'failed', failure };
  }
  // Something else may have been typed meanwhile.
  if (previewed.asked === settings) Object.assign(previewed, found);
  changed();
}

async function startCapture(tell) {
  Object.assign(starting, { busy: true, failure: null });
  changed();
  try {
    await json('/admin/v1/capture/start', { method: 'POST', body: { reason: 'to preview a change of weights' } });
    tell('Turns are captured from here on.');
    if (previewed.state === 'failed') forgetPreview();
    await capture.refresh();
  } catch (failure) {
    starting.failure = failure;
  }
  starting.busy = false;
  changed();
}

/** What is there to preview with. */
export function captured(tell) {
  const now = capture.data;
  if (!now) return capture.failure?.kind === 'missing' ? h('p', { class: 'note', key: 'captured' }, 'This version has no preview.') : null;
  if (now.turns > 0 || now.running) {
    const words = `${text(count(now.turns))} turns are captured${now.running ? '' : ', and no more are added'}.`;
    return h('p', { class: 'note', key: 'captured' }, words);
  }
  const why = mayNot('operate');
  return h('div', { key: 'captured', class: 'note' },
    h('p', {}, 'A preview needs captured turns, and none are captured yet. Only lengths are stored, never text. '),
    h('button', { type: 'button', disabled: Boolean(why) || starting.busy, title: why, onclick: () => startCapture(tell) }, 'Start a capture'),
    refusal(starting.failure));
}

/** A preview that failed. One that was refused as unlike the measurement can be asked for regardless. */
function unpreviewed({ failure, asked }, tell) {
  const unlike = failure.type === 'urn:tailroute:problem:unlike';
  return h('div', { key: 'preview', class: 'preview' }, unlike ? unreliable(failure.message) : failed(failure),
    unlike ? h('button', { type: 'button', onclick: () => preview(asked, tell, true) }, 'Preview anyway') : null);
}

export function view(tell) {
  if (previewed.state === 'asking') return h('p', { class: 'note', role: 'status', key: 'preview' }, 'The captured turns are played under both policies …');
  if (previewed.state === 'failed') return unpreviewed(previewed, tell);
  if (previewed.state === 'there') return h('div', { key: 'preview', class: 'preview' }, drawn(previewed.result));
  return null;
}

const ROWS = [
  ['p50_ms', 'p50', time], ['p95_ms', 'p95', time], ['p99_ms', 'p99', time], ['mean_ms', 'Mean', time],
  ['slo_share', 'Within objective', share], ['hit_ratio', 'Cached prompt', share],
];

function isShare(key) {
  return !key.endsWith('_ms');
}

function change(key, now, then) {
  if (isShare(key)) {
    const points = (then - now) * 100;
    if (Math.abs(points) < 0.05) return ['same', 'the same'];
    return [points > 0 ? 'better' : 'worse', `${points > 0 ? '+' : '−'}${Math.abs(points).toFixed(1)} pp`];
  }
  const relative = now > 0 ? then / now - 1 : 0;
  if (Math.abs(relative) < SAME) return ['same', 'the same'];
  return [relative < 0 ? 'better' : 'worse', `${relative > 0 ? '+' : '−'}${Math.abs(relative * 100).toFixed(1)} %`];
}

function sentence({ turns, baseline, proposed }) {
  const [, words] = change('p95_ms', baseline.p95_ms, proposed.p95_ms);
  return `over ${turns} turns p95 goes from ${text(time(baseline.p95_ms))} to ${text(time(proposed.p95_ms))}, ${words}.`;
}

function row([key, name, format], { baseline, proposed, objective_ms: objective }, longest) {
  const [now, then] = [baseline[key], proposed[key]];
  const [direction, words] = change(key, now, then);
  const better = direction === 'same' ? undefined : direction === 'better';
  const limit = isShare(key) || objective > longest ? undefined : objective;
  const label = `${name}: from ${text(format(now))} to ${text(format(then))}`;
  return {
    key,
    cells: {
      name,
      now: number(format(now)),
      drawn: shift({ now, then, most: isShare(key) ? 1 : longest, better, label, limit }),
      then: number(format(then)),
      change: h('span', { class: `change ${direction}` }, words),
    },
  };
}

/** The simulation beside what was measured. */
function checked({ check }) {
  if (!check) return h('p', { class: 'note', key: 'check' }, 'Too few turns were measured under the policy in force to compare the simulation with them.');
  const sides = (key, format) => `${text(format(check.measured[key]))} measured, ${text(format(check.simulated[key]))} simulated`;
  return h('p', { class: 'note', key: 'check' },
    `In force, over ${text(count(check.turns))} turns: p50 ${sides('p50_ms', time)}; p95 ${sides('p95_ms', time)}; within objective ${sides('slo_share', share)}.`);
}

function drawn(result) {
  const { turns, moved, better, worse, baseline, proposed } = result;
  const longest = Math.max(...[baseline, proposed].flatMap((side) => [side.p50_ms, side.p95_ms, side.p99_ms, side.mean_ms])) * 1.05;
  const columns = [
    { key: 'name', name: 'Figure', head: true },
    { key: 'now', name: 'In force', class: 'num' },
    { key: 'drawn', name: 'Effect', class: 'drawn' },
    { key: 'then', name: 'Changed', class: 'num' },
    { key: 'change', name: 'Difference', class: 'num' },
  ];
  return [
    h('h3', { key: 'title' }, 'Predicted effect'),
    checked(result),
    table({ caption: 'Predicted effect of the change on the captured turns', columns, rows: ROWS.map((one) => row(one, result, longest)) }),
    h('p', { class: 'note', key: 'turns' },
      `Over ${text(count(turns))} captured turns: ${text(count(moved))} go to another worker, ${text(count(better))} start sooner, ${text(count(worse))} later. Simulated; costs ${result.costs}.`),
  ];
}
