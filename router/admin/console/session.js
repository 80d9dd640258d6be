// Who looks, and what they may do.

import { json, token } from './api.js';
import { changed } from './live.js';

const ORDER = ['read', 'operate', 'admin'];

/** `state`: asking, open, locked, offline. `who`: {name, role, tokens}. */
export const session = { state: 'asking', who: null, failure: null, refused: false };

/** Asks who this is, with the token that is kept. */
export async function open() {
  try {
    const who = await json('/admin/v1/session');
    Object.assign(session, { state: 'open', who, failure: null, refused: false });
  } catch (failure) {
    const refused = failure.kind === 'token' && token.get() !== null;
    if (refused) token.set(null);
    const state = failure.kind === 'token' ? 'locked' : 'offline';
    Object.assign(session, { state, failure, refused: refused || (state === 'locked' && session.refused) });
  }
  changed();
  return session.state;
}

/** Tries a token. */
export function enter(value) {
  token.set(value.trim());
  return open();
}

/** Forgets the token. */
export function leave() {
  token.set(null);
  Object.assign(session, { state: 'locked', who: null, failure: null, refused: false });
  changed();
}

/** Whether whoever looks has this role, or a higher one. */
export function may(role) {
  return ORDER.indexOf(session.who?.role) >= ORDER.indexOf(role);
}

/** Why a control is switched off; nothing if it is not. */
export function mayNot(role) {
  return may(role) ? undefined : `This takes a token with the role ${role}; yours has ${session.who?.role ?? 'none'}.`;
}
