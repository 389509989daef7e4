// The panels: their names, and in two sentences what each is.

/**
 * @typedef {object} About
 * @property {string} title
 * @property {string} about
 * @property {boolean} bar whether layer and head are chosen here
 * @property {() => Promise<{ create: (app: import("./main.js").App) => import("./main.js").Panel }>} load
 */

/** @type {Record<string, About>} */
export const PANELS = {
  attention: {
    title: "Attention", bar: true, load: () => import("./attention.js"),
    about: "Each token spreads a weight of one over the tokens it looks at; here are those weights, for any head of the model. Point at a token to see its row, click to hold it, and Shift-click others to add theirs.",
  },
  compare: {
    title: "Compare", bar: true, load: () => import("./compare.js"),
    about: "The same token in two texts, two heads or two models, and what changes between them. Where only one word differs, whatever changed elsewhere is what that word did.",
  },
  steps: {
    title: "Step by step", bar: true, load: () => import("./steps.js"),
    about: "Everything one head computes, from what comes in to what it gives on, with the real numbers. Point at a cell to see the row and the column it came from; change the temperature or the mask and everything after follows.",
  },
  why: {
    title: "Why", bar: true, load: () => import("./why.js"),
    about: "A weight comes from a score, and a score is a sum: every source that wrote into the query meets every source that wrote into the key. Here is how much each pair adds; what is orange speaks against the link.",
  },
  meaning: {
    title: "Meaning", bar: false, load: () => import("./meaning.js"),
    about: "A word enters the model with one vector whatever its sentence; every layer moves it by what it took from the words around it. Here is its way in two sentences at once, and how near it comes to groups of words of your choice.",
  },
  cause: {
    title: "Cause", bar: true, load: () => import("./cause.js"),
    about: "A weight says where a token looks, not what that does; here each link is cut and the model run again. Beside each weight stands what changed: the token's final vector, or what a decoder says comes next.",
  },
  heads: {
    title: "Heads", bar: false, load: () => import("./roles.js"),
    about: "What each head does, measured over many texts rather than one: looks at the previous token, finds a repeated word, follows a pronoun. A role is given only where it beats chance by a margin, also on texts it was not chosen by.",
  },
  long: {
    title: "Long text", bar: true, load: () => import("./long.js"),
    about: "A document as a map: each point is how much one token looks at another. From afar a cell shows the largest weight in it; from near every weight is exact.",
  },
  generation: {
    title: "Generation", bar: false, load: () => import("./generation.js"),
    about: "A decoder writes on, one token at a time, drawn from the probabilities shown. Each new token is the model's answer to what it attended to: pick another and see the text take another way.",
  },
};
