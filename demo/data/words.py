"""Words that fill the patterns: names, places, things, and invented ones, so that the model learns to copy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from choice import Chooser

NAMES = (
    "Anna Ben Clara David Elena Felix Grace Hugo Ida Jonas Kira Leo Mara Nils Olga Paul Quinn Rosa Sven Tara Uwe Vera "
    "Walter Xenia Yusuf Zoe Aisha Boris Chen Dmitri Emre Fatima Giulia Hassan Ingrid Jamal Keiko Lars Mei Nadia Omar "
    "Priya Rafael Sofia Tomas Usha Victor Wanda Ximena Yara Zahra Amir Bianca Carlos Deepa Erik Farid Greta Henrik "
    "Irina Jorge Kofi Lena Miguel Noor Otto Petra Ravi Sana Theo Ulla Viktor Wei Yuki Zane Alice Bob Charlie Emma "
    "Frank Helen Jack Kate Liam Maria Noah Olivia Peter Rachel Sam Tom Lucy John Mary James Sarah Linda Mark Ada Alan "
    "Dennis Ken Margaret Barbara Edsger Donald Guido Max Nina Oscar Pia Rudi Simon Tess Ursula Vince Will Mona Karim"
).split()
SURNAMES = (
    "Smith Jones Miller Weber Rossi Novak Kim Tanaka Singh Lopez Garcia Meyer Brown Wilson Okafor Larsen Moreau Silva "
    "Kowalski Ivanov Hansen Fischer Costa Duarte Nguyen Park Sato Khan Haddad Bauer Keller Lindqvist Marino Popescu"
).split()
CITIES = (
    "Lisbon|Paris|Berlin|Madrid|Rome|Vienna|Oslo|Helsinki|Athens|Dublin|Prague|Warsaw|Budapest|Zurich|Geneva|Brussels|"
    "Amsterdam|Copenhagen|Stockholm|London|Manchester|Glasgow|Porto|Seville|Milan|Naples|Munich|Hamburg|Cologne|Lyon|"
    "Nice|Bordeaux|Tokyo|Osaka|Kyoto|Seoul|Busan|Beijing|Shanghai|Hong Kong|Singapore|Bangkok|Hanoi|Jakarta|Manila|"
    "Delhi|Mumbai|Chennai|Karachi|Dhaka|Tehran|Baghdad|Istanbul|Ankara|Cairo|Lagos|Nairobi|Accra|Dakar|Cape Town|Tunis|"
    "Casablanca|New York|Boston|Chicago|Denver|Seattle|Portland|Austin|Dallas|Miami|Atlanta|San Francisco|Los Angeles|"
    "Toronto|Montreal|Vancouver|Mexico City|Havana|Bogota|Lima|Quito|Santiago|Buenos Aires|Montevideo|Rio de Janeiro|"
    "Sydney|Melbourne|Perth|Brisbane|Auckland|Wellington|Reykjavik|Tallinn|Riga|Vilnius|Sofia|Bucharest|Zagreb|Ljubljana|"
    "Bratislava|Krakow|Gdansk|Turin|Genoa|Bergen|Malmo|Tampere|Antwerp|Ghent|Utrecht|Basel|Graz|Salzburg|Leipzig|Dresden"
).split("|")
COUNTRIES = (
    "Portugal|France|Germany|Spain|Italy|Austria|Norway|Finland|Greece|Ireland|Poland|Hungary|Sweden|Japan|Korea|India|"
    "Egypt|Kenya|Ghana|Canada|Mexico|Peru|Chile|Brazil|Australia|Iceland|Estonia|Turkey|Morocco|Vietnam|Cuba|Nepal"
).split("|")
JOBS = (
    "teacher|doctor|nurse|baker|pilot|engineer|lawyer|farmer|carpenter|cook|painter|writer|singer|dentist|architect|"
    "librarian|plumber|gardener|journalist|chemist|physicist|designer|programmer|tailor|florist|barber|mechanic|sailor|"
    "translator|photographer|electrician|judge|butcher|midwife|surgeon|welder|beekeeper|potter|geologist|waiter"
).split("|")
COLORS = (
    "red blue green yellow purple orange pink brown black white grey turquoise violet golden silver beige crimson teal"
).split()
ANIMALS = (
    "dog cat parrot rabbit hamster horse goldfish turtle canary lizard snake goat donkey ferret hen duck sheep pony owl"
).split()
FOODS = (
    "pizza|soup|bread|rice|pasta|salad|cheese|curry|sushi|pancakes|chocolate|apples|lentils|noodles|tacos|olives|"
    "mushrooms|potatoes|figs|dumplings|stew|waffles|honey|walnuts"
).split("|")
HOBBIES = (
    "chess|painting|running|swimming|cycling|reading|knitting|climbing|dancing|fishing|sailing|cooking|gardening|skiing|"
    "hiking|pottery|archery|photography|astronomy|fencing|juggling|origami"
).split("|")
THINGS = (
    "lamp|chair|table|book|bicycle|camera|kettle|backpack|umbrella|guitar|clock|phone|laptop|keyboard|mug|sofa|desk|"
    "tent|jacket|drill|mirror|blanket|knife|pillow|radio|bottle|ladder|basket|telescope|violin|printer|vase"
).split("|")
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
DOMAINS = "example.com example.org mail.test post.example work.test corp.example".split()
CONDITIONS = (
    "sunny|cloudy|light rain|heavy rain|snow|fog|windy|thunderstorm|clear sky|overcast|drizzle|partly cloudy|hail|"
    "showers|hot and dry|freezing rain|mist|scattered clouds|sleet|humid|clear|rainy|storm|haze"
).split("|")
FILES = (
    "note notes readme todo main config data report index list plan draft letter budget recipe log output input test "
    "server app users orders prices summary changes license makefile settings diary song poem story table results"
).split()
ENDINGS = "txt md py json csv log toml yaml c js html ini".split()
TOPICS = (
    "photosynthesis|black holes|the French Revolution|Napoleon|dinosaurs|inflation|volcanoes|Shakespeare|quantum physics|"
    "the moon|gravity|evolution|opera|jazz|football|the Olympics|vitamins|coffee|tea|bananas|elephants|penguins|whales|"
    "bees|tulips|cactuses|pyramids|castles|vikings|samurai|knights|pirates|trains|rockets|submarines|bridges|glaciers|"
    "deserts|rainbows|earthquakes|tides|Mozart|Beethoven|Picasso|Einstein|Newton|Darwin|Cleopatra|Caesar|Gandhi|Plato|"
    "democracy|taxes|mortgages|stocks|bitcoin|the stock market|yoga|meditation|insomnia|headaches|the flu|broken bones|"
    "sourdough|risotto|chess openings|poker|tennis|golf|surfing|marathons|DNA|proteins|atoms|magnets|electricity|lasers|"
    "algebra|geometry|prime numbers|calculus|statistics|poetry|grammar|Latin|the alphabet|dreams|love|happiness|time|"
    "the ocean|the Amazon|Mars|Jupiter|comets|galaxies|the sun|ice ages|fossils|diamonds|gold|oil|steel|paper|glass|"
    "clocks|maps|cameras|airplanes|bicycles|the steam engine|printing|vaccines|antibiotics|x-rays|blood|the heart|the brain|"
    "Harry Potter|Star Wars|Hamlet|Don Quixote|the Odyssey|Batman|the Beatles|ballet|cinema|chocolate|cheese|wine|beer|"
    "Kubernetes|Docker|Linux|Windows|Excel|JavaScript|Rust|Python decorators|SQL joins|regular expressions|blockchain|"
    "neural networks|machine learning|compilers|operating systems|databases|encryption|TCP|DNS|HTML|CSS|React|git rebase"
).split("|")
LANGUAGES = "French German Spanish Italian Portuguese Dutch Polish Japanese Chinese Latin Swedish Greek Turkish".split()


@cache
def everything() -> frozenset[str]:
    """Every word of these lists: what conversations copy."""
    lists = (
        NAMES,
        SURNAMES,
        CITIES,
        COUNTRIES,
        JOBS,
        COLORS,
        ANIMALS,
        FOODS,
        HOBBIES,
        THINGS,
        CONDITIONS,
        TOPICS,
        LANGUAGES,
    )
    return frozenset(word for one in lists for phrase in one for word in phrase.split()) - {"the", "of", "and", "I"}


_SMALL = "the a is are was in on at to of for with and or not my your this that it we I you he she".split()
_ONSETS = "b c d f g h j k l m n p r s t v w z br ch cl dr fl gr kl kr pl pr sh st th tr".split()
_VOWELS = "a e i o u a e i o ai ea ou".split()
_CODAS = ["", "", "", "n", "r", "l", "s", "m", "k", "t", "nd", "x"]


def one_of(c: Chooser, words: Sequence[str]) -> str:
    """One of these words, or one that nobody has seen: a list that is closed is learnt by heart, and nothing copied."""
    return c.of(words) if c.held_out or c.chance(0.6) else invented(c, c.number(1, 3))


def invented(c: Chooser, syllables: int = 0) -> str:
    """A word that nobody has seen."""
    rng = c.random
    return "".join(
        rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables or rng.randint(1, 3))
    )


def phrase(c: Chooser) -> str:
    """Some words in a row that nobody has seen together: short ones of every list, and invented ones."""
    lists = (COLORS, ANIMALS, FOODS, HOBBIES, THINGS, DAYS, ENDINGS, _SMALL)
    return " ".join(invented(c) if c.chance(0.35) else c.of(c.any(lists)) for _ in range(c.number(2, 6)))


def new_key(c: Chooser, key: str) -> str:
    """A name of a parameter that nobody has seen, which may say as much as `key` does."""
    word = invented(c)
    return c.any((word, f"{key}_{word}", f"{word}_{key}", f"{word}{key.capitalize()}", f"{key}{word.capitalize()}"))


def name(c: Chooser) -> str:
    """A first name, now and then an invented one."""
    return c.of(NAMES) if c.chance(0.55) else invented(c, c.number(2, 3)).capitalize()


def surname(c: Chooser) -> str:
    """A family name."""
    return c.of(SURNAMES) if c.chance(0.5) else invented(c, c.number(1, 3)).capitalize()


def full_name(c: Chooser) -> str:
    """First and family name."""
    return f"{name(c)} {surname(c)}"


def city(c: Chooser) -> str:
    """A city, now and then an invented one, now and then written small."""
    found = c.of(CITIES) if c.chance(0.6) else invented(c, c.number(2, 3)).capitalize()
    return found.lower() if c.chance(0.12) else found


def file_name(c: Chooser) -> str:
    """A file name, sometimes with folders before it."""
    stem = c.of(FILES) if c.chance(0.6) else invented(c)
    if c.chance(0.15):
        stem += c.any("_-") + c.any(FILES)
    if c.chance(0.1):
        stem += str(c.number(1, 99))
    path = f"{stem}.{c.any(ENDINGS)}"
    if c.chance(0.25):
        path = f"{c.of(FILES)}/{path}"
    return ("/" + c.any(["home", "tmp", "srv", "etc", "work"]) + "/" + path) if c.chance(0.12) else path


def email(c: Chooser) -> str:
    """An address under a reserved domain."""
    return f"{name(c).lower()}{c.any(['', '.' + surname(c).lower(), str(c.number(1, 99))])}@{c.any(DOMAINS)}"


def clock(c: Chooser) -> str:
    """A time of day."""
    return c.any([f"{c.number(0, 23)}:{c.number(0, 5)}{c.any('05')}", f"{c.number(1, 12)} pm", f"{c.number(1, 12)} am"])


def topic(c: Chooser) -> str:
    """Something that the model does not know."""
    return c.of(TOPICS) if c.chance(0.75) else invented(c, c.number(2, 3))
