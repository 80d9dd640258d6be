// The fleet page, by clicking: workers, what is done with them, and a router that stops.

import assert from 'node:assert/strict';
import http from 'node:http';
import { flow, play, rowOf, settled, shot, stage } from './flows.mjs';
import { engine, until } from './stage.mjs';

play();

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
  await page.getByRole('button', { name: 'Prefill work', exact: true }).click();
  await until('it is sorted', async () => (await page.getByRole('columnheader', { name: 'Prefill work' }).getAttribute('aria-sort')) === 'descending');

  stage.engines[3].child.kill('SIGKILL');
  await rowOf(page, 'gpu-3').getByText('unwell').waitFor();
  await rowOf(page, 'gpu-3').getByText(/^since \d\d:\d\d:\d\d: .*refused/).waitFor();
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

/** An engine that is well and answers each turn with 500. */
async function broken() {
  const server = http.createServer((request, response) => {
    const models = { object: 'list', data: [{ id: 'sim', object: 'model' }] };
    request.resume();
    response.writeHead(request.method === 'GET' ? 200 : 500, { 'content-type': 'application/json' });
    response.end(JSON.stringify(request.url === '/v1/models' ? models : {}));
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return { url: `http://127.0.0.1:${server.address().port}`, close: () => [server.close(), server.closeAllConnections()] };
}

flow('failures of a worker are counted in its row and in its dialog', 'fleet', {}, async (page) => {
  await settled(page);
  const { url, close } = await broken();
  try {
    const worker = { name: 'sick-5', url, capacity_tokens: 65536 };
    const added = await stage.call('/admin/v1/workers', { method: 'POST', body: { worker, reason: 'to fail' } });
    assert.ok(added.status < 300, JSON.stringify(added.json));
    const heads = (await page.getByRole('columnheader').allInnerTexts()).map((head) => head.trim());
    const failures = (row) => row.locator('th, td').nth(heads.findIndex((head) => head.startsWith('Failures'))).locator('.number');
    const sick = failures(rowOf(page, 'sick-5'));
    await until('some failed', async () => Number(await sick.innerText()) > 0 && /\bbad\b/.test(await sick.getAttribute('class')));
    assert.equal(await failures(rowOf(page, 'gpu-0')).innerText(), '0');
    await page.getByRole('button', { name: 'Failures', exact: true }).click();
    await until('it comes first', async () => (await page.getByRole('button', { name: /^Manage / }).first().getAttribute('aria-label')) === 'Manage sick-5');
    await shot(page, 'fleet-failures');
    await page.getByRole('button', { name: 'Manage sick-5' }).click();
    const dialog = page.getByRole('dialog', { name: 'sick-5' });
    await dialog.getByText(/^[1-9]\d* in the last \d+ (s|min)$/).waitFor();
    await shot(page, 'worker-failures');
    await stage.call('/admin/v1/workers/sick-5/remove', { method: 'POST', body: { reason: 'it fails', force: true } });
    await until('it is gone', async () => (await rowOf(page, 'sick-5').count()) === 0);
  } finally {
    close();
  }
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
  await until('new decisions do without it', async () => {
    const { decisions } = (await stage.call('/admin/v1/decisions?limit=1')).json;
    return !decisions[0].terms.some(({ worker }) => worker === 'blue-7');
  });
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

flow('symbols say what they mean, on focus, on hover and on a tap', 'fleet', {}, async (page) => {
  await settled(page);
  const tip = page.getByRole('tooltip');
  const meanings = { ρ: /share of its time/, α: /not in the cache/, ξ: /within the objective/ };
  for (const [symbol, meaning] of Object.entries(meanings)) {
    const term = page.getByRole('columnheader').getByRole('button', { name: symbol });
    await term.focus();
    await tip.filter({ hasText: meaning }).waitFor();
    const described = await term.evaluate((node) => document.getElementById(node.getAttribute('aria-describedby')).textContent);
    assert.match(described, meaning);
    await page.keyboard.press('Escape');
    await tip.waitFor({ state: 'hidden' });
    await term.click();
    await tip.filter({ hasText: meaning }).waitFor();
    await term.blur();
    await page.mouse.move(0, 0);
    await tip.waitFor({ state: 'hidden' });
  }
  await page.goto(`${stage.admin}/console/#/weights`);
  await page.getByRole('button', { name: 'κ' }).hover();
  await tip.filter({ hasText: 'turns behind it' }).waitFor();
});
