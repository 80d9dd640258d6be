// Calls to the admin port that this page came from, and what can come of them.

const STORED = 'tailroute.token';
const PATIENCE_MS = 10_000;

/** Why a call came to nothing. `kind`: offline, token, role, missing, problem. */
export class Failure extends Error {
  constructor(kind, message, { status, problem } = {}) {
    super(message);
    this.kind = kind;
    this.status = status;
    this.errors = problem?.errors ?? [];
    this.type = problem?.type;
  }
}

/** The token, kept for as long as this tab lives. */
export const token = {
  get() {
    return sessionStorage.getItem(STORED);
  },
  set(value) {
    if (value) sessionStorage.setItem(STORED, value);
    else sessionStorage.removeItem(STORED);
  },
};

const KINDS = { 401: 'token', 403: 'role', 404: 'missing' };

async function failure(response) {
  let problem = null;
  try {
    problem = await response.json();
  } catch {
    // Not every answer on the way is the router's.
  }
  const kind = KINDS[response.status] ?? 'problem';
  const message = problem?.detail ?? `the answer was ${response.status} ${response.statusText}`;
  return new Failure(kind, message, { status: response.status, problem });
}

/** Asks. Returns the response, if it is a good one. */
export async function ask(path, { method = 'GET', body, headers = {}, signal } = {}) {
  const known = token.get();
  const fields = { ...headers };
  if (known) fields.authorization = `Bearer ${known}`;
  if (body !== undefined) fields['content-type'] = 'application/json';
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: fields,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal ?? AbortSignal.timeout(PATIENCE_MS),
      cache: 'no-store',
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Failure('offline', 'the router does not answer');
  }
  if (!response.ok) throw await failure(response);
  return response;
}

/** The answer's JSON. */
export async function json(path, options) {
  const response = await ask(path, options);
  try {
    return await response.json();
  } catch {
    throw new Failure('offline', 'the answer broke off');
  }
}

/** The answer's text. */
export async function text(path, options) {
  const response = await ask(path, options);
  try {
    return await response.text();
  } catch {
    throw new Failure('offline', 'the answer broke off');
  }
}
