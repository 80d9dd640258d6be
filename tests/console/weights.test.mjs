// The weights page, by clicking: edits, classes, undo, preview and shadow.

import assert from 'node:assert/strict';
import { axe, flow, inspect, play, POLICY, policy, settled, shot, stage } from './flows.mjs';
import { tabTo, until } from './stage.mjs';

play();

flow('another policy follows the live traffic, and is stopped', 'weights', {}, async (page) => {
  await settled(page);
  const section = page.locator('section', { has: page.getByRole('heading', { name: 'Shadow' }) });
  await section.getByText('No policy follows the live traffic.').waitFor();
  await section.getByLabel('Why').fill('is it worth it?');
  assert.ok(await section.getByRole('button', { name: 'Follow live traffic' }).isDisabled(), 'nothing is changed');
  await page.getByLabel('Policy').selectOption('round_robin');
  const before = await policy();
  await section.getByRole('button', { name: 'Follow live traffic' }).click();
  await section.getByText('routes nothing').waitFor();
  await until('it is asked about turns', async () => /[1-9]/.test(await section.locator('.figure', { hasText: 'Turns seen' }).locator('dd').innerText()));
  await page.evaluate(axe);
  await inspect(page, 'shadow');
  assert.equal((await policy()).revision, before.revision, 'what is in force stays');
  await section.getByLabel('Why').fill('it is not');
  await section.getByRole('button', { name: 'Stop following' }).click();
  await section.getByText('No policy follows the live traffic.').waitFor();
  const { json: log } = await stage.call('/admin/v1/audit');
  const said = (action) => log.entries.find((one) => one.action === action)?.why;
  assert.deepEqual([said('policy.shadow_put'), said('policy.shadow_stop')], ['is it worth it?', 'it is not']);
});

flow('a weight is changed with the keyboard alone', 'weights', {}, async (page) => {
  await settled(page);
  const before = await policy();
  await page.keyboard.press('Tab');
  assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Skip to content');
  await page.keyboard.press('Enter');
  await tabTo(page, page.getByLabel('Locality'));
  await page.keyboard.press('ControlOrMeta+A');
  await page.keyboard.type('1.1');
  await page.keyboard.press('ArrowUp');
  await page.getByText('weights.locality').waitFor();
  await tabTo(page, page.getByLabel('Reason'));
  await page.keyboard.type('fewer misses at noon');
  await tabTo(page, page.getByRole('button', { name: 'Apply' }));
  const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  assert.equal(outline, 'solid', 'who uses the keyboard sees where they are');
  await page.keyboard.press('Enter');
  await page.getByRole('status').filter({ hasText: `Revision ${before.revision + 1} is in force` }).waitFor();
  const after = await policy();
  assert.deepEqual([after.settings.weights.locality, after.reason], [1.2, 'fewer misses at noon']);
  assert.deepEqual({ ...after.settings.weights, locality: 0 }, { ...before.settings.weights, locality: 0 });
});

flow('a class of turns is given a weight of its own, and loses it again', 'weights', {}, async (page) => {
  await settled(page);
  const everybody = (await policy()).settings;
  const put = async (text, reason) => {
    await page.getByRole('button', { name: 'Class batch' }).click();
    await page.getByLabel('Locality of batch').fill(text);
    await page.getByLabel('Reason').fill(reason);
    await page.getByRole('button', { name: 'Apply' }).click();
  };
  await put('2.5', 'batch can wait');
  await until('it is in force', async () => (await policy()).settings.classes.batch);
  assert.deepEqual((await policy()).settings, { ...everybody, classes: { batch: { weights: { locality: 2.5 } } } });
  await page.getByText('1 overridden').waitFor();
  await shot(page, 'weights-class');
  await page.getByRole('button', { name: 'Class batch' }).click();
  await put('', 'as everybody');
  await until('it is gone', async () => !(await policy()).settings.classes.batch);
  assert.deepEqual((await policy()).settings, everybody);
});

flow('a change is undone, bit for bit', 'weights', {}, async (page) => {
  const before = await policy();
  const settings = structuredClone(before.settings);
  settings.weights.load = 1.0000000000000002;
  await stage.call(POLICY, { method: 'PUT', body: { settings, reason: 'a test' }, headers: { 'if-match': '*' } });
  await settled(page);
  await page.getByRole('button', { name: `Undo: back to revision ${before.revision}` }).click();
  const dialog = page.getByRole('dialog', { name: `Back to revision ${before.revision}` });
  await dialog.getByText('weights.load').waitFor();
  await dialog.getByLabel('Reason').fill('worse');
  await shot(page, 'undo');
  await dialog.getByRole('button', { name: 'Put it in force' }).click();
  await page.getByRole('status').filter({ hasText: `the settings of revision ${before.revision} again` }).waitFor();
  assert.deepEqual((await policy()).settings, before.settings);

  await page.getByRole('button', { name: `Restore revision ${before.revision + 1}` }).click();
  await page.getByRole('dialog').getByLabel('Reason').fill('after all');
  await page.getByRole('dialog').getByRole('button', { name: 'Put it in force' }).click();
  await until('it is in force', async () => (await policy()).settings.weights.load === 1.0000000000000002);
});

flow('what the router refuses is named at its field', 'weights', { expected: [POLICY] }, async (page) => {
  await settled(page);
  const before = await policy();
  await page.getByLabel('Locality').fill('-1');
  await page.getByLabel('Reason').fill('a slip');
  await page.getByRole('button', { name: 'Apply' }).click();
  await until('the field is marked', async () => (await page.getByLabel('Locality').getAttribute('aria-invalid')) === 'true');
  await shot(page, 'weights-refused');
  assert.equal((await policy()).revision, before.revision);
  await page.getByLabel('Locality').fill('much');
  await page.getByText('Expected a number.').waitFor();
  assert.ok(await page.getByRole('button', { name: 'Apply' }).isDisabled());
});

flow('nobody’s change is lost to somebody else’s', 'weights', {}, async (page) => {
  await settled(page);
  const before = await policy();
  await page.getByLabel('Home').fill('0.3');
  await page.getByLabel('Reason').fill('mine');
  const settings = structuredClone(before.settings);
  settings.weights.spread_ms = 2;
  await stage.call(POLICY, { method: 'PUT', body: { settings, reason: 'theirs' }, headers: { 'if-match': '*' } });
  await page.getByText(`Revision ${before.revision + 1} by loopback is now in force`).waitFor();
  await shot(page, 'weights-overtaken');
  assert.ok(await page.getByRole('button', { name: 'Apply' }).isDisabled());
  await page.getByRole('button', { name: 'Keep my changes' }).click();
  await page.getByRole('button', { name: 'Apply' }).click();
  await until('both are in force', async () => {
    const { weights } = (await policy()).settings;
    return weights.home === 0.3 && weights.spread_ms === 2;
  });
});

function enoughCaptured() {
  return until('enough is captured', async () => (await stage.call('/admin/v1/capture')).json.turns >= 25);
}

/** Waits for the effect of a change. On a busy machine turns take longer than the simulation says, and a play takes long: a preview
 * that is refused for that is asked for once more. */
async function effect(page) {
  const drawn = page.getByRole('heading', { name: 'Predicted effect' });
  const buttons = ['Preview anyway', 'Preview'].map((name) => page.getByRole('button', { name, exact: true }));
  const refused = page.locator('.preview').getByText(/^the simulation |^it was cut off after/i);
  await until('the effect is drawn', async () => {
    if (await drawn.isVisible()) return true;
    if (!(await refused.isVisible())) return false;
    for (const button of buttons) if (await button.isVisible()) return button.click().then(() => false);
    return false;
  });
}

flow('a change is previewed on captured turns, and its effect drawn', 'weights', { expected: ['/policy/preview'] }, async (page) => {
  await settled(page);
  await page.getByRole('button', { name: 'Start a capture' }).click();
  await enoughCaptured();
  await page.getByLabel('Policy').selectOption('round_robin');
  await page.getByRole('button', { name: 'Preview' }).click();
  await effect(page);
  await page.getByRole('img', { name: /^p95: from .+ to .+/ }).waitFor();
  await page.getByText(/captured turns: .+ go to another worker/).waitFor();
  await shot(page, 'weights-preview');
  // What was scored is not what is typed by now.
  await page.getByLabel('Policy').selectOption('random');
  await page.getByRole('heading', { name: 'Predicted effect' }).waitFor({ state: 'hidden' });
});

flow('a preview that is unlike the measurement is refused, and shown if asked for again', 'weights', { expected: ['/policy/preview'] }, async (page) => {
  await settled(page);
  // Refused if a capture runs already.
  await stage.call('/admin/v1/capture/start', { method: 'POST', body: { reason: 'a preview' } });
  await enoughCaptured();
  const detail = 'The simulation is unlike what was measured.';
  await page.route('**/admin/v1/policy/preview', async (route) => {
    if (route.request().postDataJSON().anyway) return route.continue();
    const body = { type: 'urn:tailroute:problem:unlike', title: 'Simulation unlike the measurement', status: 409, detail };
    return route.fulfill({ status: 409, contentType: 'application/problem+json', body: JSON.stringify(body) });
  });
  await page.getByLabel('Policy').selectOption('round_robin');
  await page.getByRole('button', { name: 'Preview', exact: true }).click();
  await page.getByText(detail).waitFor();
  await page.getByRole('button', { name: 'Preview anyway' }).click();
  await effect(page);
});
