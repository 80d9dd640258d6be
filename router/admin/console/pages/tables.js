// What policies and weights there are, and what they do. Generated from policy/src/route by `make generate`.

export const POLICIES = [
  { name: 'tail', meaning: 'The least predicted time to first token, plus the load that a miss causes.' },
  { name: 'round_robin', meaning: 'Each ready worker in turn.' },
  { name: 'least_loaded', meaning: 'The fewest requests in flight.' },
  { name: 'cache_aware', meaning: 'SGLang’s rule: the holder of the prefix unless the load is out of balance, else the smallest tree.' },
  { name: 'cache_aware_smg', meaning: 'The rule of SMG, SGLang’s successor gateway: the holder of the prefix unless it is far above the mean load.' },
  { name: 'least_ttft', meaning: 'Least predicted time to first token of this turn alone: `tail` with κ = 1.' },
  { name: 'random', meaning: 'Any ready worker, by the decision’s sequence number.' },
  { name: 'power_of_two', meaning: 'The one of two random workers that has fewer requests in flight.' },
  { name: 'consistent_hash', meaning: 'A worker by hash of the conversation, whatever its load.' },
  { name: 'prefix_hash', meaning: 'A worker by hash of the prompt’s beginning, unless it is far above the mean load.' },
];

export const WEIGHTS = [
  { path: 'weights.locality', name: 'Locality', meaning: 'How strongly turns stick to the worker that holds their prefix. 0: not at all. It multiplies κ’s excess over 1. Higher: turns stay where their prefix is.' },
  { path: 'weights.home', name: 'Home', meaning: 'Multiplies the cost of placing a conversation on a worker with many others: a mean prefill times the worker’s share of turns and of conversations.' },
  { path: 'weights.load', name: 'Load', meaning: 'Multiplies the predicted wait. Higher: turns leave queues sooner.' },
  { path: 'weights.slo', name: 'SLO', unit: 'per ms', meaning: 'Extra cost per millisecond predicted beyond the objective.' },
  { path: 'weights.affinity_ms', name: 'Affinity', unit: 'ms', meaning: 'Milliseconds of credit for the conversation’s last worker.' },
  { path: 'weights.spread_ms', name: 'Spread', unit: 'ms', meaning: 'Milliseconds of random tie-breaking.' },
];
