// What heads do, where that was measured: short names for thumbnails, and the heads of each role.

const ORDER = [
  "previous", "next", "self", "separator", "induction", "duplicate token", "same token", "retrieval",
  "pronoun–antecedent", "determiner–noun", "adjective–noun", "verb–subject", "verb–object", "semantics", "local", "first", "broad",
];

/** @type {Record<string, string>} */
const SHORT = {
  previous: "prev", separator: "sep", "duplicate token": "dup", "same token": "same", "pronoun–antecedent": "coref",
  "determiner–noun": "det–n", "adjective–noun": "adj–n", "verb–subject": "v–subj", "verb–object": "v–obj", semantics: "sem", first: "sink", retrieval: "retr", induction: "induct",
};

/** The role without the direction of its relation. @param {string} role */
const bare = (role) => role.replace(/ [→←]$/, "");

/** The clearest role of a head in a few letters. @param {string[]} roles of one head, the clearest first */
export function shortRole(roles) {
  const name = bare(roles[0] ?? "");
  return SHORT[name] ?? name;
}

/** A role in words that explain it. @param {string} role */
export function roleTitle(role) {
  /** @type {Record<string, string>} */
  const names = { "pronoun–antecedent": "coreference (pronoun–antecedent)", first: "sink (first token)", previous: "previous token", next: "next token", self: "itself", "": "no role above its margin" };
  return names[role] ?? role;
}

/**
 * The heads by their clearest role, in a fixed order (ORDER); those without one last.
 * @param {string[][]} roles of every head
 * @returns {{ role: string, places: number[] }[]}
 */
export function byRole(roles) {
  /** @type {Map<string, number[]>} */
  const groups = new Map();
  roles.forEach((names, place) => {
    const role = bare(names[0] ?? "");
    groups.set(role, [...(groups.get(role) ?? []), place]);
  });
  const rank = (/** @type {string} */ role) => (role === "" ? ORDER.length + 1 : ORDER.indexOf(role) < 0 ? ORDER.length : ORDER.indexOf(role));
  return [...groups].map(([role, places]) => ({ role, places })).sort((a, b) => rank(a.role) - rank(b.role));
}
