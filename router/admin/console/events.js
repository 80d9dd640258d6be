// What the router says as it happens. The browser's own EventSource sends no token, so the stream is read here.

import { ask } from './api.js';
import { changed } from './live.js';

const KEPT = 300;
const RESTS_MS = [1000, 2000, 5000, 10_000];

/** `state`: idle, connecting, open, waiting, failed. Newest first. */
export const stream = { state: 'idle', failure: null, events: [], missed: 0 };
let stopping = null;

/** One event of the wire; nothing for comments. */
function parse(block) {
  const event = { kind: 'message', data: '' };
  for (const line of block.split('\n')) {
    if (line.startsWith('event:')) event.kind = line.slice(6).trim();
    else if (line.startsWith('data:')) event.data += line.slice(5).trim();
  }
  if (event.data === '') return null;
  try {
    return { ...event, data: JSON.parse(event.data) };
  } catch {
    return null;
  }
}

function take({ kind, data }, onevent) {
  if (kind === 'lagged') {
    stream.missed += data.missed ?? 0;
  } else {
    stream.events.unshift(data);
    if (stream.events.length > KEPT) stream.events.pop();
    onevent(data);
  }
  changed();
}

async function follow(signal, onevent) {
  const response = await ask('/admin/v1/events', { signal });
  Object.assign(stream, { state: 'open', failure: null });
  changed();
  const decoder = new TextDecoder();
  let rest = '';
  for await (const bytes of response.body) {
    rest += decoder.decode(bytes, { stream: true });
    const blocks = rest.split('\n\n');
    rest = blocks.pop();
    for (const event of blocks.map(parse)) if (event) take(event, onevent);
  }
}

/** Listens until it is told to stop, and again when the stream ends. */
export async function listen(onevent) {
  if (stopping) return;
  stopping = new AbortController();
  const { signal } = stopping;
  let failures = 0;
  while (!signal.aborted) {
    stream.state = 'connecting';
    try {
      await follow(signal, onevent);
      failures = 0;
    } catch (failure) {
      if (signal.aborted) return;
      const over = failure.kind === 'missing' || failure.kind === 'role' || failure.kind === 'token';
      Object.assign(stream, { state: over ? 'failed' : 'waiting', failure });
      changed();
      if (over) return;
    }
    stream.state = 'waiting';
    changed();
    const rest = RESTS_MS[Math.min(failures, RESTS_MS.length - 1)];
    failures += 1;
    await new Promise((resolve) => {
      setTimeout(resolve, rest);
      signal.addEventListener('abort', resolve, { once: true });
    });
  }
}

/** Listens no more, and forgets what was heard. */
export function silence() {
  stopping?.abort();
  stopping = null;
  Object.assign(stream, { state: 'idle', failure: null, events: [], missed: 0 });
}
