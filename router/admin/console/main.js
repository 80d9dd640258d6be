// The frame around the pages: who looks, which page, and whether what is shown is still true.

import { forget, metrics } from './history.js';
import { changed, STALE_MS, watch } from './live.js';
import { fit } from './chart.js';
import { listen, silence } from './events.js';
import { clock, count, moment, span, text, time } from './format.js';
import { slo } from './objective.js';
import { enter, leave, open, session } from './session.js';
import { fold, loading } from './parts.js';
import { h, render } from './view.js';
import { fleet } from './pages/fleet.js';
import { ttft } from './pages/ttft.js';
import { conversations } from './pages/conversations.js';
import { decisions } from './pages/decisions.js';
import { weights } from './pages/weights.js';
import { events, told } from './pages/events.js';

const PAGES = [fleet, ttft, conversations, decisions, weights, events];
const bar = document.getElementById('bar');
const banner = document.getElementById('banner');
const main = document.getElementById('main');
const said = document.getElementById('said');

let page = null;
let question = '';
let typed = '';
let entering = false;
let stale = false;

/** Says something to who listens instead of looking. */
export function say(sentence) {
  const line = document.createElement('p');
  line.textContent = sentence;
  said.append(line);
  while (said.childElementCount > 20) said.firstElementChild.remove();
}

function read() {
  const [name, query = ''] = location.hash.replace(/^#\/?/, '').split('?');
  return [PAGES.find((page) => page.path === name) ?? PAGES[0], query];
}

function turn() {
  const [next, query] = read();
  const moved = next !== page;
  if (moved) {
    fold();
    page?.sources().forEach((source) => source.stop());
    page?.leave?.();
  }
  if (moved || query !== question) {
    [page, question] = [next, query];
    if (session.state === 'open') begin();
  }
  document.title = `${page.title} · tailroute`;
  draw();
  if (moved) scrollTo(0, 0);
}

function begin() {
  metrics.start();
  slo.start();
  listen(heard);
  page.enter?.(new URLSearchParams(question), say);
  page.sources().forEach((source) => source.start());
}

function heard({ kind, subject, now }) {
  const [words] = told({ kind, subject, now });
  say(`${subject}: ${words}`);
  // What it is about is looked at again at once.
  page.sources().forEach((source) => source.refresh());
}

function end() {
  silence();
  [metrics, slo, ...page.sources()].forEach((source) => source.stop());
  page.leave?.();
}

function theme() {
  const chosen = document.documentElement.dataset.theme ?? 'system';
  const choose = (event) => {
    const { value } = event.target;
    if (value === 'system') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = value;
    try {
      localStorage.setItem('tailroute.theme', value);
    } catch {
      // It holds until the page is left.
    }
    draw();
  };
  const option = (value, name) => h('option', { value }, name);
  return h(
    'select',
    { class: 'theme', 'aria-label': 'Colours', value: chosen, onchange: choose },
    option('system', 'System'), option('light', 'Light'), option('dark', 'Dark'),
  );
}

function pulse() {
  if (session.state !== 'open' || !metrics.at) return h('span', { class: 'pulse' });
  return h('span', { class: `pulse ${stale ? 'stale' : 'live'}` }, stale ? 'stale' : 'live', ' ', h('time', {}, clock(metrics.at)));
}

function header() {
  const link = (one) =>
    h('a', { href: `#/${one.path}`, key: one.path, 'aria-current': one === page ? 'page' : undefined }, one.title);
  const who = session.who?.tokens
    ? h('span', { class: 'who' }, `${session.who.name} · ${session.who.role}`, h('button', { type: 'button', class: 'quiet', onclick: () => leave() }, 'Sign out'))
    : null;
  render(
    bar,
    h('a', { class: 'brand', href: '#/fleet', 'aria-label': 'tailroute, fleet' }, 'tailroute'),
    h('nav', { 'aria-label': 'Pages' }, session.state === 'open' ? PAGES.map(link) : null),
    h('div', { class: 'aside' }, pulse(), who, theme()),
  );
}

function age() {
  const old = metrics.at && metrics.state === 'failed' && metrics.failure.kind === 'offline' && Date.now() - metrics.at > STALE_MS;
  if (old !== stale && metrics.at) say(old ? 'The router does not answer. The figures are old.' : 'The router answers again.');
  stale = Boolean(old);
  document.body.toggleAttribute('data-stale', stale);
  const again = () => {
    metrics.refresh();
    page.sources().forEach((source) => source.refresh());
  };
  render(
    banner,
    stale
      ? h('p', {}, h('strong', {}, 'The router does not answer.'), ` What you see is from ${moment(metrics.at)}, ${span((Date.now() - metrics.at) / 1000)} ago. `, h('button', { type: 'button', onclick: again }, 'Try now'))
      : overloaded(),
  );
}

/** The banner of overload, which every page has. */
function overloaded() {
  const overload = session.state === 'open' ? slo.data?.overload : null;
  if (!overload) return null;
  const since = `since ${moment(overload.since_unix_ms)}`;
  const counts = [
    overload.late ? `${text(count(overload.late))} turns late` : null,
    overload.refused ? `${text(count(overload.refused))} requests refused` : null,
  ].filter(Boolean);
  return h('p', { class: 'overload' },
    h('strong', {}, `Overloaded: waits ${text(time(overload.wait_ms))} on ${overload.workers_over} of ${overload.workers_ready} workers`),
    ` ${since}; the objective is ${text(time(overload.objective_ms))}. ${counts.length ? `${counts.join(', ')}. ` : ''}`,
    'Add workers, or set ', h('code', {}, 'admission.shed'), ' to keep the turns that can be within objective.');
}

function door() {
  const submit = async (event) => {
    event.preventDefault();
    entering = true;
    draw();
    await enter(typed);
    entering = false;
    draw();
  };
  const wrong = session.refused ? h('p', { class: 'error', id: 'wrong', role: 'alert' }, 'This token is not known to the router.') : null;
  return h(
    'form',
    { class: 'door', onsubmit: submit, key: 'door' },
    h('h1', {}, 'Sign in'),
    h('p', {}, 'The admin port of this router requires a token. It is kept in this browser tab and sent only to this router.'),
    h('label', { for: 'token' }, 'Token'),
    h('input', { id: 'token', type: 'password', autocomplete: 'off', required: true, spellcheck: 'false', value: typed, 'aria-invalid': wrong ? 'true' : undefined, 'aria-describedby': wrong ? 'wrong' : undefined, oninput: (event) => { typed = event.target.value; } }),
    wrong,
    h('button', { type: 'submit', class: 'primary', disabled: entering }, entering ? 'Signing in …' : 'Sign in'),
    h('p', { class: 'note' }, 'No token yet? ', h('code', {}, 'tailroute key new --role read NAME'), ' makes one for admin.tokens_file.'),
  );
}

function unreachable() {
  return h(
    'div',
    { class: 'state failed' },
    h('h1', { class: 'state-title' }, 'The router does not answer'),
    h('p', {}, `${session.failure?.message ?? 'no answer'}. It is asked again every few seconds.`),
    h('button', { type: 'button', onclick: () => open() }, 'Try now'),
  );
}

function content() {
  if (session.state === 'asking') return loading('the session');
  if (session.state === 'locked') return door();
  if (session.state === 'offline') return unreachable();
  return [h('h1', { key: 'title' }, page.heading ?? page.title), page.view()];
}

let due = false;
let was = null;

function draw() {
  due = false;
  // A token that was taken back while somebody looked.
  const lost = [metrics, ...(page?.sources() ?? [])].find((source) => source.failure?.kind === 'token');
  if (lost && session.state === 'open') {
    lost.failure = null;
    open();
  }
  if (session.state !== was) {
    const before = was;
    was = session.state;
    if (was === 'open') begin();
    else if (before === 'open') {
      end();
      forget();
      [metrics, ...PAGES.flatMap((page) => page.sources())].forEach((source) => source.reset());
    }
    typed = '';
  }
  age();
  header();
  const style = getComputedStyle(main);
  fit(main.clientWidth - 2 * parseFloat(style.paddingLeft) - 2 - 2 * (main.clientWidth < 720 ? 12 : 16));
  render(main, content());
}

function soon() {
  if (due) return;
  due = true;
  requestAnimationFrame(draw);
}

watch(soon);
addEventListener('hashchange', turn);
addEventListener('resize', soon);
document.querySelector('.skip').addEventListener('click', (event) => {
  // The address says which page it is.
  event.preventDefault();
  main.focus();
});
// Ages go on while nothing comes; and a router that was away is asked for.
setInterval(() => {
  if (session.state === 'offline' && !document.hidden) open();
  changed();
}, 2500);
turn();
open();
