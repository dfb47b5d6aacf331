"""What people ask their own photographs for, with captions as the judge.

A photograph is right for a question when at least two of its captions match the question's pattern:
one caption alone may be a slip. A question that fewer than five photographs are right for cannot
fill the first five places and is left out.
"""

import re
from collections.abc import Sequence

import numpy as np

FIRST = 5  # places that count
AGREEING = 2  # captions of a photograph that must match

_PERSON = r"(man|woman|boy|girl|person|child|kid|guy|lady|people|men|women|boys|girls|children)"
QUESTIONS = {
    "a dog": r"dogs?|pupp(y|ies)",
    "a black dog": r"black( and \w+)? (dog|lab|puppy)",
    "a white dog": r"white( and \w+)? (dog|poodle|puppy)",
    "a brown dog": r"brown( and \w+)? (dog|puppy)",
    "two dogs": r"two( \w+)? dogs",
    "a dog running on grass": r"dogs?\b.*\b(run|runs|running)\b.*\b(grass|grassy|lawn)",
    "a dog with a ball in its mouth": r"dog\b.*\bball",
    "a dog in the water": r"dogs?\b.*\b(water|ocean|sea|lake|river|pool|swims?|swimming)",
    "a dog in the snow": r"dogs?\b.*\bsnow",
    "a dog with a stick": r"dogs?\b.*\bstick",
    "a cat": r"cats?|kittens?",
    "a horse": r"horses?|pony|ponies",
    "birds": r"birds?|seagulls?|pigeons?|ducks?|geese",
    "an elephant": r"elephants?",
    "a cow or sheep": r"cows?|cattle|sheep|bulls?",
    "a baby": r"bab(y|ies)|infant|toddler",
    "a little girl": r"(little|small|young) girls?",
    "a little boy": r"(little|small|young) boys?",
    "children playing": r"(children|kids|boys|girls)\b.*\b(play|plays|playing)",
    "a group of people": r"(group|crowd)s? of",
    "a man with a beard": r"beard(ed)?",
    "somebody in a hat": r"hats?|caps?",
    "somebody with sunglasses": r"sunglasses",
    "somebody smiling": r"smil(e|es|ing)|laugh(s|ing)?",
    "somebody jumping": rf"{_PERSON}\b.*\bjump(s|ing|ed)?",
    "somebody sleeping": r"(sleep|sleeps|sleeping|asleep)",
    "somebody sitting on a bench": r"bench(es)?",
    "somebody on the phone": r"(cell ?)?phones?|telephone",
    "somebody taking a picture": r"camera|photograph(s|er|ing)?|tak(es|ing) (a )?(photo|picture)s?",
    "a man in a red shirt": r"(man|guy|boy|person)\b.*\bred( \w+)? (shirt|jacket|top|jersey)",
    "a woman in a dress": r"(woman|girl|lady|women|girls)\b.*\bdress(es)?",
    "a bride": r"brides?|wedding|groom",
    "the beach": r"beach|sand(y)?|seashore|shore",
    "the sea with waves": r"waves?|surf(s|er|ers|ing|board)?",
    "snow": r"snow(y|board|boarder|boarding)?|ski(s|er|ers|ing)?",
    "mountains": r"mountains?|mountain ?side|cliffs?",
    "a rock climber": r"climb(s|er|ers|ing)?",
    "a forest": r"forests?|woods|trees",
    "a lake or river": r"lakes?|rivers?|streams?|creek",
    "a swimming pool": r"pools?",
    "a waterfall or fountain": r"waterfalls?|fountains?",
    "a city street": r"streets?|sidewalk|city|road",
    "a market or shop": r"markets?|shops?|stores?",
    "a playground": r"playground|swings?|slides?|jungle gym",
    "a bicycle": r"bikes?|bicycl(e|es|ist|ing)|bik(er|ing)|cyclists?",
    "a motorcycle": r"motorcycl(e|es|ist)|motorbikes?|dirt ?bikes?|motocross",
    "a car": r"cars?|vehicles?|trucks?|taxi",
    "a bus or train": r"bus|buses|trains?|tram|subway",
    "a boat": r"boats?|canoes?|kayak(s|er|ing)?|rafts?|ships?|sail(s|boat|ing)?",
    "an airplane": r"(air)?planes?|jets?|aircraft",
    "a skateboarder": r"skateboard(s|er|ers|ing)?|skaters?",
    "a football game": r"football|soccer",
    "a basketball game": r"basketball",
    "a baseball player": r"baseball|batter|bat",
    "a tennis player": r"tennis",
    "a plate of food": r"food|plates?|meal|sandwich(es)?|pizza|cakes?|eat(s|ing)?|dinner|lunch",
    "somebody drinking": r"drink(s|ing)?|beers?|coffee|wine|bottles?",
    "people at a table": r"tables?",
    "a guitar": r"guitars?|guitarist",
    "a child on a swing or trampoline": r"swings?|swinging|trampoline",
}


def true_images(captions: Sequence[str], image_of: np.ndarray) -> dict[str, np.ndarray]:
    """The photographs that each question is right for, where there are enough.

    Args:
        captions: of all photographs.
        image_of: (N_txt,) row of each caption's photograph.

    Returns:
        Question -> rows, ascending.
    """
    truth = {}
    for question, pattern in QUESTIONS.items():
        match = re.compile(rf"\b({pattern})\b", re.IGNORECASE).search
        hits = image_of[[match(caption) is not None for caption in captions]]
        rows, agreeing = np.unique(hits, return_counts=True)
        if np.count_nonzero(agreeing >= AGREEING) >= FIRST:
            truth[question] = rows[agreeing >= AGREEING]
    return truth


def everyday_metrics(scores: np.ndarray, right: Sequence[np.ndarray]) -> dict[str, float]:
    """How many of the first five hits are right.

    Args:
        scores: (N_img, Q) of questions.
        right: the rows of the photographs that each question is right for.

    Returns:
        `p_at_5`, the mean share in 0..1; `first_right`, the share of questions whose first hit is
        right; and `questions`, how many there are. Of equal scores the wrong ones come first.
        Nothing where there is no question.
    """
    if not right:
        return {}
    shares, first = [], []
    for column, rows in zip(scores.T, right, strict=True):
        is_right = np.isin(np.arange(len(column)), rows)
        order = np.lexsort((is_right, -column))[:FIRST]
        shares.append(is_right[order].mean())
        first.append(is_right[order[0]])
    return {
        "p_at_5": float(np.mean(shares)),
        "first_right": float(np.mean(first)),
        "questions": float(len(shares)),
    }
