// The state of the page, and its form in a link.

/**
 * @typedef {object} PageState
 * @property {string} model
 * @property {string} text
 * @property {string} panel
 * @property {number} layer position
 * @property {number} head position
 * @property {[number, number][]} others heads overlaid on the chosen one: positions of layer and head
 * @property {"colours" | "mean"} blend how overlaid heads are shown
 * @property {boolean} valued whether weights are multiplied by the length of their value vector
 * @property {number | null} locked the selected query
 * @property {number[]} held queries selected besides the locked one
 * @property {number | null} query under the pointer
 * @property {number | null} key under the pointer
 * @property {number | null} target the key of the link whose score is split
 * @property {null} tile
 * @property {boolean} background
 * @property {boolean} log
 * @property {boolean} words
 * @property {string} scheme
 * @property {boolean} systemDark
 * @property {string} other the text to compare with
 * @property {string} otherModel
 * @property {string} word whose meaning is followed
 * @property {string} groups a line each: name = words
 * @property {string} template the sentence in which the words of a group are read
 * @property {number} read number of the text that is shown, counted from the opening of the page
 */

/** @returns {PageState} */
export function initialState() {
  return {
    model: "", text: "", panel: "attention", layer: 0, head: 0, others: [], blend: "colours", valued: false,
    locked: null, held: [], query: null, key: null, target: null, tile: null,
    background: false, log: false, words: false, scheme: "auto", systemDark: false,
    other: "", otherModel: "", word: "", groups: "", template: "", read: 0,
  };
}

const FLAGS = /** @type {const} */ (["background", "log", "words", "valued"]);

/** The state as the fragment of a URL. @param {PageState} state */
export function formatHash(state) {
  const parts = new URLSearchParams();
  parts.set("model", state.model);
  parts.set("text", state.text.slice(0, 4000)); // browsers limit the length of a URL
  if (state.panel !== "attention") parts.set("panel", state.panel);
  parts.set("head", `${state.layer}.${state.head}`);
  if (state.locked !== null) parts.set("token", [state.locked, ...state.held].join("."));
  if (state.target !== null) parts.set("to", String(state.target));
  if (state.others.length) parts.set("with", state.others.map((head) => head.join(".")).join("_"));
  if (state.others.length && state.blend === "mean") parts.set("blend", "mean");
  const flags = FLAGS.filter((name) => state[name]);
  if (flags.length) parts.set("show", flags.join("."));
  if (state.other) parts.set("other", state.other.slice(0, 4000));
  for (const name of /** @type {const} */ (["otherModel", "word", "groups", "template"])) if (state[name]) parts.set(name, state[name]);
  return `#${parts}`;
}

/** The part of the state that the fragment of a URL holds; what cannot be parsed is ignored. @param {string} hash @returns {Partial<PageState>} */
export function parseHash(hash) {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  const numbers = (/** @type {string | null} */ dotted) => (dotted ?? "").split(".").map(Number);
  const valid = (/** @type {number[]} */ indices) => indices.every((index) => Number.isInteger(index) && index >= 0 && index < 1e6);
  /** @type {Partial<PageState>} */
  const state = {};
  for (const name of /** @type {const} */ (["model", "text", "panel", "other", "otherModel", "word", "groups", "template"])) {
    const value = parts.get(name);
    if (value) state[name] = value;
  }
  const head = numbers(parts.get("head"));
  if (parts.has("head") && head.length === 2 && valid(head)) [state.layer, state.head] = head;
  const tokens = numbers(parts.get("token"));
  if (parts.has("token") && valid(tokens)) [state.locked, state.held] = [tokens[0], tokens.slice(1)];
  const target = numbers(parts.get("to"));
  if (parts.has("to") && valid(target)) [state.target] = target;
  const others = (parts.get("with") ?? "").split("_").filter(Boolean).map(numbers);
  if (others.length && others.every((other) => other.length === 2 && valid(other))) state.others = /** @type {[number, number][]} */ (others);
  if (parts.get("blend") === "mean") state.blend = "mean";
  for (const name of (parts.get("show") ?? "").split(".")) {
    const flag = FLAGS.find((known) => known === name);
    if (flag) state[flag] = true;
  }
  return state;
}
