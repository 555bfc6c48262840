"""Synthetic records: a short text, a JSON schema, and the JSON that answers both.

weft-tiny is trained on these, and tests and benchmarks prompt it with these. Only the standard library
is used and nothing else of weft is imported, so the file can also be loaded by its path.

Three splits, disjoint by construction. The facts that a text states are hashed (CRC-32 of their sorted
JSON); a record whose hash is 0 modulo 16 is ``"heldout"``, every other one is ``"train"``. No
train record states the same facts as a held-out one, whatever the seeds. ``"unseen"`` has shapes that
training never shows: other key names, other nestings and three further kinds of record. Its hash is
not looked at.
"""

# ruff: noqa: SIM905 - word lists read better as text

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Json = Any
Schema = dict[str, Any]
Split = Literal["train", "heldout", "unseen"]

_FIRST = (
    "Ada Alan Amir Anna Ben Bo Carl Cora Dan Dora Eli Emma Eve Finn Gus Hana Hugo Ida Ines Ivan Jack Jane "
    "Jon Kai Kim Lars Lea Leo Lily Lou Luis Mara Max Mia Milo Nina Noah Nora Omar Otto Paul Pia Ravi Rita "
    "Rosa Sam Sara Sven Tara Theo Tom Uma Vera Will Yara Zoe"
).split()
_LAST = (
    "Adler Baker Berg Blum Costa Cruz Diaz Dubois Evans Fischer Ford Garcia Gupta Hall Hansen Hill Ito "
    "Jensen Kaur Khan Klein Kovac Lang Lee Lopez Meyer Moreau Mori Nagy Novak Olsen Park Patel Perez Popov "
    "Quinn Reed Rossi Sato Silva Singh Smith Stone Tan Torres Vogel Wang Weber Wolf Young Zhang"
).split()
_CITY = (
    "Accra Berlin Bern Cairo Delhi Dublin Geneva Hanoi Kyiv Lagos Lima Lisbon London Madrid Milan Nairobi "
    "Oslo Paris Prague Quito Riga Rome Seoul Sofia Tokyo Turin Vienna Warsaw Zagreb Zurich"
).split()
_JOB = (
    "actor baker carpenter chemist cook dentist doctor driver editor engineer farmer gardener judge "
    "lawyer librarian miner nurse painter pilot plumber potter sailor singer surgeon tailor teacher writer"
).split()
_COLOR = "black blue brown gold green grey orange pink purple red silver white yellow".split()
_ITEM = (
    "bag bike book bottle camera chair clock coat desk guitar hat knife lamp map mug pen phone piano radio "
    "ring rug shirt sofa table tent umbrella vase watch"
).split()
_STREET = "Oak Elm Mill Lake Church Park Bridge Garden River Station Market Harbour".split()
_LANGUAGE = "Arabic Danish Dutch English French German Hindi Italian Polish Spanish Swahili Turkish".split()
_TOPIC = "art chess cinema dance history jazz maths opera poetry robots sailing wine".split()
_MEETING = "concert course fair lecture meeting party reading show talk workshop".split()
_VENUE = "Arena Castle Forum Gallery Hall Library Museum Palace School Theatre".split()
_THING = "account backup email invoice keyboard login menu password printer report screen server".split()
_TROUBLE = "broken blank empty frozen late locked lost missing noisy slow stuck wrong".split()
_TAG = "api billing cloud crash data network office security setup support ui web".split()
_BRAND = "Acme Bolt Cedar Delta Fjord Lumen Nordic Orbit Pixel Solis Vertex Zephyr".split()
_FOOD = (
    "apples beans butter carrots cheese cream eggs fish flour garlic honey lemon milk mushrooms nuts oil "
    "onions pasta peas pepper potatoes rice salt spinach sugar tomatoes"
).split()
_DISH = "bread cake curry omelette pie risotto salad sauce soup stew".split()
_TOOL = "bowl grater knife mixer oven pan pot whisk".split()
_ALERT = "flood fog frost heat ice snow storm wind".split()
_DISTRACTORS = (
    "Please file this.|We spoke by phone.|More will follow soon.|This was typed in a hurry.|"
    "Nothing else is known.|See page 4.|Thanks for reading.|The rest can wait.|Filed under notes.|"
    "Copy sent to the office.|Checked twice.|Note 12 has more.|Reply within 3 days.|"
    "Sorry for the delay.|It was a quiet week.|Ask again if unsure."
).split("|")
_KEY_WORDS = [w.lower() for w in _ITEM + _FOOD + _THING + _TAG + _COLOR + _STREET + _JOB + _VENUE]
_BAGS = "details info summary entry body extra part block node main".split()
_PREFIXES = "the_ my_ main_ first_ given_ a_".split()
_SUFFIXES = "_value _text _field _1 _2 _x _here".split()
_NEW_PREFIXES = "our_ known_ x_".split()
_NEW_SUFFIXES = "_info _3 _now".split()


@dataclass(frozen=True)
class Record:
    """One example: what the model reads (`prompt`) and what it ought to write (`answer`)."""

    text: str
    schema: Schema
    answer: dict[str, Json]
    prompt: str

    @property
    def completion(self) -> str:
        """The answer as the model is trained to write it."""
        return json.dumps(self.answer, ensure_ascii=False)


@dataclass(frozen=True)
class _Fact:
    keys: tuple[str, ...]  # names that training uses
    new: tuple[str, ...]  # names that only the unseen split uses
    schema: Schema
    value: Json
    says: tuple[str, ...]  # sentences that state it; none: the text is silent, and the value is null
    group: str = ""  # an object it may be nested in


_STR: Schema = {"type": "string"}
_NUM: Schema = {"type": "number"}
_BOOL: Schema = {"type": "boolean"}
_PERCENT: Schema = {"type": "integer", "minimum": 0, "maximum": 100}
_INT: Schema = {"type": "integer", "minimum": 0}


def _shown(value: Json) -> str:
    if isinstance(value, list):
        words = [str(v) for v in value]
        return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else words[0]
    return str(value)


def _fact(keys: str, new: str, schema: Schema, value: Json, says: str, group: str = "") -> _Fact:
    """`keys` and `new` are separated by spaces, `says` by bars; {} is the value."""
    sentences = tuple(s.replace("{}", _shown(value)) for s in says.split("|")) if says else ()
    return _Fact(tuple(keys.split()), tuple(new.split()), schema, value, sentences, group)


def _flag(r: random.Random, keys: str, new: str, yes: str, no: str) -> _Fact:
    value = r.random() < 0.5
    return _fact(keys, new, _BOOL, value, yes if value else no)


def _enum(r: random.Random, keys: str, new: str, values: str, says: str, group: str = "") -> _Fact:
    names = values.split()
    return _fact(keys, new, {"type": "string", "enum": names}, r.choice(names), says, group)


def _list(r: random.Random, keys: str, new: str, words: list[str], most: int, says: str) -> _Fact:
    schema: Schema = {"type": "array", "items": _STR, "minItems": 1}
    return _fact(keys, new, schema, r.sample(words, r.randint(1, most)), says)


def _object(**properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_BOX = _object(width=_INT, height=_INT, depth=_INT)


def _rows(r: random.Random, keys: str, new: str, words: list[str], names: str, unit: str, says: str) -> _Fact:
    what, count = names.split()
    rows = [{what: w, count: r.randint(1, 90)} for w in r.sample(words, r.choice((1, 2, 2, 3)))]
    told = _shown([f"{row[count]} {unit}{row[what]}" for row in rows])
    schema: Schema = {"type": "array", "items": _object(**{what: _STR, count: _INT}), "minItems": 1}
    return _Fact(
        tuple(keys.split()), tuple(new.split()), schema, rows, tuple(says.replace("{}", told).split("|"))
    )


def _two(r: random.Random, first: list[str], second: list[str]) -> str:
    return f"{r.choice(first)} {r.choice(second)}"


def _made_up(r: random.Random) -> str:
    """A word that is in no list, so that words must be copied piece by piece."""
    syllables = (r.choice("bcdfghjklmnprstvwz") + r.choice("aeiou") for _ in range(r.randint(1, 2)))
    return "".join(syllables) + r.choice("bdfgklmnprstxyz")


def _name(r: random.Random) -> str:
    if r.random() < 0.03:
        return f"{r.choice(_FIRST)} {_made_up(r).title()}"
    return _two(r, _FIRST, _LAST)


def _date(r: random.Random) -> str:
    return f"{r.randint(2020, 2029)}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}"


def _price(r: random.Random, top: int) -> float:
    return r.randint(100, top * 100) / 100


def _code(r: random.Random) -> str:
    return f"{r.choice('ABCDEFGHKLMPRSTX')}{r.choice('ABCDEFGHKLMPRSTX')}-{r.randint(100, 9999)}"


def _person(r: random.Random) -> list[_Fact]:
    name = _name(r)
    email = name.lower().replace(" ", ".") + "@" + r.choice(("mail", "post", "web")) + ".org"
    phone = f"{r.randint(100, 999)}-{r.randint(1000, 9999)}" if r.random() < 0.7 else None
    maybe: Schema = {"type": ["string", "null"]}
    return [
        _fact("name full_name", "person", _STR, name, "This is {}.|Name: {}.|Meet {}."),
        _fact("age years", "years_old", _INT, r.randint(18, 99), "Age {}.|{} years old.|Turned {}."),
        _fact("city town", "home", _STR, r.choice(_CITY), "Lives in {}.|Home is {}.", "address"),
        _fact(
            "street",
            "road",
            _STR,
            f"{r.randint(1, 200)} {r.choice(_STREET)} Street",
            "At {}.|Mail goes to {}.",
            "address",
        ),
        _fact("job", "occupation", _STR, r.choice(_JOB), "Works as a {}.|Job: {}.|A {} by trade."),
        _fact("email", "contact", _STR, email, "Write to {}.|Email {}.", "contact"),
        _fact("phone", "tel", maybe, phone, "Call {}.|Phone {}." if phone else "", "contact"),
        _flag(
            r, "member is_member", "joined", "A member.|Has joined the club.", "Not a member.|Never joined."
        ),
        _list(r, "languages", "speaks", _LANGUAGE, 3, "Speaks {}.|Languages: {}."),
    ]


def _order(r: random.Random) -> list[_Fact]:
    things = [f"{c} {i}" for c, i in zip(r.sample(_COLOR, 4), r.sample(_ITEM, 4), strict=True)]
    return [
        _fact("order_id id", "reference", _STR, _code(r), "Order {}.|Order number {}."),
        _fact("customer buyer", "client", _STR, _name(r), "For {}.|Bought by {}.|Customer: {}."),
        _rows(r, "items", "lines", things, "item quantity", "x ", "Contains {}.|Items: {}."),
        _fact("total", "amount", _NUM, _price(r, 900), "Total {}.|Comes to {}.", "payment"),
        _enum(r, "currency", "money", "EUR USD GBP JPY", "Paid in {}.|Currency {}.", "payment"),
        _enum(r, "status", "stage", "new packed shipped returned", "Status: {}.|It is {} now."),
        _flag(r, "paid", "settled", "Fully paid.|The bill is settled.", "Not paid yet.|The bill is open."),
        _fact("ship_date date", "sent_on", _STR, _date(r), "Ships on {}.|Leaves us {}."),
    ]


def _trip(r: random.Random) -> list[_Fact]:
    a, b = r.sample(_CITY, 2)
    return [
        _fact("from origin", "start", _STR, a, "Leaves {}.|Starts in {}.", "route"),
        _fact("to destination", "end", _STR, b, "Goes to {}.|Arrives in {}.", "route"),
        _fact("date day", "when", _STR, _date(r), "On {}.|Travel date {}."),
        _fact("passengers seats", "travellers", _INT, r.randint(1, 9), "{} people.|Seats: {}."),
        _fact("fare price", "cost", _NUM, _price(r, 600), "Fare {}.|Costs {}."),
        _flag(r, "direct", "nonstop", "Direct.|No change needed.", "With a stop.|One has to change."),
        _enum(r, "mode", "vehicle", "train bus plane ferry", "By {}.|Takes the {}."),
        _fact("number code", "service", _STR, _code(r), "Service {}.|It is number {}."),
    ]


def _event(r: random.Random) -> list[_Fact]:
    start = f"{r.randint(8, 21):02d}:{r.choice(('00', '15', '30', '45'))}"
    return [
        _fact("title event", "label", _STR, _two(r, _TOPIC, _MEETING), "There is a {}.|Coming up: {}."),
        _fact("venue", "place", _STR, _two(r, _STREET, _VENUE), "At the {}.|Venue: {}.", "location"),
        _fact("city town", "where", _STR, r.choice(_CITY), "Held in {}.|The city is {}.", "location"),
        _fact("date day", "when", _STR, _date(r), "On {}.|Date: {}."),
        _fact("start", "opens", _STR, start, "Starts at {}.|Doors open {}."),
        _fact("seats capacity", "places", _INT, r.randint(10, 900), "{} seats.|Room for {}."),
        _list(r, "speakers", "guests", [_name(r) for _ in range(3)], 3, "With {}.|Speakers: {}."),
        _flag(
            r, "free", "no_fee", "Entry is free.|No ticket needed.", "Tickets are sold.|Entry costs money."
        ),
        _enum(r, "level", "audience", "beginner advanced family expert", "Level: {}.|For {} guests."),
    ]


def _ticket(r: random.Random) -> list[_Fact]:
    return [
        _fact("id ticket", "number", _INT, r.randint(100, 99999), "Ticket {}.|Case number {}."),
        _fact(
            "summary title",
            "problem",
            _STR,
            f"{r.choice(_THING)} is {r.choice(_TROUBLE)}",
            "The {}.|Problem: {}.",
        ),
        _enum(r, "priority", "severity", "low medium high urgent", "Priority {}.|This is {}."),
        _fact("reporter", "raised_by", _STR, _name(r), "Reported by {}.|{} wrote in.", "people"),
        _fact("assignee owner", "handler", _STR, _name(r), "Assigned to {}.|{} works on it.", "people"),
        _list(r, "tags labels", "topics", _TAG, 4, "Tags: {}.|Tagged {}."),
        _flag(r, "open", "active", "Still open.|Not solved yet.", "Closed.|Solved by now."),
        _fact("hours", "effort", _NUM, r.randint(1, 80) / 2, "Took {} hours.|{} hours spent."),
    ]


def _product(r: random.Random) -> list[_Fact]:
    box = {k: r.randint(2, 250) for k in ("width", "height", "depth")}
    told = f"{box['width']} wide, {box['height']} high, {box['depth']} deep"
    return [
        _fact("name product", "article", _STR, _two(r, _COLOR, _ITEM), "A {}.|Product: {}."),
        _fact("brand maker", "made_by", _STR, r.choice(_BRAND), "Made by {}.|Brand {}."),
        _fact("price", "costs", _NUM, _price(r, 900), "Price {}.|Costs {}."),
        _fact("stock", "left", _INT, r.randint(0, 500), "{} in stock.|Stock: {}."),
        _list(r, "colors", "shades", _COLOR, 3, "Comes in {}.|Colors: {}."),
        _enum(r, "size", "fit", "small medium large huge", "Size {}.|It is {}."),
        _fact("rating", "stars", _NUM, r.randint(10, 50) / 10, "Rated {}.|{} stars."),
        _fact("dimensions", "box", _BOX, box, f"It is {told}.|Measures {told}."),
        _flag(r, "used", "second_hand", "Second hand.|Used.", "Brand new.|Never used."),
    ]


def _recipe(r: random.Random) -> list[_Fact]:
    return [
        _fact("dish name", "meal", _STR, _two(r, _FOOD, _DISH), "How to make {}.|Recipe: {}."),
        _fact("servings", "feeds", _INT, r.randint(1, 12), "Serves {}.|For {} guests."),
        _fact("minutes time", "duration", _INT, r.randint(5, 180), "Takes {} minutes.|Ready in {} minutes."),
        _rows(r, "ingredients", "needs", _FOOD, "name grams", "g ", "Needs {}.|Take {}."),
        _flag(r, "vegan", "no_meat", "Vegan.|No animal products.", "Not vegan.|With animal products."),
        _enum(r, "difficulty", "skill", "easy normal hard", "It is {} to make.|Difficulty: {}."),
        _fact("author chef", "cook", _STR, _name(r), "By {}.|Recipe from {}."),
        _list(r, "tools", "equipment", _TOOL, 3, "Use a {}.|Tools: {}."),
    ]


def _weather(r: random.Random) -> list[_Fact]:
    low = r.randint(-20, 25)
    heat = {"type": "integer", "minimum": -60, "maximum": 60}
    return [
        _fact("city place", "station", _STR, r.choice(_CITY), "Weather for {}.|In {}."),
        _fact("date day", "on", _STR, _date(r), "On {}.|Report of {}."),
        _fact("low", "coldest", heat, low, "Low {}.|At night {}.", "temperature"),
        _fact("high", "warmest", heat, low + r.randint(1, 15), "High {}.|By day {}.", "temperature"),
        _fact("humidity", "moisture", _PERCENT, r.randint(5, 100), "Humidity {}.|Air at {} percent."),
        _fact("wind wind_speed", "gusts", _NUM, r.randint(0, 400) / 10, "Wind {}.|The wind blows at {}."),
        _enum(r, "sky", "clouds", "clear cloudy grey foggy", "Sky: {}.|A {} sky."),
        _flag(r, "rain", "wet", "Rain expected.|It will rain.", "No rain.|It stays dry."),
        _list(r, "alerts warnings", "dangers", _ALERT, 3, "Alerts: {}.|Beware of {}."),
    ]


def _match(r: random.Random) -> list[_Fact]:
    a, b = r.sample(_CITY, 2)
    return [
        _fact("home", "home_team", _STR, f"{a} Tigers", "{} play at home.", "teams"),
        _fact("away", "away_team", _STR, f"{b} Bears", "{} are the visitors.", "teams"),
        _fact("goals_home", "points", _INT, r.randint(0, 9), "{} goals at home.", "score"),
        _fact("goals_away", "points_away", _INT, r.randint(0, 9), "{} goals away.", "score"),
        _list(r, "scorers", "heroes", [_name(r) for _ in range(3)], 3, "Scored by {}."),
        _enum(r, "sport", "game", "hockey football rugby", "A {} match."),
    ]


def _film(r: random.Random) -> list[_Fact]:
    return [
        _fact(
            "film", "movie", _STR, f"The {r.choice(_COLOR).title()} {r.choice(_ITEM).title()}", "The film {}."
        ),
        _fact("year", "released", _INT, r.randint(1920, 2029), "From {}."),
        _fact("director", "directed_by", _STR, _name(r), "Directed by {}."),
        _list(r, "cast", "actors", [_name(r) for _ in range(4)], 4, "Starring {}."),
        _fact("score", "critics", _NUM, r.randint(10, 99) / 10, "Critics give {}."),
        _enum(r, "genre", "type", "comedy drama thriller western", "A {}."),
    ]


def _hotel(r: random.Random) -> list[_Fact]:
    return [
        _fact("hotel", "lodging", _STR, f"Hotel {r.choice(_STREET)}", "A stay at {}."),
        _fact("guest", "booked_for", _STR, _name(r), "Booked for {}."),
        _fact("nights", "length", _INT, r.randint(1, 21), "{} nights."),
        _fact("check_in", "arrival", _STR, _date(r), "Check-in {}."),
        _enum(r, "board", "meals", "none breakfast half full", "Board: {}."),
        _rows(r, "rooms", "bookings", ["single", "double", "suite"], "kind count", "x ", "Rooms: {}."),
    ]


_KINDS: tuple[Callable[[random.Random], list[_Fact]], ...] = (
    _person, _order, _trip, _event, _ticket, _product, _recipe, _weather,
)  # fmt: skip
_NEW_KINDS: tuple[Callable[[random.Random], list[_Fact]], ...] = (_match, _film, _hotel)


def is_heldout(facts: dict[str, Json]) -> bool:
    """Whether a record that states these facts is kept out of training."""
    return zlib.crc32(json.dumps(facts, sort_keys=True).encode()) % 16 == 0


def example(rng: random.Random, split: Split = "train") -> Record:
    """One record of a split; the same `rng` state gives the same record."""
    while True:
        unseen = split == "unseen"
        new_kind = unseen and rng.random() < 0.1
        facts = rng.choice(_NEW_KINDS if new_kind else _KINDS)(rng)
        said = rng.sample(facts, rng.randint(3, min(6, len(facts))))
        if unseen or is_heldout({f.keys[0]: f.value for f in said}) == (split == "heldout"):
            return _record(rng, facts, said, unseen)


def _record(r: random.Random, facts: list[_Fact], said: list[_Fact], unseen: bool) -> Record:
    sentences = [r.choice(f.says) for f in said if f.says]
    for _ in range(r.choice((0, 0, 1, 1, 2))):
        sentences.insert(r.randint(0, len(sentences)), r.choice(_DISTRACTORS))
    wanted = r.sample(said, r.randint(2, min(5, len(said))))
    if r.random() < 0.3:
        wanted.sort(key=facts.index)
    schema, answer = _shape(r, said, wanted, unseen)
    text = " ".join(sentences)
    return Record(text, schema, answer, render_prompt(text, schema))


def _any_key(r: random.Random) -> str:
    return _made_up(r) if r.random() < 0.4 else "_".join(r.sample(_KEY_WORDS, r.choice((1, 1, 2))))


def _keys(r: random.Random, said: list[_Fact], wanted: list[_Fact], unseen: bool) -> list[str]:
    """A name for each wanted fact.

    Where no other stated fact has such a schema, the name tells nothing and may be any. Others may be
    decorated. So names must be copied from the schema, not known by heart.
    """
    signatures = [render_schema(f.schema) for f in said]
    prefixes, suffixes = (_NEW_PREFIXES, _NEW_SUFFIXES) if unseen else (_PREFIXES, _SUFFIXES)
    decorated = r.random() < 0.25
    names: list[str] = []
    for fact in wanted:
        name = r.choice(fact.new if unseen and r.random() < 0.1 else fact.keys)
        if signatures.count(render_schema(fact.schema)) == 1 and r.random() < 0.12:
            name = _any_key(r)
        elif decorated and r.random() < 0.5:
            name = r.choice(prefixes) + name if r.random() < 0.5 else name + r.choice(suffixes)
        names.append(name)
    return names


def _shape(
    r: random.Random, said: list[_Fact], wanted: list[_Fact], unseen: bool
) -> tuple[Schema, dict[str, Json]]:
    """The schema that asks for the wanted facts, and its answer."""
    properties: dict[str, Schema] = {}
    groups: dict[str, Schema] = {}
    answer: dict[str, Json] = {}
    nested = r.random() < 0.6
    bag = (r.choice(_BAGS) if r.random() < 0.7 else _any_key(r)) if r.random() < 0.15 else ""
    if unseen:
        nested, bag = r.random() < 0.3, r.choice(("", "", "data", "account"))
    for i, (fact, key) in enumerate(zip(wanted, _keys(r, said, wanted, unseen), strict=True)):
        group = fact.group if nested and fact.group else bag if i else ""
        if group:
            inner = groups[group] if group in groups else _object()
            if (group in properties and group not in groups) or key in inner["properties"]:
                continue  # the name is taken
            properties[group] = groups[group] = inner
            inner["properties"][key] = fact.schema
            inner["required"].append(key)
            answer.setdefault(group, {})[key] = fact.value
        elif key not in properties:
            properties[key] = fact.schema
            answer[key] = fact.value
    if r.random() < (0.25 if unseen else 0.08):
        outer = r.choice(("report", "menu")) if unseen else r.choice(_BAGS)
        properties, answer = {outer: _object(**properties)}, {outer: answer}
    return _object(**properties), answer


def render_prompt(text: str, schema: Schema) -> str:
    """The prompt that weft-tiny was trained on, for any text and any ordinary JSON schema."""
    return f"Text: {text}\nSchema: {render_schema(schema)}\nJSON: "


def render_schema(schema: Schema | bool) -> str:
    """A compact signature of a schema; what it does not know it calls ``any``."""
    return _render(schema, schema, frozenset())


def _render(schema: Json, root: Json, above: frozenset[str]) -> str:
    if not isinstance(schema, dict):
        return "any"
    if "$ref" in schema:
        ref = str(schema["$ref"])
        target = root if ref.startswith("#") and ref not in above else None
        for part in ref.removeprefix("#").strip("/").split("/"):
            target = target.get(part) if isinstance(target, dict) else None
        return _render(target, root, above | {ref})
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    if "enum" in schema:
        return "|".join(json.dumps(v, ensure_ascii=False) for v in schema["enum"])
    for word in ("anyOf", "oneOf", "allOf"):
        if word in schema:
            return "|".join(_render(s, root, above) for s in schema[word])
    implied = "object" if "properties" in schema else "array" if "items" in schema else "any"
    kind = schema.get("type", implied)
    if isinstance(kind, list):
        return "|".join(_render({**schema, "type": k}, root, above) for k in kind)
    if kind == "object":
        fields = schema.get("properties", {}).items()
        inside = (f"{json.dumps(k, ensure_ascii=False)}: {_render(v, root, above)}" for k, v in fields)
        return "{" + ", ".join(inside) + "}"
    if kind == "array":
        return f"[{_render(schema.get('items'), root, above)}]"
    return str(kind)
