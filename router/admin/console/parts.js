// What pages have in common: how a number stands, how nothing looks, how a change is asked for.

import { changed } from './live.js';
import { term } from './terms.js';
import { h } from './view.js';

/** A number with its unit set apart. */
export function number([value, unit], props = {}) {
  return h('span', { ...props, class: `number ${props.class ?? ''}` }, value, unit ? h('span', { class: 'unit' }, ` ${unit}`) : null);
}

/** Longest name that is shown whole. */
const LONGEST_NAME = 30;

/** A worker's name. A long one loses its middle: names of pods differ at the end. */
export function workerName(name) {
  const kept = Math.floor((LONGEST_NAME - 1) / 2);
  const shown = name.length > LONGEST_NAME ? `${name.slice(0, kept)}…${name.slice(-kept)}` : name;
  return h('span', { class: 'name', title: name }, shown);
}

/** One figure with its name, and what it is compared with. */
export function figure(name, value, { note, level, symbol } = {}) {
  return h(
    'div',
    { class: `figure ${level ?? ''}` },
    h('dt', {}, name, symbol ? [' ', term(symbol)] : null),
    h('dd', {}, number(value), note ? h('span', { class: 'note' }, note) : null),
  );
}

/** Figures side by side. */
export function figures(...all) {
  return h('dl', { class: 'figures' }, all);
}

/** A state in a word: colour is never all that tells. */
export function chip(word, level) {
  return h('span', { class: `chip ${level}` }, word);
}

/** A part of a page. */
export function section(title, { note, tools, key } = {}, ...children) {
  return h(
    'section',
    { key },
    h('div', { class: 'section-head' }, h('h2', {}, title), note ? h('p', { class: 'note' }, note) : null, tools ?? null),
    children,
  );
}

function state(kind, title, detail, action) {
  return h('div', { class: `state ${kind}` }, h('p', { class: 'state-title' }, title), detail ? h('p', {}, detail) : null, action ?? null);
}

/** Nothing there, which is well. */
export function empty(title, detail, action) {
  return state('empty', title, detail, action);
}

/** Not known yet. */
export function loading(what) {
  return h('div', { class: 'state loading', 'aria-busy': 'true' }, h('p', {}, `Asking for ${what} …`), h('span', { class: 'bars', 'aria-hidden': 'true' }));
}

/** What a failed call comes to for who looks. */
export function failed(failure, again) {
  const retry = again ? h('button', { type: 'button', onclick: again }, 'Try again') : null;
  if (failure.kind === 'missing') return state('missing', 'Not available here', failure.message, retry);
  if (failure.kind === 'role') return state('missing', 'Your token may not see this', failure.message);
  if (failure.kind === 'offline') return state('failed', 'The router does not answer', `${failure.message}.`, retry);
  return state('failed', 'Request failed', failure.message, retry);
}

/** A result that is not to be relied on. */
export function unreliable(detail) {
  return state('missing', 'Preview not reliable', detail);
}

/** What a source says: its data drawn, or the state that it is in. Data outlives a failure. */
export function from(source, what, draw) {
  if (source.data !== null && source.failure?.kind !== 'missing') return draw(source.data);
  if (source.failure) return failed(source.failure, () => source.refresh());
  return loading(what);
}

const NARROW = matchMedia('(max-width: 860px)');
const FEW = { narrow: 8, wide: 25 };
const unfolded = new Map();

/** Lists are short again on the next page. */
export function fold() {
  unfolded.clear();
}

/** A table that becomes a list of cards where the page is narrow. `more`: a key; the table then shows some rows first, `few` as cards. */
export function table({ more, few: cards = FEW.narrow, rows, ...rest }) {
  if (!more) return drawn({ rows, ...rest });
  const few = NARROW.matches ? cards : FEW.wide;
  const shown = few + (unfolded.get(more) ?? 0);
  const grow = () => {
    unfolded.set(more, shown - few + FEW.wide);
    changed();
  };
  const left = rows.length - shown;
  return [
    drawn({ rows: rows.slice(0, shown), ...rest }),
    left > 0 ? h('p', { class: 'more', key: `more ${more}` }, h('button', { type: 'button', onclick: grow }, `Show ${Math.min(left, FEW.wide)} more`, h('span', { class: 'unseen' }, ` of ${rest.caption}`))) : null,
  ];
}

/** Roles are written out, because styles that make cards of rows take them away. */
function drawn({ caption, columns, rows, sort, onsort, busy }) {
  const head = columns.map((column) => {
    const sorted = sort?.by === column.key;
    const label = column.sort && onsort
      ? h('button', { type: 'button', class: 'sort', onclick: () => onsort(column.key) }, column.name, h('span', { 'aria-hidden': 'true' }, sorted ? (sort.down ? ' ↓' : ' ↑') : ''))
      : column.hidden ? h('span', { class: 'unseen' }, column.name) : column.name;
    return h('th', {
      key: column.key, scope: 'col', role: 'columnheader', class: column.class, title: column.title,
      'aria-sort': sorted ? (sort.down ? 'descending' : 'ascending') : undefined,
    }, label, symbol(column));
  });
  const body = rows.map((row) => h('tr', { key: row.key, role: 'row', class: row.onclick ? `${row.class ?? ''} link` : row.class, onclick: row.onclick && ((event) => chosen(event, row)) },
    columns.map((column) => cell(column, row.cells[column.key]))));
  return h(
    'table',
    { role: 'table', 'aria-busy': busy ? 'true' : undefined },
    h('caption', { class: 'unseen' }, caption),
    h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' }, head)),
    h('tbody', { role: 'rowgroup' }, body),
  );
}

function symbol(column) {
  return column.term ? [column.name ? ' ' : '', term(column.term)] : null;
}

/** A click on a row, but for its controls and for text that is being selected. */
function chosen(event, row) {
  if (event.target.closest('a, button') || getSelection().toString()) return;
  row.onclick();
}

function cell(column, content) {
  const name = column.hidden ? null : h('span', { class: 'cell-name' }, column.name, symbol(column));
  return column.head
    ? h('th', { key: column.key, scope: 'row', role: 'rowheader', class: column.class }, content)
    : h('td', { key: column.key, role: 'cell', class: column.class }, name, content);
}

let fields = 0;
const names = new Map();

/** An id that stays the same for a name. */
export function id(name) {
  if (!names.has(name)) names.set(name, `f${(fields += 1)}`);
  return names.get(name);
}

/** A labelled control with what it means and what is wrong with it. */
export function field(name, { label, symbol, note, error, control }) {
  const [own, noteId, errorId] = [id(name), id(`${name} note`), id(`${name} error`)];
  const described = [note && noteId, error && errorId].filter(Boolean).join(' ') || undefined;
  const drawn = { ...control, props: { ...control.props, id: own, 'aria-describedby': described, 'aria-invalid': error ? 'true' : undefined } };
  return h(
    'div',
    { class: 'field', key: name },
    symbol ? h('span', { class: 'labels' }, h('label', { for: own }, label), ' ', term(symbol, '?')) : h('label', { for: own }, label),
    drawn,
    note ? h('p', { class: 'note', id: noteId }, note) : null,
    error ? h('p', { class: 'error', id: errorId }, error) : null,
  );
}

/** What went wrong with a change, in words and by field. */
export function refusal(failure) {
  if (!failure) return null;
  const known = failure.errors?.length ? failure.errors : null;
  return h(
    'div',
    { class: 'refusal', role: 'alert' },
    h('p', {}, failure.kind === 'offline' ? 'The router did not answer: the change may or may not have been made. Check before you try again.' : known ? 'Nothing was changed:' : failure.message),
    known ? h('ul', {}, known.map(({ field, detail, hint }) => h('li', {}, h('code', {}, field || 'document'), ` ${detail}`, hint ? ` (${hint})` : ''))) : null,
  );
}

/** A dialog over the page; Escape closes it, and the focus goes back to where it was. */
export function dialog({ title, onclose, wide }, ...children) {
  const titleId = id('dialog title');
  return h(
    'dialog',
    { key: 'dialog', modal: true, class: wide === true ? 'wide' : wide || '', 'aria-labelledby': titleId, onclose },
    h('div', { class: 'dialog-head' }, h('h2', { id: titleId }, title), h('button', { type: 'button', class: 'quiet', 'aria-label': 'Close', onclick: onclose }, '✕')),
    children,
  );
}
