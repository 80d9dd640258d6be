// What the charts show of the time before the page was opened and before the router was started.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { browser, rowOf, settled, shot } from './flows.mjs';
import { PATIENCE_MS, Stage, until } from './stage.mjs';

/** Points of the chart of the time to first token: when, and how many turns were late of how many. */
async function points(page) {
  const labels = await page.getByRole('group', { name: /^Time to first token over/ }).locator('.spot').evaluateAll((all) => all.map((node) => [node.getAttribute('href'), node.getAttribute('aria-label')]));
  return labels.map(([href, label]) => {
    const [, late, all] = /(\d+) late of (\d+)/.exec(label).map(Number);
    return { until: Number(/until_unix_ms=(\d+)/.exec(href)[1]), late, all };
  });
}

test('a burst is there after a restart, and half an hour later in the chart of an hour', { timeout: 6 * PATIENCE_MS }, async () => {
  const old = await new Stage().open({ engines: 1, snapshot: true });
  let close = async () => {};
  const shows = async (from, window) => {
    const { page, ...rest } = await browser.page(old, 'ttft');
    ({ close } = rest);
    await settled(page);
    if (window) await page.getByRole('button', { name: window }).click();
    const burst = await until('the burst is on the chart', async () => {
      const found = (await points(page)).filter(({ all }) => all > 0);
      return found.length > 0 && found;
    });
    const sum = (key) => burst.reduce((sum, one) => sum + one[key], 0);
    assert.ok(sum('late') > 0, 'with its late turns');
    assert.ok(burst.every(({ until }) => until > from - 60_000 && until < from + 300_000), JSON.stringify({ from, burst }));
    assert.ok(await page.locator('.chart .line.p95').first().getAttribute('d'), 'and its line');
    assert.deepEqual(rest.wrong, []);
    return page;
  };
  try {
    old.traffic(2);
    await until('two samples with late turns between them', async () => {
      const { samples } = (await old.call('/admin/v1/history')).json;
      const late = ({ causes }) => Object.values(causes).reduce((sum, one) => sum + one, 0);
      return samples.length > 1 && late(samples.at(-1)) > late(samples[0]);
    });
    old.playing = false;
    await Promise.all(old.talking);

    const before = await old.restart();
    await shows(before.samples[0].at_unix_ms);
    await close();

    const aged = await old.restart({ later_ms: 30 * 60_000 });
    const page = await shows(aged.samples[0].at_unix_ms, '1 h');
    assert.equal(await page.getByRole('button', { name: '1 h' }).getAttribute('aria-pressed'), 'true');
    await shot(page, 'half-an-hour-later');
  } finally {
    await close();
    await old.close();
  }
});

/** The cells of a worker's row by the heads of their columns. */
async function cellsOf(page, table, worker) {
  const heads = (await page.getByRole('table', { name: table }).getByRole('columnheader').allInnerTexts()).map((head) => head.trim().split('\n')[0]);
  const row = rowOf(page.getByRole('table', { name: table }), worker);
  return Object.fromEntries((await row.locator('th, td').allInnerTexts()).map((cell, at) => [heads[at], cell.trim()]));
}

test('a page that is opened after the traffic has figures of each worker, and after a restart too', { timeout: 6 * PATIENCE_MS }, async () => {
  const quiet = await new Stage().open({ engines: 2, snapshot: true });
  let close = async () => {};
  const open = async (hash) => {
    await close();
    const { page, ...rest } = await browser.page(quiet, hash);
    ({ close } = rest);
    await settled(page);
    return page;
  };
  const turns = ({ workers }, name) => workers[name]?.counters?.turns ?? 0;
  const showsTtft = async () => {
    const page = await open('ttft');
    for (const worker of ['gpu-0', 'gpu-1']) {
      const cells = await until(`turns of ${worker}`, async () => {
        const found = await cellsOf(page, 'Time to first token by worker', worker);
        return Number(found.Turns) > 0 && found;
      });
      assert.match(cells.p95, /\d m?s$/);
    }
    return page;
  };
  try {
    quiet.traffic(4);
    await until('two samples with turns on both workers between them', async () => {
      const { samples } = (await quiet.call('/admin/v1/history')).json;
      return ['gpu-0', 'gpu-1'].every((name) => samples.length > 1 && turns(samples.at(-1), name) > turns(samples[0], name));
    });
    quiet.playing = false;
    await Promise.all(quiet.talking);

    const fleet = await open('fleet');
    const cells = await until('the last minute of a worker', async () => {
      const found = await cellsOf(fleet, /^Workers/, 'gpu-0');
      return /%$/.test(found.Hits) && found;
    });
    assert.match(cells['TTFT, p95'], /\d m?s$/);
    assert.match(cells.Turns, /[1-9].*\/s$/);
    await shot(fleet, 'fleet-after-traffic');
    await shot(await showsTtft(), 'ttft-after-traffic');
    await quiet.restart();
    await showsTtft();
  } finally {
    await close();
    await quiet.close();
  }
});
