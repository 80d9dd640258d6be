// From the time to first token to one turn, by clicking; conversations and events.

import assert from 'node:assert/strict';
import { flow, play, POLICY, policy, rowOf, settled, shot, stage } from './flows.mjs';
import { tabTo, until } from './stage.mjs';

play();

flow('time to first token is held against the objective', 'ttft', {}, async (page) => {
  await settled(page);
  await page.getByText('objective 400 ms').waitFor();
  await page.locator('.chart .line.p95').first().waitFor();
  await until('p95 is known', async () => /ms|s/.test(await page.locator('.figure', { hasText: 'p95' }).locator('dd').innerText()));
  await until('turns that asked for what nobody can give are late', async () => {
    const late = await rowOf(page, 'header').locator('td').nth(2).innerText();
    return Number(late.replace(/\D/g, '')) > 0;
  });
});

/** The parts of each worker's score, and the score, as the explanation shows them. */
async function shownTerms(dialog) {
  const heads = await dialog.getByRole('columnheader').allInnerTexts();
  const rows = await dialog.getByRole('table', { name: 'Each worker’s terms' }).locator('tbody tr').all();
  const [first, last] = [heads.findIndex((head) => head.trim() === 'Predicted') + 1, heads.findIndex((head) => head.trim() === '= Score')];
  return Promise.all(rows.map(async (row) => {
    const cells = (await row.locator('td, th').allInnerTexts()).map((cell) => cell.trim());
    return { worker: cells[0], parts: cells.slice(first, last).map(Number), score: cells[last] };
  }));
}

flow('a late turn is found by its cause in two clicks, and its explanation adds up', 'ttft', { width: 1440 }, async (page) => {
  await settled(page);
  const causes = page.getByRole('table', { name: 'Late turns by cause' });
  await until('some cause has turns', async () => /[1-9]/.test((await causes.getByRole('row').locator('td:nth-child(4)').allInnerTexts()).join(' ')));
  const { json: late } = await stage.call('/admin/v1/decisions?late=true');
  const { cause } = late.decisions.find(({ outcome }) => outcome.cause).outcome;
  await causes.locator(`a[href*="cause=${cause}"]`).click();
  await page.getByRole('heading', { name: 'Decisions', level: 1 }).waitFor();
  assert.equal(await page.getByLabel('Cause').inputValue(), cause);
  await page.locator('tr.troubled').first().click({ position: { x: 5, y: 5 } });
  const dialog = page.getByRole('dialog');
  await dialog.getByText('Parts of the time to first token').waitFor();
  const request = await dialog.getByRole('heading', { level: 2 }).innerText();
  const [made] = (await stage.call(`/admin/v1/decisions/${request}`)).json.decisions;
  assert.equal(await dialog.locator('.verdict').innerText(), made.verdict);
  assert.match(made.verdict, /^gpu-\d chosen.*: .* predicted/);
  const shown = await shownTerms(dialog);
  assert.ok(shown.length >= 4, 'every worker was asked what it would cost');
  assert.equal(shown.length, made.terms.length);
  for (const [at, { parts, score }] of shown.entries()) {
    if (score === 'not ready') continue;
    const sum = parts.reduce((sum, part) => sum + part, 0);
    assert.ok(Math.abs(sum - Number(score)) < 1e-6, `${parts.join(' + ')} = ${score}`);
    assert.ok(Math.abs(made.terms[at].score - Number(score)) <= 0.051, `${made.terms[at].score} is shown as ${score}`);
  }
  await shot(page, 'explain');
  await page.keyboard.press('Escape');
  await page.getByRole('button', { name: 'Clear filters' }).click();
  await page.getByLabel('Request').fill(request);
  await page.keyboard.press('Enter');
  await until('it alone is there', async () => (await page.getByRole('button', { name: /^Explain / }).count()) === 1);
  await page.getByRole('button', { name: 'Clear filters' }).click();
  await page.getByRole('button', { name: 'Pause' }).click();
  await page.getByRole('button', { name: 'Resume' }).waitFor();
});

flow('a point of the chart leads to its late turns in two clicks', 'ttft', {}, async (page) => {
  await settled(page);
  const chart = page.getByRole('group', { name: /^Time to first token over/ });
  const spot = chart.locator('.spot[aria-label*=" late of "]:not([aria-label*=", 0 late"])').last();
  await spot.waitFor({ state: 'attached' });
  const href = await spot.getAttribute('href');
  const [from, until_] = ['from_unix_ms', 'until_unix_ms'].map((name) => Number(new URLSearchParams(href.split('?')[1]).get(name)));
  await page.evaluate((to) => document.querySelector(`.spot[href="${to}"]`).dispatchEvent(new MouseEvent('click', { bubbles: true, cancelable: true })), href);
  await page.getByText(/^First token from \d/).waitFor();
  const rows = page.getByRole('button', { name: /^Explain / });
  await until('its late turns are there', async () => (await rows.count()) > 0);
  const request = (await rows.first().getAttribute('aria-label')).replace('Explain ', '');
  const [{ arrived_unix_ms: arrived, outcome }] = (await stage.call(`/admin/v1/decisions/${request}`)).json.decisions;
  assert.equal(outcome.met, false);
  const first = arrived + outcome.ttft_ms;
  assert.ok(first >= from && first <= until_, `${first} is not in ${from} to ${until_}`);
  await rows.first().click();
  await page.getByRole('dialog').locator('.verdict').waitFor();
  await page.keyboard.press('Escape');
  await page.getByRole('button', { name: 'Any time' }).click();
  await page.getByText(/^First token from/).waitFor({ state: 'hidden' });
});

flow('the points of a chart are reached with the keyboard', 'ttft', {}, async (page) => {
  await settled(page);
  const spots = page.getByRole('group', { name: /^Time to first token over/ }).locator('.spot');
  await until('there are points', async () => (await spots.count()) > 1);
  await tabTo(page, spots.last());
  await page.keyboard.press('ArrowLeft');
  const focused = await page.evaluate(() => document.activeElement.getAttribute('href'));
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'Decisions', level: 1 }).waitFor();
  assert.match(focused, /late=true&from_unix_ms=\d+&until_unix_ms=\d+/);
});

flow('the largest conversations are shown where they live', 'conversations', {}, async (page) => {
  await settled(page);
  const largest = page.getByRole('table', { name: 'Conversations, the largest first' });
  const homes = () => largest.locator('tbody td:nth-child(3)').allInnerTexts();
  await until('some are there', async () => (await homes()).length > 1);
  const name = (await homes())[0].trim();
  await page.getByLabel('Worker').selectOption(name);
  // The page draws the choice in its next frame, and a busy machine takes its time for one.
  await until(`all of them live on ${name}`, async () => {
    const cells = await homes();
    return cells.length > 0 && cells.every((cell) => cell.trim() === name);
  });
  const hottest = page.getByRole('table', { name: 'Prefixes of the index, the hottest first' });
  await until('prefixes of the index are there', async () => {
    const { prefixes } = (await stage.call('/admin/v1/index?order=newest&limit=200')).json;
    const shown = await hottest.locator('tbody th code').allInnerTexts();
    return prefixes.some(({ prefix }) => shown.includes(prefix));
  });
  await page.getByText('Sum of lengths').first().waitFor();
  await largest.getByRole('link').first().click();
  await page.getByRole('heading', { name: 'Decisions', level: 1 }).waitFor();
});

flow('what happens is there as it happens', 'events', {}, async (page) => {
  await settled(page);
  await page.getByText('listening', { exact: true }).waitFor();
  const { settings } = await policy();
  settings.weights.slo += 0.5;
  await stage.call(POLICY, { method: 'PUT', body: { settings, reason: 'to be seen' }, headers: { 'if-match': '*' } });
  await rowOf(page, '“to be seen”').first().waitFor();
  await until('it is said aloud as well', async () => (await page.locator('#said').innerText()).includes('to be seen'));
  await rowOf(page, 'policy.put').first().waitFor();
  await page.getByRole('group', { name: 'Kinds of events' }).getByLabel('Policy').uncheck();
  await until('it is hidden', async () => (await rowOf(page, '“to be seen”').count()) === 0);
});
