// The state: one plain object, replaced as a whole, watched by the panels.

/** @typedef {import("./view.js").State} State */

/**
 * @typedef {object} Store
 * @property {() => State} get
 * @property {(change: Partial<State>) => void} set
 * @property {(watcher: (state: State, before: State) => void) => void} watch
 */

/**
 * @param {State} initial
 * @returns {Store}
 */
export function createStore(initial) {
  let state = initial;
  const watchers = new Set();
  return {
    get: () => state,
    set(change) {
      const before = state;
      const after = { ...state, ...change };
      if (/** @type {(keyof State)[]} */ (Object.keys(change)).every((key) => Object.is(before[key], after[key]))) return;
      state = after;
      for (const watch of watchers) watch(state, before);
    },
    watch: (watcher) => watchers.add(watcher),
  };
}
