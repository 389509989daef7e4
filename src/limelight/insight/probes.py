"""Probe sentences whose syntax and coreference are known, because they are made from templates.

The first half of every word list fills the sentences that heads are chosen by, the second half the
held-out ones, so the two share no subject, object, verb or adjective.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from limelight.rng import generator_for

HALF = 120
"""Sentences in each half."""

# fmt: off
PEOPLE = (
    "teacher", "doctor", "farmer", "lawyer", "sailor", "singer", "writer", "driver", "artist",
    "nurse", "soldier", "painter", "baker", "dancer", "pilot", "judge", "hunter", "priest",
    "banker", "chef",
)
THINGS = (
    "table", "letter", "garden", "window", "bottle", "picture", "kitchen", "basket", "engine",
    "ticket", "bridge", "camera", "blanket", "ladder", "statue", "carpet", "mirror", "jacket",
    "hammer", "piano",
)
DESCRIBING = (
    "old", "young", "small", "quiet", "famous", "strange", "clever", "happy", "lonely", "brave",
    "tall", "kind", "tired", "proud", "poor", "rich", "angry", "honest", "gentle", "busy",
)
MATERIAL = (
    "red", "heavy", "broken", "wooden", "cheap", "green", "dirty", "modern", "empty", "beautiful",
    "blue", "light", "narrow", "golden", "ancient", "yellow", "clean", "round", "huge", "plain",
)
ACTS = (
    "found", "bought", "painted", "sold", "carried", "moved", "opened", "cleaned", "admired",
    "lost", "stole", "fixed", "noticed", "dropped", "hid", "watched", "borrowed", "touched",
    "needed", "forgot",
)
STATES = (
    "late", "hungry", "sick", "nervous", "bored", "careful", "lazy", "afraid", "upset", "curious",
    "cold", "sleepy", "worried", "calm", "shy", "weak", "polite", "serious", "lucky", "drunk",
)
# fmt: on

TEMPLATES = (
    "The {subject} {verb} the {object} .",
    "The {adjective} {subject} {verb} a {object} .",
    "A {subject} from the village {verb} the {quality} {object} .",
    "The {subject} {verb} the {quality} {object} because {pronoun} was {state} .",
    "Yesterday the {adjective} {subject} {verb} the {object} , but {pronoun} was {state} .",
    "Every {adjective} {subject} in the city {verb} that {quality} {object} .",
    "When the {subject} {verb} the {object} , {pronoun} seemed {state} .",
    "In the morning a {subject} quickly {verb} this {quality} {object} .",
    "The {adjective} and very patient {subject} {verb} a {quality} little {object} .",
    "A {adjective} but nice {subject} with a dog {verb} the {object} as {pronoun} was {state} .",
    "The {subject} {verb} a {quality} , rather expensive {object} , since {pronoun} felt {state} .",
    "That {adjective} {subject} {verb} the {object} and said nothing , as {pronoun} was {state} .",
    "Some time ago the {subject} next door {verb} a {quality} old {object} .",
    "The {subject} rarely {verb} the {object} when {pronoun} was {state} .",
    "On Monday a {adjective} young {subject} in the shop {verb} the {quality} but good {object} .",
)

RELATIONS = {
    "determiner–noun": (("determiner", "subject"), ("object determiner", "object")),
    "adjective–noun": (("adjective", "subject"), ("quality", "object")),
    "verb–subject": (("verb", "subject"),),
    "verb–object": (("verb", "object"),),
    "pronoun–antecedent": (("pronoun", "subject"),),
}
"""Pairs of roles; each is tested in both directions."""

_DETERMINERS = ("the", "a", "every", "that", "this")


class Sentence(NamedTuple):
    """A sentence whose words' roles are known."""

    text: str
    spans: dict[str, tuple[int, int]]
    """the characters of each role's word: start and end"""

    def pairs(self, relation: str) -> list[tuple[str, str]]:
        """The roles of the relation that this sentence has."""
        return [pair for pair in RELATIONS[relation] if all(role in self.spans for role in pair)]


def sentences(half: int, count: int = HALF, seed: int = 0) -> list[Sentence]:
    """Sentences from one half of the words, 0 or 1; the same for the same seed.

    >>> first, held = sentences(0), sentences(1)
    >>> len(first) + len(held)
    240
    >>> nouns = [{s.text[slice(*s.spans["object"])] for s in part} for part in (first, held)]
    >>> nouns[0] & nouns[1]
    set()
    """
    generator = generator_for(seed, half)
    lists = {
        "subject": PEOPLE, "object": THINGS, "adjective": DESCRIBING, "quality": MATERIAL,
        "verb": ACTS, "state": STATES,
    }  # fmt: skip
    probes: list[Sentence] = []
    for number in range(count):
        words = {role: _pick(_half(known, half), generator) for role, known in lists.items()}
        words["pronoun"] = _pick(("he", "she"), generator)
        probes.append(_filled(TEMPLATES[number % len(TEMPLATES)], words))
    return probes


def _filled(template: str, words: dict[str, str]) -> Sentence:
    """A template with its words, and the spans of their roles and of the nouns' determiners."""
    text, spans = "", {}
    roles: list[tuple[str, tuple[int, int]]] = []
    for part in template.split():
        role = part.strip("{}") if part.startswith("{") else ""
        word = words[role] if role else part
        text += ("" if not text or part in ".," else " ") + word
        roles.append((role or word.lower(), (len(text) - len(word), len(text))))
    for index, (role, span) in enumerate(roles):
        if role in words:
            spans[role] = span
        if role in ("subject", "object"):
            # the determiner is the nearest one before the noun
            before = reversed(roles[:index])
            determiner = next(span for name, span in before if name in _DETERMINERS)
            spans["determiner" if role == "subject" else "object determiner"] = determiner
    return Sentence(text, spans)


FILLER = (
    "The harbour lay quiet in the early light, and only a few boats had gone out to fish.",
    "Most of the houses along the river were built of stone that came from the hills nearby.",
    "In winter the market moved into the old hall, where there was a stove and room for everyone.",
    "The train to the coast stops four times on its way and takes a little more than two hours.",
    "Bread was baked twice a week, and the smell of it drifted down the street until noon.",
    "A long wall runs around the orchard; in spring its top is covered with small white flowers.",
    "The library keeps maps that show how the coast has changed over the last three hundred years.",
    "Rain came in from the west and filled the ditches before it ran off into the fields.",
    "Children from both villages go to the same school, which stands between them on a hill.",
    "The bridge was closed for repairs, so that carts had to cross the water further down.",
    "On clear days you can see the mountains from the tower, although they are far away.",
    "The clock in the square is always slow, and nobody remembers that it was ever right.",
    "After the harvest there is music in the barns, and people stay up until the morning.",
    "The road through the forest is narrow, and in autumn it is hard to see under the leaves.",
    "Every house has a well, but the water from the spring above the church is said to be better.",
    "The old mill still turns when the river is high, though it grinds nothing any more.",
)
"""Plain sentences: the haystack of a needle, and the running text that heads read by default."""

_COLOURS = ("red", "green", "blue", "white", "black", "brown", "orange", "purple", "pink", "yellow")
_FRUITS = ("apple", "pear", "plum", "cherry", "lemon", "peach", "grape", "melon", "orange", "fig")


class Needle(NamedTuple):
    """A prompt, in three pieces, whose continuation occurs in its middle piece."""

    before: str
    needle: str
    after: str
    answer: str


def needles(half: int, count: int = 8, seed: int = 0) -> list[Needle]:
    """Prompts whose answer occurs once in a long text; the halves use different words."""
    generator = generator_for(seed, half, 7)
    prompts: list[Needle] = []
    for _ in range(count):
        owner = _pick(_half(PEOPLE, half), generator)
        colours, fruits = _half(_COLOURS, half), _half(_FRUITS, half)
        answer = (
            f" {_pick(colours, generator)} {_pick(fruits, generator)} {_pick(colours, generator)}"
        )
        answer += f" {_pick(_half(THINGS, half), generator)}"
        order = torch.randperm(len(FILLER), generator=generator).tolist()
        cut = int(torch.randint(2, 8, (), generator=generator))
        needle = f" The secret password of the {owner} is{answer}."
        before = " ".join(FILLER[index] for index in order[:cut])
        after = " " + " ".join(FILLER[index] for index in order[cut:10])
        after += f" Remember: the secret password of the {owner} is"
        prompts.append(Needle(before, needle, after, answer))
    return prompts


def filler_texts(count: int, seed: int = 0) -> list[str]:
    """Texts of plain sentences, each in a different order."""
    generator = generator_for(seed, 11)
    orders = (torch.randperm(len(FILLER), generator=generator).tolist() for _ in range(count))
    return [" ".join(FILLER[index] for index in order[:8]) for order in orders]


def _half(words: Sequence[str], half: int) -> Sequence[str]:
    middle = len(words) // 2
    return words[middle:] if half else words[:middle]


def _pick(words: Sequence[str], generator: torch.Generator) -> str:
    return words[int(torch.randint(len(words), (), generator=generator))]
