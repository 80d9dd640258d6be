// Numbers as people read them. Each is a [number, unit] pair, so that units can be set apart and columns line up.

const NONE = ['–', ''];

function known(value) {
  return typeof value === 'number' && Number.isFinite(value);
}

/** Milliseconds: three digits that matter, in ms below a second; in the unit of `like`, where given. */
export function time(ms, like = ms) {
  if (!known(ms)) return NONE;
  const size = Math.abs(like);
  if (size >= 60_000) return [(ms / 60_000).toFixed(1), 'min'];
  if (size >= 10_000) return [(ms / 1000).toFixed(1), 's'];
  if (size >= 999.5) return [(ms / 1000).toFixed(2), 's'];
  return [size >= 9.95 || size < 0.05 ? ms.toFixed(0) : ms.toFixed(1), 'ms'];
}

/** Numbers of things: 950, 12.3 k, 4.56 M. */
export function count(value) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 999_950) return [(value / 1e6).toFixed(size >= 99.95e6 ? 0 : size >= 9.995e6 ? 1 : 2), 'M'];
  if (size >= 9_999.5) return [(value / 1e3).toFixed(size >= 99_950 ? 0 : 1), 'k'];
  return [Number.isInteger(value) ? value.toLocaleString('en-GB') : value.toFixed(size < 10 ? 1 : 0), ''];
}

/** The same with a unit of its own. */
export function tokens(value) {
  const [number, scale] = count(known(value) ? Math.round(value) : value);
  return number === '–' ? NONE : [number, scale === '' ? 'tok' : `${scale} tok`];
}

/** A share, in percent. Nearly all is not all. */
export function share(value) {
  if (!known(value)) return NONE;
  const percent = value * 100;
  if (percent > 99.9 && percent < 100) return [Math.min(99.99, Math.floor(percent * 100) / 100).toFixed(2), '%'];
  return [percent.toFixed(1), '%'];
}

/** Per second. */
export function rate(value) {
  if (!known(value)) return NONE;
  return [value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2), '/s'];
}

/** A number with so many significant digits. */
export function plain(value, digits = 3) {
  if (!known(value)) return NONE;
  return [Number(value.toPrecision(digits)).toString(), ''];
}

/** Both in one string, for labels. */
export function text([number, unit]) {
  return unit ? `${number} ${unit}` : number;
}

/** A moment today, by the machine's clock, to the second. */
export function clock(unixMs) {
  return new Date(unixMs).toLocaleTimeString('en-GB');
}

/** A moment; with its day where that is not today's. */
export function moment(unixMs) {
  const when = new Date(unixMs);
  const today = when.toDateString() === new Date().toDateString();
  // Sweden writes days as ISO 8601 does, here in the machine's time zone, as the clock is.
  return today ? clock(unixMs) : `${when.toLocaleDateString('sv-SE')} ${clock(unixMs)}`;
}

/** How long: 5 s, 3 min, 2 h, 4 d. */
export function span(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172_800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86_400)} d`;
}
