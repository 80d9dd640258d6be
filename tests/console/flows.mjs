// What the flows share: a stage with traffic, a browser, and what is checked on each page.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { AXE, Browser, PATIENCE_MS, SHOTS, Stage, until } from './stage.mjs';

export const POLICY = '/admin/v1/policy';
export const axe = readFileSync(AXE, 'utf8');
export let stage;
export let browser;

before(async () => {
  browser = await new Browser().open();
}, { timeout: PATIENCE_MS });

after(async () => {
  await browser?.close();
  await stage?.close();
});

/** A router with four engines and traffic for all tests of a file, and what else these need. */
export function play(prepare = async () => {}) {
  before(async () => {
    stage = await new Stage().open();
    stage.traffic();
    await until('turns are answered', () => stage.turns > 8);
    await prepare();
  }, { timeout: 2 * PATIENCE_MS });
}

/** Runs a flow on a page, and holds the page to what no page may do. */
export function flow(name, hash, options, steps) {
  test(name, { timeout: 4 * PATIENCE_MS }, async () => {
    const { page, wrong, close } = await browser.page(options.stage ?? stage, hash, options);
    try {
      await steps(page);
      assert.deepEqual(wrong, []);
    } catch (error) {
      await page.screenshot({ path: join(SHOTS, `failed-${name.replace(/\W+/g, '-').slice(0, 60)}.png`), fullPage: true });
      throw error;
    } finally {
      await close();
    }
  });
}

export function shot(page, name) {
  return page.screenshot({ path: join(SHOTS, `${name}.png`), fullPage: true });
}

/** Waits until a page has what it asks for. */
export async function settled(page) {
  await page.locator('h1').first().waitFor();
  await page.locator('.pulse.live').waitFor();
  await until('nothing is asked for any more', async () => (await page.locator('.loading').count()) === 0);
}

export async function policy() {
  return (await stage.call(POLICY)).json;
}

export function rowOf(page, text) {
  return page.getByRole('row').filter({ hasText: text });
}

/** No serious finding of axe, nothing wider than the window, and a picture. */
export async function inspect(page, name) {
  const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(over <= 0, `${name} is ${over} px too wide`);
  const { violations } = await page.evaluate(() => axe.run({ resultTypes: ['violations'] }));
  const grave = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
  assert.deepEqual(grave.map(({ id, nodes }) => [name, id, nodes.slice(0, 3).map((node) => node.html)]), []);
  await shot(page, name);
}
