// Symbols and short names whose meaning shows on hover, on focus and on a tap.

import { h } from './view.js';

const MEANINGS = {
  'ρ': 'Prefill work sent to the worker as a share of its time. Near 100 %, its queue grows.',
  'α': 'Milliseconds of prefill per prompt token that is not in the cache.',
  'β': 'Milliseconds of prefill that do not depend on the prompt.',
  'γ': 'Milliseconds of prefill per pair of tokens that attend to each other: long prompts cost more per token.',
  'ξ': 'Prompt tokens outside the cache that an idle worker computes within the objective.',
  'κ': 'What a millisecond of prefill costs this turn and the turns behind it: 1 on an idle fleet, more on a busy one.',
  Margin: 'Score of the second-best worker minus the score of the chosen one. A small margin is a close choice.',
  wait: 'Predicted time before the prefill starts, times the policy’s weight of load.',
  prefill: 'Predicted computation of the prompt tokens that are not in the cache.',
  fixed: 'Part of the prefill that does not depend on the prompt (β).',
  overhead: 'Time to first token beside queue and prefill.',
  locality: '(κ − 1) times the prefill: the delay of the turns behind this one.',
  home: 'Price of one more conversation on a worker that has many.',
  slo: 'Price of the milliseconds predicted beyond the objective.',
  affinity: 'Credit of the worker that had the conversation’s last turn.',
  spread: 'Random tie-break.',
};

const tip = document.getElementById('tip');
const meanings = document.getElementById('meanings');
let shown = null;

/** A symbol, or other text in its place, with its meaning; plain text if it has none. */
export function term(name, text) {
  if (!(name in MEANINGS)) return name;
  const id = `meaning-${name}`;
  if (!document.getElementById(id)) {
    const meaning = document.createElement('span');
    meaning.id = id;
    meaning.textContent = MEANINGS[name];
    meanings.append(meaning);
  }
  return h('button', { type: 'button', class: 'term', 'aria-describedby': id, onclick: show, onfocus: show, onmouseenter: show, onblur: hide, onmouseleave: hide, 'aria-label': text ? name : undefined }, text ?? name);
}

function show(event) {
  shown = event.currentTarget;
  tip.textContent = document.getElementById(shown.getAttribute('aria-describedby')).textContent;
  // Again, so that it lies above a dialog that was opened since.
  tip.hidePopover();
  tip.showPopover();
  const [at, own] = [shown.getBoundingClientRect(), tip.getBoundingClientRect()];
  const below = at.bottom + 6 + own.height < innerHeight;
  tip.style.left = `${Math.max(8, Math.min(at.left, innerWidth - own.width - 8))}px`;
  tip.style.top = `${below ? at.bottom + 6 : Math.max(8, at.top - own.height - 6)}px`;
}

function hide() {
  shown = null;
  tip.hidePopover();
}

document.addEventListener('keydown', (event) => {
  if (event.key !== 'Escape' || !shown) return;
  // On a symbol that has the focus, Escape ends its explanation and not the dialog around it.
  if (document.activeElement === shown) event.preventDefault();
  hide();
}, true);
document.addEventListener('scroll', () => shown && hide(), true);
addEventListener('hashchange', hide);
