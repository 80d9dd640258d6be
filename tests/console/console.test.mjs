// The console, by clicking. Each flow is what somebody does, and what the router then says.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { AXE, Browser, engine, PATIENCE_MS, SHOTS, Stage, tabTo, until } from './stage.mjs';

const PAGES = ['fleet', 'ttft', 'conversations', 'decisions', 'weights', 'events'];
const POLICY = '/admin/v1/policy';
const axe = readFileSync(AXE, 'utf8');
let stage;
let browser;

before(async () => {
  stage = new Stage();
  browser = new Browser();
  await Promise.all([stage.open(), browser.open()]);
  stage.traffic();
  await until('turns are answered', () => stage.turns > 8);
}, { timeout: 2 * PATIENCE_MS });

after(async () => {
  await browser?.close();
  await stage?.close();
});

/** Runs a flow on a page, and holds the page to what no page may do. */
function flow(name, hash, options, steps) {
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

function shot(page, name) {
  return page.screenshot({ path: join(SHOTS, `${name}.png`), fullPage: true });
}

/** A page that has got what it asks for. */
async function settled(page) {
  await page.locator('h1').first().waitFor();
  await page.locator('.pulse.live').waitFor();
  await until('nothing is asked for any more', async () => (await page.locator('.loading').count()) === 0);
}

async function policy() {
  return (await stage.call(POLICY)).json;
}

function rowOf(page, text) {
  return page.getByRole('row').filter({ hasText: text });
}

flow('the fleet shows each worker, and one that dies is in trouble', 'fleet', {}, async (page) => {
  await settled(page);
  await until('all four are there', async () => (await page.getByRole('button', { name: /^Manage gpu-/ }).count()) === 4);
  await rowOf(page, 'gpu-1').getByText('ready').waitFor();
  await until('requests are counted', async () => /[1-9]/.test(await page.locator('.figure', { hasText: 'Requests' }).locator('dd').innerText()));
  await page.getByRole('searchbox').fill('gpu-2');
  await until('one is left', async () => (await page.getByRole('button', { name: /^Manage gpu-/ }).count()) === 1);
  await page.getByRole('searchbox').fill('none of them');
  await page.getByText('No worker matches').waitFor();
  await page.getByRole('searchbox').fill('');
  await page.getByRole('columnheader', { name: 'Load' }).getByRole('button').click();
  await until('it is sorted', async () => (await page.getByRole('columnheader', { name: 'Load' }).getAttribute('aria-sort')) === 'descending');

  stage.engines[3].child.kill('SIGKILL');
  await rowOf(page, 'gpu-3').getByText('unwell').waitFor();
  await page.getByLabel(/In trouble/).check();
  await until('it alone is in trouble', async () => (await page.getByRole('button', { name: /^Manage gpu-/ }).count()) === 1);
  await shot(page, 'fleet-trouble');
});

flow('a worker is cordoned with a reason, and given work again', 'fleet', {}, async (page) => {
  await settled(page);
  await page.getByRole('button', { name: 'Manage gpu-0' }).click();
  const dialog = page.getByRole('dialog', { name: 'gpu-0' });
  assert.ok(await dialog.getByRole('button', { name: 'Cordon' }).isDisabled(), 'not without a reason');
  await dialog.getByLabel('Reason').fill('its fan is loud');
  await shot(page, 'worker');
  await dialog.getByRole('button', { name: 'Cordon' }).click();
  await rowOf(page, 'gpu-0').getByText('cordoned').waitFor();
  const { json: log } = await stage.call('/admin/v1/audit');
  assert.deepEqual([log.entries[0].action, log.entries[0].why], ['workers.cordon', 'its fan is loud']);

  await page.getByRole('button', { name: 'Manage gpu-0' }).click();
  await page.keyboard.press('Escape');
  await dialog.waitFor({ state: 'hidden' });
  await page.getByRole('button', { name: 'Manage gpu-0' }).click();
  await dialog.getByLabel('Reason').fill('mended');
  await dialog.getByLabel('α, ms per token').fill('0.25');
  await dialog.getByRole('button', { name: 'Set α' }).click();
  await rowOf(page, 'gpu-0').getByText('0.25').waitFor();
  await page.getByRole('button', { name: 'Manage gpu-0' }).click();
  await dialog.getByLabel('Reason').fill('mended');
  await dialog.getByRole('button', { name: 'Return to work' }).click();
  await rowOf(page, 'gpu-0').getByText('ready').waitFor();
});

flow('a worker is drained, and given work again when it has ended what it had', 'fleet', {}, async (page) => {
  await settled(page);
  const manage = page.getByRole('button', { name: 'Manage gpu-1' });
  await manage.click();
  const dialog = page.getByRole('dialog', { name: 'gpu-1' });
  await dialog.getByLabel('Reason').fill('a new driver');
  await dialog.getByRole('button', { name: 'Drain' }).click();
  await rowOf(page, 'gpu-1').getByText('drained').waitFor();
  await manage.click();
  assert.equal(await dialog.getByRole('button', { name: 'Cordon' }).count(), 0, 'it has nothing that a cordon could leave it');
  await dialog.getByLabel('Reason').fill('the driver is new');
  await dialog.getByRole('button', { name: 'Return to work' }).click();
  await rowOf(page, 'gpu-1').getByText('ready').waitFor();
});

flow('a worker joins with a reason, is given work, and leaves', 'fleet', { width: 400, scheme: 'dark', expected: ['/admin/v1/workers'] }, async (page) => {
  await settled(page);
  const { child, found } = await engine();
  stage.processes.push(child);
  await page.getByRole('button', { name: 'Add a worker' }).click();
  const dialog = page.getByRole('dialog', { name: 'Add a worker' });
  const add = dialog.getByRole('button', { name: 'Add' });
  await dialog.getByLabel('Address').fill('ftp://nobody');
  await dialog.getByLabel('Name').fill('blue-7');
  assert.ok(await add.isDisabled(), 'not without a reason');
  await dialog.getByLabel('Reason').fill('more work than four can do');
  await add.click();
  await until('the field is marked', async () => (await dialog.getByLabel('Address').getAttribute('aria-invalid')) === 'true');
  await shot(page, 'join-refused');
  await dialog.getByLabel('Address').fill(found[1]);
  await dialog.getByLabel('Cache, tokens').fill('65536');
  await add.click();
  await dialog.waitFor({ state: 'hidden' });
  await rowOf(page, 'blue-7').getByText('ready').waitFor();
  const entry = async (action) => (await stage.call('/admin/v1/audit')).json.entries.find((one) => one.action === action && one.outcome === 'applied');
  assert.equal((await entry('workers.add')).why, 'more work than four can do');

  await page.getByRole('button', { name: 'Manage blue-7' }).click();
  const worker = page.getByRole('dialog', { name: 'blue-7' });
  await worker.getByLabel('Reason').fill('less work');
  await shot(page, 'worker-400-dark');
  await worker.getByRole('button', { name: 'Remove' }).click();
  await until('it is gone', async () => (await rowOf(page, 'blue-7').count()) === 0);
  assert.equal((await entry('workers.remove')).why, 'less work');
});

flow('another policy follows the live traffic, and is stopped', 'weights', {}, async (page) => {
  await settled(page);
  const section = page.locator('section', { has: page.getByRole('heading', { name: 'Shadow' }) });
  await section.getByText('No policy follows the live traffic.').waitFor();
  await section.getByLabel('Why').fill('is it worth it?');
  assert.ok(await section.getByRole('button', { name: 'Follow live traffic' }).isDisabled(), 'nothing is changed');
  await page.getByLabel('Policy').selectOption('round_robin');
  const before = await policy();
  await section.getByRole('button', { name: 'Follow live traffic' }).click();
  await section.getByText('steers nothing').waitFor();
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
  await page.getByText('1 of its own').waitFor();
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

flow('a change is previewed on captured turns, and its effect drawn', 'weights', {}, async (page) => {
  await settled(page);
  await page.getByRole('button', { name: 'Start a capture' }).click();
  await until('enough is captured', async () => (await stage.call('/admin/v1/capture')).json.turns >= 25);
  await page.getByLabel('Policy').selectOption('round_robin');
  await page.getByRole('button', { name: 'Preview' }).click();
  await page.getByRole('heading', { name: 'Predicted effect' }).waitFor();
  await page.getByRole('img', { name: /^p95: from .+ to .+/ }).waitFor();
  await page.getByText(/captured turns: .+ go to another worker/).waitFor();
  await shot(page, 'weights-preview');
  // What was scored is not what is typed by now.
  await page.getByLabel('Policy').selectOption('random');
  await page.getByRole('heading', { name: 'Predicted effect' }).waitFor({ state: 'hidden' });
});

flow('a late turn is found by its cause, and taken apart', 'ttft', {}, async (page) => {
  await settled(page);
  const causes = page.getByRole('table', { name: 'Late turns by cause' });
  await until('some cause has turns', async () => /[1-9]/.test((await causes.getByRole('row').locator('td:nth-child(4)').allInnerTexts()).join(' ')));
  const { json: late } = await stage.call('/admin/v1/decisions?late=true');
  const { cause } = late.decisions.find(({ outcome }) => outcome.cause).outcome;
  await page.locator(`a[href="#/decisions?late=true&cause=${cause}"]`).click();
  await page.getByRole('heading', { name: 'Decisions', level: 1 }).waitFor();
  assert.equal(await page.getByLabel('Cause').inputValue(), cause);
  await page.getByRole('button', { name: 'Hold' }).click();
  await page.getByRole('button', { name: /^Explain / }).first().click();
  const dialog = page.getByRole('dialog');
  await dialog.getByText('Where its time to first token went').waitFor();
  const request = await dialog.getByRole('heading', { level: 2 }).innerText();
  const { json: made } = await stage.call(`/admin/v1/decisions/${request}`);
  const asked = made.decisions[0].terms.length;
  assert.ok(asked >= 4, 'every worker was asked what it would cost');
  assert.equal(await dialog.getByRole('row').count(), 1 + asked, 'a head, and each of the workers');
  await shot(page, 'explain');
  await page.keyboard.press('Escape');
  await page.getByLabel('Request').fill(request);
  await page.keyboard.press('Enter');
  await until('it alone is there', async () => (await page.getByRole('button', { name: /^Explain / }).count()) === 1);
});

flow('the largest conversations are shown where they live', 'conversations', {}, async (page) => {
  await settled(page);
  const largest = page.getByRole('table', { name: 'Conversations, the largest first' });
  await until('some are there', async () => (await largest.getByRole('row').count()) > 2);
  const home = await largest.getByRole('row').nth(1).locator('td').nth(1).innerText();
  const name = home.match(/gpu-\d/)[0];
  await page.getByLabel('Lives on').selectOption(name);
  const cells = await largest.getByRole('row').locator('td:nth-child(3)').allInnerTexts();
  assert.ok(cells.length > 0 && cells.every((cell) => cell.includes(name)), cells.join());
  const hottest = page.getByRole('table', { name: 'Prefixes of the index, the hottest first' });
  await until('prefixes are there', async () => (await hottest.getByRole('row').count()) > 2);
  const { prefixes } = (await stage.call('/admin/v1/index?order=newest&limit=200')).json;
  const shown = await hottest.locator('tbody th code').allInnerTexts();
  assert.ok(prefixes.some(({ prefix }) => shown.includes(prefix)), shown.join());
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

flow('a router that stops answering leaves what was seen, and says how old it is', 'fleet', { expected: ['ERR_', '/metrics', '/admin/'] }, async (page) => {
  await settled(page);
  stage.router.child.kill('SIGSTOP');
  try {
    await page.getByText('The router does not answer.', { exact: true }).waitFor();
    assert.ok((await page.getByRole('button', { name: /^Manage gpu-/ }).count()) > 0, 'the figures stay');
    await shot(page, 'stale');
  } finally {
    stage.router.child.kill('SIGCONT');
  }
  await page.getByText('The router does not answer.', { exact: true }).waitFor({ state: 'hidden' });
  await page.locator('.pulse.live').waitFor();
});

flow('colours can be chosen, and the choice lasts', 'fleet', {}, async (page) => {
  await settled(page);
  const shade = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await shade();
  await page.getByLabel('Colours').selectOption('dark');
  await until('it is dark', async () => (await shade()) !== light);
  await page.reload();
  await settled(page);
  assert.notEqual(await shade(), light);
});

/** No serious finding of axe, nothing wider than the window, and a picture. */
async function inspect(page, name) {
  const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(over <= 0, `${name} is ${over} px too wide`);
  const { violations } = await page.evaluate(() => axe.run({ resultTypes: ['violations'] }));
  const grave = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
  assert.deepEqual(grave.map(({ id, nodes }) => [name, id, nodes.slice(0, 3).map((node) => node.html)]), []);
  await shot(page, name);
}

for (const width of [1280, 400]) {
  for (const scheme of ['light', 'dark']) {
    flow(`every page at ${width} px, ${scheme}: accessible, and nothing sticks out`, 'fleet', { width, scheme }, async (page) => {
      await page.evaluate(axe);
      for (const name of PAGES) {
        await page.getByRole('navigation').getByRole('link', { name, exact: false }).click();
        await page.getByRole('navigation').locator(`a[href="#/${name}"][aria-current]`).waitFor();
        await settled(page);
        await inspect(page, `${name}-${width}-${scheme}`);
      }
    });
  }
}

test('with tokens the console asks who it is, and offers what they may do', { timeout: 4 * PATIENCE_MS }, async () => {
  const guarded = await new Stage().open({ engines: 1, guarded: true });
  const { page, wrong, close } = await browser.page(guarded, 'weights', { expected: ['401'] });
  try {
    await page.getByLabel('Token').fill('nobody knows this');
    await page.getByRole('button', { name: 'Look' }).click();
    await page.getByText('This token is not known').waitFor();
    await shot(page, 'door');
    await page.getByLabel('Token').fill(guarded.tokens.read);
    await page.getByRole('button', { name: 'Look' }).click();
    await page.getByText('the-read · read').waitFor();
    await page.getByText('This takes a token with the role admin; yours has read.').waitFor();
    assert.ok(await page.getByLabel('Reason').isDisabled());
    assert.ok(await page.getByRole('button', { name: 'Apply' }).isDisabled());
    await page.reload();
    await page.getByText('the-read · read').waitFor();
    assert.equal(await page.evaluate(() => localStorage.length), 0, 'the token is this tab’s');

    await page.getByRole('button', { name: 'Sign out' }).click();
    await page.getByLabel('Token').fill(guarded.tokens.admin);
    await page.getByRole('button', { name: 'Look' }).click();
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
