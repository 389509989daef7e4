// From the choices to what is seen: every panel draws from this one value.

const sum = (values) => values.reduce((total, value) => total + value, 0);

/** The part of the view that hover does not change. */
export function derive(numbers, state) {
  const { queries, keys } = numbers.spec;
  const tokens = numbers.matrix(state.layer, state.head);
  const words = state.words;
  const matrix = words ? tokens.merged(queries.words, keys.words) : tokens;
  const rows = words ? wordSide(queries) : queries;
  const columns = words ? wordSide(keys) : keys;
  const apart = new Set(columns.apart);
  const shown = (column) => state.sinks || !apart.has(column);
  const sums = (row) => numbers.sums(state.layer, state.head, row);
  return { state, tokens, matrix, sums, rows, columns, apart, shown, peak: peakOf(matrix, shown) };
}

function wordSide(side) {
  return {
    labels: side.wordLabels,
    tight: side.wordTight,
    apart: wordsOf(side, side.apart),
    special: wordsOf(side, side.special),
  };
}

/** The words of which every token is among these. */
function wordsOf(side, tokens) {
  const others = new Set(side.words.filter((_, token) => !tokens.includes(token)));
  return [...new Set(tokens.map((token) => side.words[token]))].filter((word) => !others.has(word));
}

function peakOf(matrix, shown) {
  let peak = 0;
  for (let j = 0; j < matrix.columns; j += 1) {
    if (!shown(j)) continue;
    for (let k = j; k < matrix.values.length; k += matrix.columns) {
      if (matrix.values[k] > peak) peak = matrix.values[k];
    }
  }
  return peak;
}

/** Which token asks: the locked one, else the one under the pointer. */
export const asking = (state) => state.locked ?? state.query;

/** The answers to one row, strongest first. */
export function answers(view, row) {
  return Array.from(view.matrix.row(row), (weight, column) => ({ column, weight }))
    .filter(({ column }) => view.shown(column))
    .sort((a, b) => b.weight - a.weight);
}

/** What the hidden sinks take of a row: of tokens exact, of words as far as their pieces tell. */
export function takenBySinks(view, row) {
  if (view.matrix === view.tokens) return view.sums(row).apart;
  return sum([...view.apart].map((column) => view.matrix.at(row, column)));
}

/** The strongest links of the whole head, at most `count`; of equals, the first rows'. */
export function strongest(view, count) {
  const { rows, columns, values } = view.matrix;
  const shown = Array.from({ length: columns }, (_, column) => view.shown(column));
  const found = [];
  let least = 0; // what a link must exceed to be among them
  for (let k = 0; k < rows * columns; k += 1) {
    if (values[k] <= least || !shown[k % columns]) continue;
    found.push(k);
    // thinned out now and then: to sort all links of a long text takes long
    if (found.length >= 2 * count + 256) least = thin(found, values, count);
  }
  thin(found, values, count);
  return found.map((k) => ({ row: Math.floor(k / columns), column: k % columns, weight: values[k] }));
}

/** Keeps the places of the `count` greatest values, greatest first; gives the least of them. */
function thin(places, values, count) {
  places.sort((a, b) => values[b] - values[a] || a - b);
  places.length = Math.min(places.length, count);
  return places.length < count ? 0 : values[places[count - 1]];
}

/** Mean entropy of the rows, in bits: 0 looks at one token, log₂ n at all alike. */
export function entropy(matrix) {
  let total = 0;
  for (let k = 0; k < matrix.values.length; k += 1) {
    const weight = matrix.values[k];
    if (weight > 0) total -= weight * Math.log2(weight);
  }
  return total / matrix.rows;
}
