// What is chosen on the page, and how a link carries it.

/**
 * @typedef {object} Chosen
 * @property {string} model
 * @property {string} text
 * @property {string} panel
 * @property {number} layer position
 * @property {number} head position
 * @property {[number, number][]} others heads laid over the chosen one, by positions
 * @property {"colours" | "mean"} blend
 * @property {boolean} valued
 * @property {number | null} locked
 * @property {number[]} held tokens held besides the locked one
 * @property {number | null} query
 * @property {number | null} key
 * @property {number | null} target the token looked at, where one link is looked into
 * @property {null} tile
 * @property {boolean} background
 * @property {boolean} log
 * @property {boolean} words
 * @property {string} scheme
 * @property {boolean} systemDark
 * @property {string} other the text compared with
 * @property {string} otherModel
 * @property {string} word whose meaning is followed
 * @property {string} groups a line each: name = words
 * @property {string} template what the words of a group are read in
 * @property {number} read counts the texts that were read
 */

/** @returns {Chosen} */
export function opening() {
  return {
    model: "", text: "", panel: "attention", layer: 0, head: 0, others: [], blend: "colours", valued: false,
    locked: null, held: [], query: null, key: null, target: null, tile: null,
    background: false, log: false, words: false, scheme: "auto", systemDark: false,
    other: "", otherModel: "", word: "", groups: "", template: "", read: 0,
  };
}

const FLAGS = /** @type {const} */ (["background", "log", "words", "valued"]);

/** The state as the end of an address. @param {Chosen} state */
export function formatHash(state) {
  const parts = new URLSearchParams();
  parts.set("model", state.model);
  parts.set("text", state.text.slice(0, 4000)); // an address has its limits
  if (state.panel !== "attention") parts.set("panel", state.panel);
  parts.set("head", `${state.layer}.${state.head}`);
  if (state.locked !== null) parts.set("token", [state.locked, ...state.held].join("."));
  if (state.target !== null) parts.set("to", String(state.target));
  if (state.others.length) parts.set("with", state.others.map((place) => place.join(".")).join("_"));
  if (state.others.length && state.blend === "mean") parts.set("blend", "mean");
  const flags = FLAGS.filter((name) => state[name]);
  if (flags.length) parts.set("show", flags.join("."));
  if (state.other) parts.set("other", state.other.slice(0, 4000));
  for (const name of /** @type {const} */ (["otherModel", "word", "groups", "template"])) if (state[name]) parts.set(name, state[name]);
  return `#${parts}`;
}

/** What an address says, as far as it can be parsed. @param {string} hash @returns {Partial<Chosen>} */
export function parseHash(hash) {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  const numbers = (/** @type {string | null} */ words) => (words ?? "").split(".").map(Number);
  const valid = (/** @type {number[]} */ all) => all.every((each) => Number.isInteger(each) && each >= 0 && each < 1e6);
  /** @type {Partial<Chosen>} */
  const state = {};
  for (const name of /** @type {const} */ (["model", "text", "panel", "other", "otherModel", "word", "groups", "template"])) {
    const value = parts.get(name);
    if (value) state[name] = value;
  }
  const place = numbers(parts.get("head"));
  if (parts.has("head") && place.length === 2 && valid(place)) [state.layer, state.head] = place;
  const tokens = numbers(parts.get("token"));
  if (parts.has("token") && valid(tokens)) [state.locked, state.held] = [tokens[0], tokens.slice(1)];
  const target = numbers(parts.get("to"));
  if (parts.has("to") && valid(target)) [state.target] = target;
  const places = (parts.get("with") ?? "").split("_").filter(Boolean).map(numbers);
  if (places.length && places.every((each) => each.length === 2 && valid(each))) state.others = /** @type {[number, number][]} */ (places);
  if (parts.get("blend") === "mean") state.blend = "mean";
  for (const name of (parts.get("show") ?? "").split(".")) {
    const flag = FLAGS.find((each) => each === name);
    if (flag) state[flag] = true;
  }
  return state;
}
