"""The kinds of synthetic records: each function draws the facts of one person, order, trip and so on."""

from __future__ import annotations

import random
from collections.abc import Callable

from weft.tiny.facts import (
    COUNT,
    NUMBER,
    PERCENT,
    STRING,
    Fact,
    code,
    date,
    enum,
    fact,
    flag,
    full_name,
    listing,
    object_schema,
    price,
    table,
    two_words,
)
from weft.tiny.prompts import Schema
from weft.tiny.vocabulary import (
    ALERT,
    BRAND,
    CITY,
    COLOR,
    DISH,
    FOOD,
    ITEM,
    JOB,
    LANGUAGE,
    MEETING,
    STREET,
    TAG,
    THING,
    TOOL,
    TOPIC,
    TROUBLE,
    VENUE,
)

_BOX = object_schema(width=COUNT, height=COUNT, depth=COUNT)


def _person(r: random.Random) -> list[Fact]:
    name = full_name(r)
    email = name.lower().replace(" ", ".") + "@" + r.choice(("mail", "post", "web")) + ".org"
    phone = f"{r.randint(100, 999)}-{r.randint(1000, 9999)}" if r.random() < 0.7 else None
    maybe: Schema = {"type": ["string", "null"]}
    return [
        fact("name full_name", "person", STRING, name, "This is {}.|Name: {}.|Meet {}."),
        fact("age years", "years_old", COUNT, r.randint(18, 99), "Age {}.|{} years old.|Turned {}."),
        fact("city town", "home", STRING, r.choice(CITY), "Lives in {}.|Home is {}.", "address"),
        fact(
            "street",
            "road",
            STRING,
            f"{r.randint(1, 200)} {r.choice(STREET)} Street",
            "At {}.|Mail goes to {}.",
            "address",
        ),
        fact("job", "occupation", STRING, r.choice(JOB), "Works as a {}.|Job: {}.|A {} by trade."),
        fact("email", "contact", STRING, email, "Write to {}.|Email {}.", "contact"),
        fact("phone", "tel", maybe, phone, "Call {}.|Phone {}." if phone else "", "contact"),
        flag(
            r, "member is_member", "joined", "A member.|Has joined the club.", "Not a member.|Never joined."
        ),
        listing(r, "languages", "speaks", LANGUAGE, 3, "Speaks {}.|Languages: {}."),
    ]


def _order(r: random.Random) -> list[Fact]:
    things = [f"{c} {i}" for c, i in zip(r.sample(COLOR, 4), r.sample(ITEM, 4), strict=True)]
    return [
        fact("order_id id", "reference", STRING, code(r), "Order {}.|Order number {}."),
        fact("customer buyer", "client", STRING, full_name(r), "For {}.|Bought by {}.|Customer: {}."),
        table(r, "items", "lines", things, "item quantity", "x ", "Contains {}.|Items: {}."),
        fact("total", "amount", NUMBER, price(r, 900), "Total {}.|Comes to {}.", "payment"),
        enum(r, "currency", "money", "EUR USD GBP JPY", "Paid in {}.|Currency {}.", "payment"),
        enum(r, "status", "stage", "new packed shipped returned", "Status: {}.|It is {} now."),
        flag(r, "paid", "settled", "Fully paid.|The bill is settled.", "Not paid yet.|The bill is open."),
        fact("ship_date date", "sent_on", STRING, date(r), "Ships on {}.|Leaves us {}."),
    ]


def _trip(r: random.Random) -> list[Fact]:
    a, b = r.sample(CITY, 2)
    return [
        fact("from origin", "start", STRING, a, "Leaves {}.|Starts in {}.", "route"),
        fact("to destination", "end", STRING, b, "Goes to {}.|Arrives in {}.", "route"),
        fact("date day", "when", STRING, date(r), "On {}.|Travel date {}."),
        fact("passengers seats", "travellers", COUNT, r.randint(1, 9), "{} people.|Seats: {}."),
        fact("fare price", "cost", NUMBER, price(r, 600), "Fare {}.|Costs {}."),
        flag(r, "direct", "nonstop", "Direct.|No change needed.", "With a stop.|One has to change."),
        enum(r, "mode", "vehicle", "train bus plane ferry", "By {}.|Takes the {}."),
        fact("number code", "service", STRING, code(r), "Service {}.|It is number {}."),
    ]


def _event(r: random.Random) -> list[Fact]:
    start = f"{r.randint(8, 21):02d}:{r.choice(('00', '15', '30', '45'))}"
    return [
        fact("title event", "label", STRING, two_words(r, TOPIC, MEETING), "There is a {}.|Coming up: {}."),
        fact("venue", "place", STRING, two_words(r, STREET, VENUE), "At the {}.|Venue: {}.", "location"),
        fact("city town", "where", STRING, r.choice(CITY), "Held in {}.|The city is {}.", "location"),
        fact("date day", "when", STRING, date(r), "On {}.|Date: {}."),
        fact("start", "opens", STRING, start, "Starts at {}.|Doors open {}."),
        fact("seats capacity", "places", COUNT, r.randint(10, 900), "{} seats.|Room for {}."),
        listing(r, "speakers", "guests", [full_name(r) for _ in range(3)], 3, "With {}.|Speakers: {}."),
        flag(r, "free", "no_fee", "Entry is free.|No ticket needed.", "Tickets are sold.|Entry costs money."),
        enum(r, "level", "audience", "beginner advanced family expert", "Level: {}.|For {} guests."),
    ]


def _ticket(r: random.Random) -> list[Fact]:
    return [
        fact("id ticket", "number", COUNT, r.randint(100, 99999), "Ticket {}.|Case number {}."),
        fact(
            "summary title",
            "problem",
            STRING,
            f"{r.choice(THING)} is {r.choice(TROUBLE)}",
            "The {}.|Problem: {}.",
        ),
        enum(r, "priority", "severity", "low medium high urgent", "Priority {}.|This is {}."),
        fact("reporter", "raised_by", STRING, full_name(r), "Reported by {}.|{} wrote in.", "people"),
        fact("assignee owner", "handler", STRING, full_name(r), "Assigned to {}.|{} works on it.", "people"),
        listing(r, "tags labels", "topics", TAG, 4, "Tags: {}.|Tagged {}."),
        flag(r, "open", "active", "Still open.|Not solved yet.", "Closed.|Solved by now."),
        fact("hours", "effort", NUMBER, r.randint(1, 80) / 2, "Took {} hours.|{} hours spent."),
    ]


def _product(r: random.Random) -> list[Fact]:
    box = {k: r.randint(2, 250) for k in ("width", "height", "depth")}
    told = f"{box['width']} wide, {box['height']} high, {box['depth']} deep"
    return [
        fact("name product", "article", STRING, two_words(r, COLOR, ITEM), "A {}.|Product: {}."),
        fact("brand maker", "made_by", STRING, r.choice(BRAND), "Made by {}.|Brand {}."),
        fact("price", "costs", NUMBER, price(r, 900), "Price {}.|Costs {}."),
        fact("stock", "left", COUNT, r.randint(0, 500), "{} in stock.|Stock: {}."),
        listing(r, "colors", "shades", COLOR, 3, "Comes in {}.|Colors: {}."),
        enum(r, "size", "fit", "small medium large huge", "Size {}.|It is {}."),
        fact("rating", "stars", NUMBER, r.randint(10, 50) / 10, "Rated {}.|{} stars."),
        fact("dimensions", "box", _BOX, box, f"It is {told}.|Measures {told}."),
        flag(r, "used", "second_hand", "Second hand.|Used.", "Brand new.|Never used."),
    ]


def _recipe(r: random.Random) -> list[Fact]:
    return [
        fact("dish name", "meal", STRING, two_words(r, FOOD, DISH), "How to make {}.|Recipe: {}."),
        fact("servings", "feeds", COUNT, r.randint(1, 12), "Serves {}.|For {} guests."),
        fact("minutes time", "duration", COUNT, r.randint(5, 180), "Takes {} minutes.|Ready in {} minutes."),
        table(r, "ingredients", "needs", FOOD, "name grams", "g ", "Needs {}.|Take {}."),
        flag(r, "vegan", "no_meat", "Vegan.|No animal products.", "Not vegan.|With animal products."),
        enum(r, "difficulty", "skill", "easy normal hard", "It is {} to make.|Difficulty: {}."),
        fact("author chef", "cook", STRING, full_name(r), "By {}.|Recipe from {}."),
        listing(r, "tools", "equipment", TOOL, 3, "Use a {}.|Tools: {}."),
    ]


def _weather(r: random.Random) -> list[Fact]:
    low = r.randint(-20, 25)
    heat = {"type": "integer", "minimum": -60, "maximum": 60}
    return [
        fact("city place", "station", STRING, r.choice(CITY), "Weather for {}.|In {}."),
        fact("date day", "on", STRING, date(r), "On {}.|Report of {}."),
        fact("low", "coldest", heat, low, "Low {}.|At night {}.", "temperature"),
        fact("high", "warmest", heat, low + r.randint(1, 15), "High {}.|By day {}.", "temperature"),
        fact("humidity", "moisture", PERCENT, r.randint(5, 100), "Humidity {}.|Air at {} percent."),
        fact("wind wind_speed", "gusts", NUMBER, r.randint(0, 400) / 10, "Wind {}.|The wind blows at {}."),
        enum(r, "sky", "clouds", "clear cloudy grey foggy", "Sky: {}.|A {} sky."),
        flag(r, "rain", "wet", "Rain expected.|It will rain.", "No rain.|It stays dry."),
        listing(r, "alerts warnings", "dangers", ALERT, 3, "Alerts: {}.|Beware of {}."),
    ]


def _match(r: random.Random) -> list[Fact]:
    a, b = r.sample(CITY, 2)
    return [
        fact("home", "home_team", STRING, f"{a} Tigers", "{} play at home.", "teams"),
        fact("away", "away_team", STRING, f"{b} Bears", "{} are the visitors.", "teams"),
        fact("goals_home", "points", COUNT, r.randint(0, 9), "{} goals at home.", "score"),
        fact("goals_away", "points_away", COUNT, r.randint(0, 9), "{} goals away.", "score"),
        listing(r, "scorers", "heroes", [full_name(r) for _ in range(3)], 3, "Scored by {}."),
        enum(r, "sport", "game", "hockey football rugby", "A {} match."),
    ]


def _film(r: random.Random) -> list[Fact]:
    return [
        fact(
            "film", "movie", STRING, f"The {r.choice(COLOR).title()} {r.choice(ITEM).title()}", "The film {}."
        ),
        fact("year", "released", COUNT, r.randint(1920, 2029), "From {}."),
        fact("director", "directed_by", STRING, full_name(r), "Directed by {}."),
        listing(r, "cast", "actors", [full_name(r) for _ in range(4)], 4, "Starring {}."),
        fact("score", "critics", NUMBER, r.randint(10, 99) / 10, "Critics give {}."),
        enum(r, "genre", "type", "comedy drama thriller western", "A {}."),
    ]


def _hotel(r: random.Random) -> list[Fact]:
    return [
        fact("hotel", "lodging", STRING, f"Hotel {r.choice(STREET)}", "A stay at {}."),
        fact("guest", "booked_for", STRING, full_name(r), "Booked for {}."),
        fact("nights", "length", COUNT, r.randint(1, 21), "{} nights."),
        fact("check_in", "arrival", STRING, date(r), "Check-in {}."),
        enum(r, "board", "meals", "none breakfast half full", "Board: {}."),
        table(r, "rooms", "bookings", ["single", "double", "suite"], "kind count", "x ", "Rooms: {}."),
    ]


KINDS: tuple[Callable[[random.Random], list[Fact]], ...] = (
    _person, _order, _trip, _event, _ticket, _product, _recipe, _weather,
)  # fmt: skip
NEW_KINDS: tuple[Callable[[random.Random], list[Fact]], ...] = (_match, _film, _hotel)
