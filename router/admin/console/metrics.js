// The metrics page as numbers, and what its counters and histograms say of the time between two looks.

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;

function labels(text) {
  const found = {};
  for (const [, name, value] of text.matchAll(LABEL)) {
    found[name] = value.replace(/\\(.)/g, (_, escaped) => (escaped === 'n' ? '\n' : escaped));
  }
  return found;
}

/** Reads the samples of the metrics that are named. */
export function read(page, wanted) {
  const metrics = new Map([...wanted].map((name) => [name, []]));
  for (const line of page.split('\n')) {
    const end = line.search(/[{ ]/);
    const samples = end > 0 && metrics.get(line.slice(0, end));
    if (!samples) continue;
    const match = SAMPLE.exec(line);
    if (match) samples.push({ labels: labels(match[2] ?? ''), value: Number(match[3]) });
  }
  return metrics;
}

/** Sums of samples by a label (or by a function of labels). */
export function sumBy(samples, by) {
  const sums = new Map();
  for (const { labels, value } of samples ?? []) {
    const key = typeof by === 'function' ? by(labels) : labels[by];
    sums.set(key, (sums.get(key) ?? 0) + value);
  }
  return sums;
}

/** The upper bound of a bucket as a number. */
export function bound(le) {
  return le === '+Inf' ? Infinity : Number(le);
}

/** What came in between. A counter that went back began anew. */
export function since(before, now) {
  const grown = new Map();
  let anew = false;
  for (const [key, value] of now) {
    const old = before?.get(key) ?? 0;
    if (value < old) anew = true;
    grown.set(key, value - old);
  }
  return anew ? new Map(now) : grown;
}

/** The total of a cumulative histogram. */
export function total(buckets) {
  return buckets?.get(Infinity) ?? 0;
}

/** A quantile, linear within its bucket; beyond the last bound that is all that can be said. */
export function quantile(buckets, q) {
  const all = total(buckets);
  if (!(all > 0)) return undefined;
  const rank = q * all;
  let [lower, below] = [0, 0];
  for (const [bound, upTo] of [...buckets].sort(([a], [b]) => a - b)) {
    if (upTo >= rank) {
      if (bound === Infinity) return lower;
      return upTo > below ? lower + ((bound - lower) * (rank - below)) / (upTo - below) : bound;
    }
    [lower, below] = [bound, upTo];
  }
  return lower;
}
