"""Synthetic records: a short text, a JSON schema, and the JSON that answers both.

weft-tiny is trained on these, and tests and benchmarks prompt it with these. Only the standard library
is used and nothing else of weft is imported, so the file can also be loaded by its path.

Three splits, disjoint by construction. The facts that a text states are hashed (CRC-32 of their sorted
JSON); a record whose hash is 0 modulo 16 is ``"heldout"``, every other one is ``"train"``. No
train record states the same facts as a held-out one, whatever the seeds. ``"unseen"`` has shapes that
training never shows: other key names, other nestings and three further kinds of record. Its hash is
not looked at.
"""

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
_ALERT = "flood fog frost heat ice snow storm wind".split()
_DISTRACTORS = (
    "Please file this.|We spoke by phone.|More will follow soon.|This was typed in a hurry.|Nothing else is known.|"
    "See page 4.|Thanks for reading.|The rest can wait.|Filed under notes.|Copy sent to the office.|Checked twice.|"
    "Note 12 has more.|Reply within 3 days.|Sorry for the delay.|It was a quiet week.|Ask again if unsure."
).split("|")


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


def _rows(r: random.Random, keys: str, new: str, words: list[str], names: str, unit: str, says: str) -> _Fact:
    what, count = names.split()
    rows = [{what: w, count: r.randint(1, 90)} for w in r.sample(words, r.choice((1, 2, 2, 3)))]
    told = _shown([f"{row[count]} {unit}{row[what]}" for row in rows])
    schema: Schema = {"type": "array", "items": _object(**{what: _STR, count: _INT}), "minItems": 1}
    return _Fact(tuple(keys.split()), tuple(new.split()), schema, rows, tuple(says.replace("{}", told).split("|")))


def _name(r: random.Random) -> str:
    return f"{r.choice(_FIRST)} {r.choice(_LAST)}"


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
        _fact("street", "road", _STR, f"{r.randint(1, 200)} {r.choice(_STREET)} Street", "At {}.|Mail goes to {}.", "address"),
        _fact("job", "occupation", _STR, r.choice(_JOB), "Works as a {}.|Job: {}.|A {} by trade."),
        _fact("email", "contact", _STR, email, "Write to {}.|Email {}.", "contact"),
        _fact("phone", "tel", maybe, phone, "Call {}.|Phone {}." if phone else "", "contact"),
        _flag(r, "member is_member", "joined", "A member.|Has joined the club.", "Not a member.|Never joined."),
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
        _fact("title event", "label", _STR, f"{r.choice(_TOPIC)} {r.choice(_MEETING)}", "There is a {}.|Coming up: {}."),
        _fact("venue", "place", _STR, f"{r.choice(_STREET)} {r.choice(_VENUE)}", "At the {}.|Venue: {}.", "location"),
        _fact("city town", "where", _STR, r.choice(_CITY), "Held in {}.|The city is {}.", "location"),
        _fact("date day", "when", _STR, _date(r), "On {}.|Date: {}."),
        _fact("start", "opens", _STR, start, "Starts at {}.|Doors open {}."),
        _fact("seats capacity", "places", _INT, r.randint(10, 900), "{} seats.|Room for {}."),
        _list(r, "speakers", "guests", [_name(r) for _ in range(3)], 3, "With {}.|Speakers: {}."),
        _flag(r, "free", "no_fee", "Entry is free.|No ticket needed.", "Tickets are sold.|Entry costs money."),
        _enum(r, "level", "audience", "beginner advanced family expert", "Level: {}.|For {} guests."),
    ]


def _ticket(r: random.Random) -> list[_Fact]:
    return [
        _fact("id ticket", "number", _INT, r.randint(100, 99999), "Ticket {}.|Case number {}."),
        _fact("summary title", "problem", _STR, f"{r.choice(_THING)} is {r.choice(_TROUBLE)}", "The {}.|Problem: {}."),
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
        _fact("name product", "article", _STR, f"{r.choice(_COLOR)} {r.choice(_ITEM)}", "A {}.|Product: {}."),
        _fact("brand maker", "made_by", _STR, r.choice(_BRAND), "Made by {}.|Brand {}."),
        _fact("price", "costs", _NUM, _price(r, 900), "Price {}.|Costs {}."),
        _fact("stock", "left", _INT, r.randint(0, 500), "{} in stock.|Stock: {}."),
        _list(r, "colors", "shades", _COLOR, 3, "Comes in {}.|Colors: {}."),
        _enum(r, "size", "fit", "small medium large huge", "Size {}.|It is {}."),
        _fact("rating", "stars", _NUM, r.randint(10, 50) / 10, "Rated {}.|{} stars."),
        _fact("dimensions", "box", _object(width=_INT, height=_INT, depth=_INT), box, f"It is {told}.|Measures {told}."),
        _flag(r, "used", "second_hand", "Second hand.|Used.", "Brand new.|Never used."),
    ]


def _recipe(r: random.Random) -> list[_Fact]:
    return [
        _fact("dish name", "meal", _STR, f"{r.choice(_FOOD)} {r.choice(_DISH)}", "How to make {}.|Recipe: {}."),
        _fact("servings", "feeds", _INT, r.randint(1, 12), "Serves {}.|For {} guests."),
        _fact("minutes time", "duration", _INT, r.randint(5, 180), "Takes {} minutes.|Ready in {} minutes."),
        _rows(r, "ingredients", "needs", _FOOD, "name grams", "g ", "Needs {}.|Take {}."),
        _flag(r, "vegan", "no_meat", "Vegan.|No animal products.", "Not vegan.|With animal products."),
        _enum(r, "difficulty", "skill", "easy normal hard", "It is {} to make.|Difficulty: {}."),
        _fact("author chef", "cook", _STR, _name(r), "By {}.|Recipe from {}."),
        _list(r, "tools", "equipment", "bowl grater knife mixer oven pan pot whisk".split(), 3, "Use a {}.|Tools: {}."),
    ]


def _weather(r: random.Random) -> list[_Fact]:
    low = r.randint(-20, 25)
    heat = {"type": "integer", "minimum": -60, "maximum": 60}
    return [
        _fact("city place", "station", _STR, r.choice(_CITY), "Weather for {}.|In {}."),
        _fact("date day", "on", _STR, _date(r), "On {}.|Report of {}."),
        _fact("low", "coldest", heat, low, "Low {}.|At night {}.", "temperature"),
        _fact("high", "warmest", heat, low + r.randint(1, 15), "High {}.|By day {}.", "temperature"),
        _fact("humidity", "moisture", {"type": "integer", "minimum": 0, "maximum": 100}, r.randint(5, 100), "Humidity {}.|Air at {} percent."),
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
        _fact("film", "movie", _STR, f"The {r.choice(_COLOR).title()} {r.choice(_ITEM).title()}", "The film {}."),
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
        new_kind = unseen and rng.random() < 0.4
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
    schema, answer = _shape(r, wanted, unseen)
    text = " ".join(sentences)
    return Record(text, schema, answer, render_prompt(text, schema))


def _shape(r: random.Random, wanted: list[_Fact], unseen: bool) -> tuple[Schema, dict[str, Json]]:
    """The schema that asks for these facts, and its answer."""
    properties: dict[str, Schema] = {}
    answer: dict[str, Json] = {}
    nested = r.random() < 0.6
    bag = r.choice(("details", "info")) if r.random() < 0.15 else ""
    if unseen:
        nested, bag = r.random() < 0.3, r.choice(("", "", "data", "facts"))
    for i, fact in enumerate(wanted):
        key = r.choice(fact.new if unseen and r.random() < 0.6 else fact.keys)
        group = fact.group if nested and fact.group else bag if i else ""
        if group:
            inner = properties.setdefault(group, _object())
            if "properties" not in inner:  # a plain field has that name already
                continue
            inner["properties"][key] = fact.schema
            inner["required"].append(key)
            answer.setdefault(group, {})[key] = fact.value
        elif key not in properties:
            properties[key] = fact.schema
            answer[key] = fact.value
    if unseen and r.random() < 0.25:
        outer = r.choice(("record", "result"))
        properties, answer = {outer: _object(**properties)}, {outer: answer}
    return _object(**properties), answer


def render_prompt(text: str, schema: Schema) -> str:
    """The prompt that weft-tiny was trained on, for any text and any ordinary JSON schema."""
    return f"Text: {text}\nSchema: {render_schema(schema)}\nJSON: "


def render_schema(schema: Schema | bool, root: Schema | None = None) -> str:
    """A compact signature of a schema; what it does not know it calls ``any``."""
    if not isinstance(schema, dict):
        return "any"
    root = schema if root is None else root
    if "$ref" in schema:
        target: Json = root
        for part in str(schema["$ref"]).removeprefix("#").strip("/").split("/"):
            target = target.get(part, {}) if isinstance(target, dict) else {}
        known = isinstance(target, dict) and target is not root and "$ref" not in target
        return render_schema(target, root) if known else "any"
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    if "enum" in schema:
        return "|".join(json.dumps(v, ensure_ascii=False) for v in schema["enum"])
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return "|".join(render_schema(s, root) for s in schema[word])
    kind = schema.get("type", "object" if "properties" in schema else "array" if "items" in schema else "any")
    if isinstance(kind, list):
        return "|".join(render_schema({**schema, "type": k}, root) for k in kind)
    if kind == "object":
        properties = schema.get("properties", {})
        inside = ", ".join(f"{json.dumps(k, ensure_ascii=False)}: {render_schema(v, root)}" for k, v in properties.items())
        return "{" + inside + "}"
    if kind == "array":
        return f"[{render_schema(schema.get('items', {}), root)}]"
    return str(kind)
