// Small charts as SVG, in the page's own colours (classes, no inline style). Each has a sentence for who does not see it.

import { h } from './view.js';

let WIDTH = 640;

/** Charts are drawn for so much room, so that their text is as large as any. */
export function fit(width) {
  WIDTH = Math.max(280, Math.round(width));
}

/** Round upper end of an axis: 1, 2, 5 or 10 times a power of ten. */
export function nice(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 1.5, 2, 3, 5, 7.5, 10].find((step) => value <= step * power * 1.0001);
  return step * power;
}

function path(points) {
  let drawn = '';
  let up = true;
  for (const [x, y] of points) {
    if (y === undefined) {
      up = true;
      continue;
    }
    drawn += `${up ? 'M' : 'L'}${x.toFixed(1)} ${y.toFixed(1)}`;
    up = false;
  }
  return drawn;
}

/** A line of the last values, no axes. `values`: [[ms, value]], of which those since `from` are drawn. */
export function spark(values, { label, from, to, most, width = 96, height = 24 }) {
  const x = (at) => 1 + ((at - from) / Math.max(1, to - from)) * (width - 4);
  const y = (value) => height - 2 - (Math.min(value, most) / Math.max(most, 1e-9)) * (height - 4);
  const points = values.filter(([at]) => at >= from).map(([at, value]) => [x(at), y(value)]);
  const last = points.at(-1);
  return h(
    'svg',
    { class: 'spark', viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': label },
    h('path', { class: 'line', d: path(points) }),
    last ? h('circle', { class: 'dot', cx: last[0].toFixed(1), cy: last[1].toFixed(1), r: 2 }) : null,
  );
}

/** How much of something is used; `mark` is a limit within it. */
export function meter(value, { label, warn, bad, width = 64 }) {
  const filled = Math.max(0, Math.min(1, value || 0)) * width;
  const level = value >= bad ? 'bad' : value >= warn ? 'warn' : 'good';
  return h(
    'svg',
    { class: `meter ${level}`, viewBox: `0 0 ${width} 6`, width, height: 6, role: 'img', 'aria-label': label },
    h('rect', { class: 'track', width, height: 6, rx: 3 }),
    h('rect', { class: 'fill', width: filled.toFixed(1), height: 6, rx: Math.min(3, filled / 2).toFixed(1) }),
  );
}

function frame({ height, left, top, ticks, from, to, clock }) {
  const bottom = height - 18;
  const y = (share) => bottom - share * (bottom - top);
  const lines = ticks.map(({ at, text }) => [
    h('line', { class: 'grid', x1: left, x2: WIDTH, y1: y(at).toFixed(1), y2: y(at).toFixed(1) }),
    h('text', { class: 'tick', x: left - 6, y: (y(at) + 3.5).toFixed(1), 'text-anchor': 'end' }, text),
  ]);
  const times = [0, 0.5, 1].map((share) => {
    const anchor = ['start', 'middle', 'end'][share * 2];
    const x = left + share * (WIDTH - left);
    return h('text', { class: 'tick', x, y: height - 4, 'text-anchor': anchor }, clock(from + share * (to - from)));
  });
  return [lines, times];
}

/** Three ticks; two where the middle would not be a whole number and has to be one. */
function ticksTo(most, text, whole) {
  return (whole && most % 2 ? [0, 1] : [0, 0.5, 1]).map((share) => ({ at: share, text: text(share * most, most) }));
}

/** A scale from zero to `most`; a logarithmic one where a limit would lie at the foot of it. */
function scale(values, limit, most, text) {
  if (!limit || most <= 10 * limit.value) return { share: (value) => Math.min(value, most) / most, ticks: ticksTo(most, text) };
  const low = 10 ** Math.floor(Math.log10(Math.min(limit.value / 2, ...values.filter((value) => value > 0))));
  const share = (value) => Math.max(0, Math.log(Math.min(value, most) / low) / Math.log(most / low));
  const ticks = [];
  for (let value = low; value <= most; value *= 10) ticks.push({ at: share(value), text: text(value, value) });
  return { share, ticks };
}

/** Changes, as upright lines whose text shows on hover. `marks`: [{at, kind, text}]. */
function marked({ marks = [], from, to, left, top, height }) {
  return marks.filter(({ at }) => at >= from && at <= to).map(({ at, kind, text }) => {
    const x = (left + ((at - from) / Math.max(1, to - from)) * (WIDTH - left)).toFixed(1);
    return h('g', { class: `mark ${kind}` },
      h('title', {}, text),
      h('line', { x1: x, x2: x, y1: top, y2: height - 18 }),
      h('circle', { cx: x, cy: top, r: 3 }));
  });
}

/** Columns to choose from: [{from, until, href, text}]. Tab leads to the last one, the arrow keys to the others. */
function columns(spots, { from, to, left, top, height }) {
  const x = (at) => left + ((Math.min(Math.max(at, from), to) - from) / Math.max(1, to - from)) * (WIDTH - left);
  return spots.map((spot, at) =>
    h('a', { class: 'spot', href: spot.href, 'aria-label': spot.text, tabindex: at === spots.length - 1 ? 0 : -1 },
      h('title', {}, spot.text),
      h('rect', { x: x(spot.from).toFixed(1), y: top, width: Math.max(1, x(spot.until) - x(spot.from)).toFixed(1), height: height - 18 - top })));
}

function walk(event) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const spots = [...event.currentTarget.querySelectorAll('.spot')];
  const next = step && spots[spots.indexOf(event.target) + step];
  if (!next) return;
  event.preventDefault();
  next.focus();
}

/** Lines over time. `series`: [{name, class, points: [[ms, value]]}]; `limit`: a line across, with its name. */
export function lines({ label, series, limit, marks, spots = [], from, to, text, clock, height = 190 }) {
  const [left, top] = [58, 12];
  const values = series.flatMap(({ points }) => points.map(([, value]) => value)).filter((value) => value !== undefined);
  const most = nice(Math.max(...values, (limit?.value ?? 0) * 1.15, 1e-9));
  const x = (at) => left + ((at - from) / Math.max(1, to - from)) * (WIDTH - left);
  const { share, ticks } = scale(values, limit, most, text);
  const y = (value) => height - 18 - share(value) * (height - 18 - top);
  const drawn = series.map(({ name, points }) => {
    const placed = points
      .filter(([at]) => at >= from)
      .map(([at, value]) => [x(at), value === undefined ? undefined : y(value)]);
    const last = placed.findLast(([, at]) => at !== undefined);
    return [
      h('path', { class: `line ${name}`, d: path(placed) }),
      last ? h('circle', { class: `dot ${name}`, cx: last[0].toFixed(1), cy: last[1].toFixed(1), r: 2.5 }) : null,
    ];
  });
  const across = limit && [
    h('line', { class: 'limit', x1: left, x2: WIDTH, y1: y(limit.value), y2: y(limit.value) }),
    h('text', { class: 'limit-name', x: left + 6, y: y(limit.value) - 4 }, limit.name),
  ];
  return h(
    'svg',
    { class: 'chart', viewBox: `0 0 ${WIDTH} ${height}`, role: 'group', 'aria-label': label, onkeydown: walk },
    frame({ height, left, top, ticks, from, to, clock }),
    across,
    drawn,
    columns(spots, { from, to, left, top, height }),
    marked({ marks, from, to, left, top, height }),
  );
}

/** Stacked bars of whole numbers over time. `bars`: [{at, parts: [[name, value, href]]}]. */
export function stacks({ label, bars, step, marks, spots = [], from, to, text, clock, height = 150 }) {
  const [left, top] = [58, 12];
  const sums = bars.map(({ parts }) => parts.reduce((sum, [, value]) => sum + value, 0));
  const most = Math.ceil(nice(Math.max(...sums, 1)));
  const width = Math.max(1, (step / Math.max(1, to - from)) * (WIDTH - left) - 1);
  const x = (at) => left + ((at - from) / Math.max(1, to - from)) * (WIDTH - left) - width;
  const scale = (height - 18 - top) / most;
  const drawn = bars.map(({ at, parts }) => {
    let foot = height - 18;
    return parts
      .filter(([, value]) => value > 0)
      .map(([name, value, href]) => {
        foot -= value * scale;
        const [left, high] = [x(at).toFixed(1), (value * scale).toFixed(1)];
        const words = `${clock(at)}: ${text(value)} late, ${name}`;
        return h('a', { href, tabindex: -1, 'aria-label': words }, h('title', {}, words),
          h('rect', { class: `part ${name}`, x: left, y: foot.toFixed(1), width: width.toFixed(1), height: high }));
      });
  });
  return h(
    'svg',
    { class: 'chart', viewBox: `0 0 ${WIDTH} ${height}`, role: 'group', 'aria-label': label, onkeydown: walk },
    frame({ height, left, top, ticks: ticksTo(most, text, true), from, to, clock }),
    columns(spots, { from, to, left, top, height }),
    drawn,
    marked({ marks, from, to, left, top, height }),
  );
}

/** One quantity taken apart, as a bar. `parts`: [[name, value]]. */
export function split(parts, { label, most, limit, height = 12 }) {
  const sum = Math.max(most ?? 0, parts.reduce((sum, [, value]) => sum + value, 0), limit ?? 0, 1e-9);
  let at = 0;
  const drawn = parts
    .filter(([, value]) => value > 0)
    .map(([name, value]) => {
      const x = (at / sum) * WIDTH;
      at += value;
      const width = ((value / sum) * WIDTH).toFixed(1);
      return h('rect', { class: `part ${name}`, x: x.toFixed(1), y: 0, width, height });
    });
  const mark = limit ? h('line', { class: 'limit', x1: (limit / sum) * WIDTH, x2: (limit / sum) * WIDTH, y1: 0, y2: height }) : null;
  return h(
    'svg',
    { class: 'split', viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': label },
    h('rect', { class: 'track', width: WIDTH, height }),
    drawn,
    mark,
  );
}

/** From what is to what would be: two dots on a scale that begins at zero. */
export function shift({ now, then, most, better, label, limit }) {
  const [width, height] = [220, 22];
  const x = (value) => 4 + (Math.min(value, most) / Math.max(most, 1e-9)) * (width - 8);
  const direction = better === undefined ? 'same' : better ? 'better' : 'worse';
  return h(
    'svg',
    { class: `shift ${direction}`, viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': label },
    h('line', { class: 'grid', x1: 4, x2: width - 4, y1: 11, y2: 11 }),
    limit ? h('line', { class: 'limit', x1: x(limit), x2: x(limit), y1: 2, y2: 20 }) : null,
    h('line', { class: 'way', x1: x(now), x2: x(then), y1: 11, y2: 11 }),
    h('circle', { class: 'now', cx: x(now), cy: 11, r: 4 }),
    h('circle', { class: 'then', cx: x(then), cy: 11, r: 5 }),
  );
}
