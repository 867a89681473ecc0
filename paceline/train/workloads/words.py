"""Word lists that several workloads draw from."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = _words(
    "Anna Ben Carla Dev Emma Felix Greta Hugo Ida Jonas Kira Leo Mia Noah Olga Paul Rosa Sam Tara Uma Victor Wendy Yara Zoe "
    "Adam Bella Carlos Diana Elias Fiona George Hannah Ivan Julia Karl Lena Marco Nina Oscar Petra Ravi Sofia Tom Vera "
    "Ali Chen Maya Omar Priya Ruth Simon Theo Alice Bob Clara David Ella Frank Grace Henry Iris Jack Kate Liam Maria Nora"
)
CITIES = _words(
    "Oslo Porto Graz Pune Lyon Bonn Cork Riga Turin Ghent Basel Malmo Kyoto Lima Quito Dakar Accra Perth Leeds Nantes Seville "
    "Vienna Prague Warsaw Lisbon Madrid Paris Berlin Rome London Dublin Athens Cairo Delhi Tokyo Boston Denver Austin Toronto"
)
COLOURS = _words("red blue green yellow white black grey brown orange purple pink silver golden")
ITEMS = _words(
    "mug plate bowl fork knife spoon pan lamp chair table book pen pencil notebook bag box bottle cup shirt hat scarf coat "
    "shoe clock candle basket blanket pillow towel brush hammer ladder bucket rope tent kite ball drum flute puzzle"
)
FRUITS = _words("apple pear plum peach lemon orange banana melon mango cherry fig grape")
JOBS = _words(
    "teacher nurse baker farmer painter driver doctor lawyer cook pilot writer singer engineer gardener builder librarian "
    "designer dentist tailor fisher"
)
ANIMALS = _words("dog cat fox owl bear rabbit horse mouse duck goat hen crow turtle frog hedgehog squirrel")
ADJECTIVES = _words("small large old new bright quiet heavy light clean simple round soft sharp warm cold plain")


def plural(noun: str) -> str:
    """The plural of the nouns above."""
    irregular = {"knife": "knives", "mouse": "mice"}
    if noun in irregular:
        return irregular[noun]
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def article(noun: str) -> str:
    return ("an " if noun[0] in "aeiou" else "a ") + noun
