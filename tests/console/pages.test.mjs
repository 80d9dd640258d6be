// Each page and dialog on a desktop and a phone, in both schemes, and with tokens.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { axe, browser, flow, inspect, play, POLICY, policy, settled, stage } from './flows.mjs';
import { PATIENCE_MS, Stage } from './stage.mjs';

// A change to undo, and a worker in trouble.
play(async () => {
  const { settings } = await policy();
  settings.weights.load = 1.1;
  await stage.call(POLICY, { method: 'PUT', body: { settings, reason: 'more load' }, headers: { 'if-match': '*' } });
  stage.engines[3].child.kill('SIGKILL');
});

const PAGES = ['fleet', 'ttft', 'conversations', 'decisions', 'weights', 'events'];

/** Dialogs: the page, and what opens them. */
const DIALOGS = [
  ['explanation', 'decisions?late=true', (page) => page.getByRole('button', { name: /^Explain / }).first()],
  ['worker', 'fleet', (page) => page.getByRole('button', { name: 'Manage gpu-3' })],
  ['join', 'fleet', (page) => page.getByRole('button', { name: 'Add a worker' })],
  ['undo', 'weights', (page) => page.getByRole('button', { name: /^Undo: / })],
];

/** Pages of cards on a phone end after so many pixels: lists are folded. */
const TALLEST = 3300;

for (const width of [1440, 390]) {
  for (const scheme of ['light', 'dark']) {
    flow(`every page and dialog at ${width} px, ${scheme}: accessible, and nothing sticks out`, 'fleet', { width, scheme }, async (page) => {
      await page.evaluate(axe);
      for (const name of PAGES) {
        const link = page.getByRole('navigation').locator(`a[href="#/${name}"]`);
        const cut = await link.evaluate((node) => node.scrollWidth > node.clientWidth || node.getBoundingClientRect().right > innerWidth);
        assert.equal(cut, false, `the link to ${name} is cut`);
        await link.click();
        await page.getByRole('navigation').locator(`a[href="#/${name}"][aria-current]`).waitFor();
        await settled(page);
        await inspect(page, `${name}-${width}-${scheme}`);
        const tall = await page.evaluate(() => document.documentElement.scrollHeight);
        assert.ok(tall <= TALLEST, `${name} is ${tall} px tall`);
      }
      for (const [name, hash, opens] of DIALOGS) {
        await page.evaluate((to) => { location.hash = `#/${to}`; }, hash);
        await settled(page);
        await opens(page).click();
        const dialog = page.getByRole('dialog');
        await dialog.waitFor();
        const over = await dialog.evaluate((node) => node.scrollWidth - node.clientWidth);
        assert.ok(over <= 0, `the dialog ${name} is ${over} px too wide`);
        await inspect(page, `dialog-${name}-${width}-${scheme}`);
        await page.keyboard.press('Escape');
        await dialog.waitFor({ state: 'hidden' });
      }
    });
  }
}

test('with tokens the console asks for one, and offers what its role may do', { timeout: 4 * PATIENCE_MS }, async () => {
  const guarded = await new Stage().open({ engines: 1, guarded: true });
  const { page, wrong, close } = await browser.page(guarded, 'weights', { expected: ['401'] });
  try {
    await page.getByLabel('Token').fill('nobody knows this');
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByText('This token is not known').waitFor();
    await page.evaluate(axe);
    for (const width of [1440, 390]) {
      await page.setViewportSize({ width, height: 900 });
      await inspect(page, `door-${width}`);
    }
    await page.setViewportSize({ width: 1440, height: 900 });
    await page.getByLabel('Token').fill(guarded.tokens.read);
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByText('the-read · read').waitFor();
    await page.getByText('This takes a token with the role admin; yours has read.').waitFor();
    assert.ok(await page.getByLabel('Reason').isDisabled());
    assert.ok(await page.getByRole('button', { name: 'Apply' }).isDisabled());
    await page.reload();
    await page.getByText('the-read · read').waitFor();
    assert.equal(await page.evaluate(() => localStorage.length), 0, 'the token is this tab’s');

    await page.getByRole('button', { name: 'Sign out' }).click();
    await page.getByLabel('Token').fill(guarded.tokens.admin);
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByLabel('Load').fill('1.5');
    await page.getByLabel('Reason').fill('by somebody');
    await page.getByRole('button', { name: 'Apply' }).click();
    await page.getByRole('status').filter({ hasText: 'Revision 2 is in force' }).waitFor();
    assert.equal((await guarded.call(POLICY)).json.by, 'the-admin');
    assert.deepEqual(wrong, []);
  } finally {
    await close();
    await guarded.close();
  }
});
