// A router with simulated engines behind it, traffic through it, and a browser in front of it.

import { spawn } from 'node:child_process';
import { createRequire } from 'node:module';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const require = createRequire(join(process.env.TAILROUTE_CONSOLE, 'package.json'));
const { chromium } = require('playwright-core');
export const AXE = require.resolve('axe-core/axe.min.js');
const BIN = process.env.TAILROUTE_BIN;
export const SHOTS = process.env.TAILROUTE_SHOTS;
/** A machine may be busy with other things. What is waited for takes seconds on one that is not. */
export const PATIENCE_MS = 90_000;

/** Waits until something is so. Returns what it was that made it so. */
export async function until(what, is) {
  const end = Date.now() + PATIENCE_MS;
  let last;
  while (Date.now() < end) {
    try {
      last = await is();
      if (last) return last;
    } catch (error) {
      last = error;
    }
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error(`in vain, for ${PATIENCE_MS / 1000} s: ${what}; last: ${last}`);
}

/** Starts a program, and waits until it says where it listens. */
async function start(program, args, says) {
  const child = spawn(join(BIN, program), args, { stdio: ['ignore', 'pipe', 'pipe'] });
  let said = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (data) => {
      said = (said + data).slice(-20_000);
    });
  }
  const found = await until(`${program} listens`, () => {
    if (child.exitCode !== null) throw new Error(said);
    return says.exec(said);
  });
  return { child, found, log: () => said };
}

export function engine(...more) {
  return start('sim-engine', ['--listen', '127.0.0.1:0', '--capacity-blocks', '4096', '--time-scale', '4', ...more], /listens on (http:\S+)/);
}

/** A program's answer on standard output and standard error. */
function run(program, args) {
  return new Promise((resolve, reject) => {
    const child = spawn(join(BIN, program), args);
    let [out, err] = ['', ''];
    child.stdout.on('data', (data) => (out += data));
    child.stderr.on('data', (data) => (err += data));
    child.on('error', reject);
    child.on('close', (code) => (code === 0 ? resolve([out, err]) : reject(new Error(err))));
  });
}

/** A token of each role, and the file that lets them in. */
export async function tokens(folder) {
  const made = {};
  let file = '';
  for (const role of ['read', 'operate', 'admin']) {
    const [section, secret] = await run('tailroute', ['key', 'new', '--role', role, `the-${role}`]);
    file += section;
    [made[role]] = /tr-\w+/.exec(secret);
  }
  const path = join(folder, 'tokens.toml');
  writeFileSync(path, file, { mode: 0o600 });
  return { made, path };
}

export class Stage {
  constructor() {
    this.folder = mkdtempSync(join(tmpdir(), 'tailroute-console-'));
    this.processes = [];
    this.agent = new http.Agent({ keepAlive: true });
    this.playing = true;
    this.turns = 0;
  }

  async open({ engines = 4, guarded = false, snapshot = false } = {}) {
    this.engines = await Promise.all(Array.from({ length: engines }, () => engine()));
    this.processes.push(...this.engines.map(({ child }) => child));
    let config = '[server]\nlisten = "127.0.0.1:0"\n[admin]\nlisten = "127.0.0.1:0"\n';
    if (guarded) {
      const { made, path } = await tokens(this.folder);
      this.tokens = made;
      config += `tokens_file = ${JSON.stringify(path)}\n`;
    }
    if (snapshot) {
      this.snapshot = join(this.folder, 'router.snapshot');
      config += `[index]\nsnapshot_path = ${JSON.stringify(this.snapshot)}\n`;
    }
    config += '[objective]\nttft_ms = 400\n[[objective.classes]]\nname = "batch"\nttft_ms = 30000\n';
    config += this.engines.map(({ found }, at) => `[[workers]]\nname = "gpu-${at}"\nurl = "${found[1]}"\ncapacity_tokens = 65536\n`).join('');
    this.config = join(this.folder, 'router.toml');
    writeFileSync(this.config, config);
    return this.serve();
  }

  async serve() {
    this.router = await start('tailroute', ['serve', '--config', this.config], /serving address=(\S+) admin_address=(\S+)/);
    this.processes.push(this.router.child);
    const [, data, admin] = this.router.found;
    this.data = new URL(`http://${data}`);
    this.admin = `http://${admin}`;
    return this;
  }

  /** Ends the router and starts it again, so much later by its own history. Returns the history that it had written. */
  async restart({ later_ms: later = 0 } = {}) {
    const { child } = this.router;
    const ended = new Promise((resolve) => child.once('exit', resolve));
    child.kill('SIGTERM');
    await ended;
    const path = `${this.snapshot}.history`;
    const past = JSON.parse(readFileSync(path, 'utf8'));
    for (const one of [...past.samples, ...past.marks]) one.at_unix_ms -= later;
    writeFileSync(path, JSON.stringify(past));
    await this.serve();
    return past;
  }

  /** A turn, as a client sends it. */
  turn(conversation, messages, headers = {}) {
    const body = JSON.stringify({ model: 'sim', stream: true, stream_options: { include_usage: true }, max_tokens: 12, messages });
    const options = {
      agent: this.agent, method: 'POST', hostname: this.data.hostname, port: this.data.port, path: '/v1/chat/completions',
      headers: { 'content-type': 'application/json', 'x-session-id': conversation, 'content-length': Buffer.byteLength(body), ...headers },
    };
    return new Promise((resolve) => {
      const request = http.request(options, (response) => {
        response.resume();
        response.on('close', () => {
          this.turns += 1;
          resolve(response);
        });
      });
      request.on('error', () => setTimeout(() => resolve(null), 200));
      request.end(body);
    });
  }

  /** Conversations that go on until the end; every tenth turn wants what nobody can give it. */
  traffic(clients = 4) {
    const word = (n) => Math.abs(Math.sin(n) * 1e9).toString(36).slice(0, 6);
    const talk = async (client) => {
      for (let number = 0; this.playing; number += 1) {
        const messages = [];
        for (let turn = 0; turn < 4 && this.playing; turn += 1) {
          const words = Array.from({ length: 300 + 200 * client }, (_, at) => word(client * 1e6 + number * 1e4 + turn * 1e3 + at));
          messages.push({ role: 'user', content: words.join(' ') });
          const headers = (number * 4 + turn) % 10 === 0 ? { 'x-slo-ttft-ms': '1' } : {};
          await this.turn(`client-${client}-${number}`, messages, headers);
          messages.push({ role: 'assistant', content: 'as you say' });
          await new Promise((resolve) => setTimeout(resolve, 150));
        }
      }
    };
    this.talking = Array.from({ length: clients }, (_, client) => talk(client));
  }

  /** Calls the admin port. */
  async call(path, { method = 'GET', body, headers = {} } = {}) {
    const fields = { ...headers };
    if (this.tokens) fields.authorization = `Bearer ${this.tokens.admin}`;
    if (body !== undefined) fields['content-type'] = 'application/json';
    const response = await fetch(this.admin + path, { method, headers: fields, body: body === undefined ? undefined : JSON.stringify(body) });
    return { status: response.status, json: await response.json() };
  }

  async close() {
    this.playing = false;
    for (const child of this.processes) child.kill('SIGKILL');
    await Promise.all(this.talking ?? []);
    this.agent.destroy();
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** A browser, and pages of it that tell what went wrong on them. */
export class Browser {
  async open() {
    const flags = '--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync --disable-dev-shm-usage';
    this.browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: flags.split(' '), timeout: PATIENCE_MS });
    return this;
  }

  /** A page of the console, in a profile of its own. `wrong` collects what no page may do. */
  async page(stage, hash, { width = 1280, scheme = 'light', expected = [] } = {}) {
    const context = await this.browser.newContext({ viewport: { width, height: 900 }, colorScheme: scheme, reducedMotion: 'reduce' });
    context.setDefaultTimeout(PATIENCE_MS);
    const page = await context.newPage();
    const wrong = [];
    page.on('console', (message) => {
      const text = `${message.text()} ${message.location().url}`;
      if (['error', 'warning'].includes(message.type()) && !expected.some((one) => text.includes(one))) wrong.push(text);
    });
    page.on('pageerror', (error) => wrong.push(error.stack));
    await page.addInitScript(() => {
      addEventListener('securitypolicyviolation', (event) => console.error(`forbidden by the policy: ${event.violatedDirective} ${event.blockedURI}`));
    });
    await page.goto(`${stage.admin}/console/#/${hash}`);
    return { page, wrong, close: () => context.close() };
  }

  async close() {
    await this.browser?.close();
  }
}

/** Goes on with Tab until something has the focus. */
export async function tabTo(page, locator, { back = false } = {}) {
  for (let presses = 0; presses < 80; presses += 1) {
    if (await locator.evaluate((node) => node === document.activeElement)) return;
    await page.keyboard.press(back ? 'Shift+Tab' : 'Tab');
  }
  throw new Error(`Tab does not lead to ${locator}`);
}
