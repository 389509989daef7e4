// The panels: their titles, their modules, and what each shows, in two or three sentences.

/**
 * @typedef {object} About
 * @property {string} title
 * @property {string} about
 * @property {boolean} bar whether the panel needs the choice of a layer and a head
 * @property {() => Promise<{ create: (app: import("./main.js").App) => import("./main.js").Panel }>} load
 */

/** @type {Record<string, About>} */
export const PANELS = {
  attention: {
    title: "Attention", bar: true, load: () => import("./attention.js"),
    about: "In every head, each token divides a total weight of 1 among the tokens it looks at; this panel shows these weights. Point at a token to see its row, click to hold it, and Shift-click others to add their rows.",
  },
  compare: {
    title: "Compare", bar: true, load: () => import("./compare.js"),
    about: "The same token in two texts, two heads or two models, and what changes between them. If the texts differ in one word only, every other change is the effect of that word.",
  },
  steps: {
    title: "Step by step", bar: true, load: () => import("./steps.js"),
    about: "Everything one head computes, from its input to its output, with the real numbers. Point at a cell to see which rows and columns it is computed from; change the temperature or the mask, and everything after it is computed again.",
  },
  why: {
    title: "Why", bar: true, load: () => import("./why.js"),
    about: "A weight comes from a score, and a score is a sum over pairs: each source of the query with each source of the key. This panel shows how much each pair adds; blue parts raise the score, orange parts lower it.",
  },
  meaning: {
    title: "Meaning", bar: false, load: () => import("./meaning.js"),
    about: "A word enters the model with the same vector in every sentence; each layer moves it by what it takes from the words around it. This panel shows its path in two sentences, and how near it comes to groups of words of your choice.",
  },
  cause: {
    title: "Cause", bar: true, load: () => import("./cause.js"),
    about: "A weight says where a token looks, not what effect that has; so each link is cut and the model run again. Beside each weight is the change: of the token's final vector or, in a decoder, of its prediction of the next token.",
  },
  heads: {
    title: "Heads", bar: false, load: () => import("./roles.js"),
    about: "What each head does, measured over many texts rather than one: looks at the previous token, finds a repeated word, links a pronoun to its noun. A head has a role only if it beats chance by a margin, on held-out texts too.",
  },
  long: {
    title: "Long text", bar: true, load: () => import("./long.js"),
    about: "A document as a map: each point shows how much one token looks at another. Zoomed out, a cell shows the largest weight in it; zoomed in, every weight is exact.",
  },
  generation: {
    title: "Generation", bar: false, load: () => import("./generation.js"),
    about: "A decoder continues the text one token at a time, sampled from the probabilities shown. Click a new token to see what it attended to; choose another candidate, and the text continues from there.",
  },
};
