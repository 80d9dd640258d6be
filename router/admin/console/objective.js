// The objectives for time to first token, and how they are met.

import { text, time } from './format.js';
import { Source } from './live.js';

export const slo = new Source('/admin/v1/slo', { every: 5000 });

/** The objective that most turns have. */
export function limitOf(data) {
  const classes = data?.objective.classes ?? [];
  return classes.find(({ class: name }) => name === 'default')?.ttft_ms ?? classes.find(({ ttft_ms: ms }) => ms)?.ttft_ms;
}

/** The same as a line across a chart. */
export function limitLine(data) {
  const limit = limitOf(data);
  return limit ? { value: limit, name: `objective ${text(time(limit))}` } : undefined;
}

/** The address of the decisions on late turns of a time, in milliseconds since 1970. */
export function lateTurns({ from, until, cause, worker }) {
  const asked = new URLSearchParams({ late: 'true' });
  if (from) asked.set('from_unix_ms', Math.floor(from));
  if (until) asked.set('until_unix_ms', Math.ceil(until));
  if (cause) asked.set('cause', cause);
  if (worker) asked.set('worker', worker);
  return `#/decisions?${asked}`;
}
