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
  return { state, tokens, matrix, rows, columns, apart, shown, peak: peakOf(matrix, shown) };
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
  for (let i = 0; i < matrix.rows; i += 1) {
    for (let j = 0; j < matrix.columns; j += 1) {
      if (shown(j)) peak = Math.max(peak, matrix.at(i, j));
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

/** What the hidden sinks take of a row. */
export function takenBySinks(view, row) {
  return sum([...view.apart].map((column) => view.matrix.at(row, column)));
}

/** The strongest links of the whole head, at most `count`. */
export function strongest(view, count) {
  const links = [];
  for (let row = 0; row < view.matrix.rows; row += 1) {
    for (let column = 0; column < view.matrix.columns; column += 1) {
      if (!view.shown(column)) continue;
      const weight = view.matrix.at(row, column);
      if (weight > 0) links.push({ row, column, weight });
    }
  }
  return links.sort((a, b) => b.weight - a.weight).slice(0, count);
}

/** Mean entropy of the rows, in bits: 0 looks at one token, log₂ n at all alike. */
export function entropy(matrix) {
  let total = 0;
  for (const weight of matrix.values) if (weight > 0) total -= weight * Math.log2(weight);
  return total / matrix.rows;
}
