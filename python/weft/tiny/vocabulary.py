"""The words of synthetic records."""

# ruff: noqa: SIM905 - word lists read better as text

from __future__ import annotations

FIRST = (
    "Ada Alan Amir Anna Ben Bo Carl Cora Dan Dora Eli Emma Eve Finn Gus Hana Hugo Ida Ines Ivan Jack Jane "
    "Jon Kai Kim Lars Lea Leo Lily Lou Luis Mara Max Mia Milo Nina Noah Nora Omar Otto Paul Pia Ravi Rita "
    "Rosa Sam Sara Sven Tara Theo Tom Uma Vera Will Yara Zoe"
).split()
LAST = (
    "Adler Baker Berg Blum Costa Cruz Diaz Dubois Evans Fischer Ford Garcia Gupta Hall Hansen Hill Ito "
    "Jensen Kaur Khan Klein Kovac Lang Lee Lopez Meyer Moreau Mori Nagy Novak Olsen Park Patel Perez Popov "
    "Quinn Reed Rossi Sato Silva Singh Smith Stone Tan Torres Vogel Wang Weber Wolf Young Zhang"
).split()
CITY = (
    "Accra Berlin Bern Cairo Delhi Dublin Geneva Hanoi Kyiv Lagos Lima Lisbon London Madrid Milan Nairobi "
    "Oslo Paris Prague Quito Riga Rome Seoul Sofia Tokyo Turin Vienna Warsaw Zagreb Zurich"
).split()
JOB = (
    "actor baker carpenter chemist cook dentist doctor driver editor engineer farmer gardener judge "
    "lawyer librarian miner nurse painter pilot plumber potter sailor singer surgeon tailor teacher writer"
).split()
COLOR = "black blue brown gold green grey orange pink purple red silver white yellow".split()
ITEM = (
    "bag bike book bottle camera chair clock coat desk guitar hat knife lamp map mug pen phone piano radio "
    "ring rug shirt sofa table tent umbrella vase watch"
).split()
STREET = "Oak Elm Mill Lake Church Park Bridge Garden River Station Market Harbour".split()
LANGUAGE = "Arabic Danish Dutch English French German Hindi Italian Polish Spanish Swahili Turkish".split()
TOPIC = "art chess cinema dance history jazz maths opera poetry robots sailing wine".split()
MEETING = "concert course fair lecture meeting party reading show talk workshop".split()
VENUE = "Arena Castle Forum Gallery Hall Library Museum Palace School Theatre".split()
THING = "account backup email invoice keyboard login menu password printer report screen server".split()
TROUBLE = "broken blank empty frozen late locked lost missing noisy slow stuck wrong".split()
TAG = "api billing cloud crash data network office security setup support ui web".split()
BRAND = "Acme Bolt Cedar Delta Fjord Lumen Nordic Orbit Pixel Solis Vertex Zephyr".split()
FOOD = (
    "apples beans butter carrots cheese cream eggs fish flour garlic honey lemon milk mushrooms nuts oil "
    "onions pasta peas pepper potatoes rice salt spinach sugar tomatoes"
).split()
DISH = "bread cake curry omelette pie risotto salad sauce soup stew".split()
TOOL = "bowl grater knife mixer oven pan pot whisk".split()
ALERT = "flood fog frost heat ice snow storm wind".split()
DISTRACTORS = (
    "Please file this.|We spoke by phone.|More will follow soon.|This was typed in a hurry.|"
    "Nothing else is known.|See page 4.|Thanks for reading.|The rest can wait.|Filed under notes.|"
    "Copy sent to the office.|Checked twice.|Note 12 has more.|Reply within 3 days.|"
    "Sorry for the delay.|It was a quiet week.|Ask again if unsure."
).split("|")
KEY_WORDS = [w.lower() for w in ITEM + FOOD + THING + TAG + COLOR + STREET + JOB + VENUE]
BAGS = "details info summary entry body extra part block node main".split()
PREFIXES = "the_ my_ main_ first_ given_ a_".split()
SUFFIXES = "_value _text _field _1 _2 _x _here".split()
NEW_PREFIXES = "our_ known_ x_".split()
NEW_SUFFIXES = "_info _3 _now".split()
