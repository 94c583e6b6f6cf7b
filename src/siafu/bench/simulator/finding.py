"""Finding values in a text: ids, numbers, dates, quoted words; by the shape and the name of what is looked for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from siafu.bench.simulator.words import concepts, stem, words

Json = dict[str, Any]

_TOKEN = re.compile(r"(?<![A-Za-z0-9_-])(?=[A-Za-z0-9_-]*\d)[A-Za-z0-9]+(?:[-_][A-Za-z0-9]+)*")
_UNIT = re.compile(
    r"\s*(?:(?:개|박|원|일|시|명|권|분|장|회|년|월|주|박스|살|층|잔|달러)(?=[간입이을를에부동로만쯤정까후전의은는도와과짜]|[^가-힣]|$)|%|nights?\b|items?\b|days?\b|people\b|guests?\b|"
    r"hours?\b|minutes?\b|dollars?\b|usd\b|pieces?\b|copies\b|weeks?\b|am\b|pm\b)",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"(?<![\w.-])-?\d{1,3}(?:,\d{3})+(?:\.\d+)?|(?<![A-Za-z\d.-])-?\d+(?:\.\d+)?")
_FIGURE = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
_SUM = re.compile(
    rf"(?P<before>[$₩])\s?(?P<first>{_FIGURE})"
    rf"|(?<![\w.,-])(?P<last>{_FIGURE})\s?(?P<thousands>[만천])?\s?(?P<after>원|달러|won\b|krw\b|dollars?\b|usd\b)",
    re.IGNORECASE,
)
_OF_MONEY = re.compile(r"amount|price|cost|fee|total|budget|money|금액|가격|요금|비용", re.IGNORECASE)
_CURRENCY = re.compile(r"\b(?:won|krw|usd|dollars?|cents?)\b|원화|달러|센트", re.IGNORECASE)
_CENTS = re.compile(r"\bcents?\b|minor|센트", re.IGNORECASE)
_QUOTED = re.compile(r"[\"“『「‘«]([^\"”』」’»\n]{1,200})[\"”』」’»]")
_ID_NAME = re.compile(r"(?:^|_)(?:id|ids|no|num|number|code|sku|ref|reference|key|isbn|barcode)s?$|번호|코드")
_FORMATS = {
    "email": re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+"),
    "uri": re.compile(r"https?://[^\s<>\"']+"),
    "uuid": re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"),
    "date-time": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d)?(?:Z|[+-]\d\d:\d\d)?"),
    "time": re.compile(r"\b\d{1,2}:\d\d(?::\d\d)?\b"),
}
_DATE = re.compile(r"(\d{4})\s*(?:-|/|\.|년)\s*(\d{1,2})\s*(?:-|/|\.|월)\s*(\d{1,2})")
MOST_TEXT, MOST_PATTERN = 20_000, 200


def is_id(name: str, schema: Mapping[str, Any]) -> bool:
    """Whether a string property holds an identifier, by its name or its examples."""
    return bool(_ID_NAME.search(snake(name))) or bool(_shapes(schema))


def snake(name: str) -> str:
    """orderId -> order_id"""
    return "_".join(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split())


def by_pattern(pattern: str, text: str) -> list[str]:
    """What in the text matches a schema's pattern, as whole words."""
    if len(pattern) > MOST_PATTERN:
        return []
    body = pattern.removeprefix("^").removesuffix("$")
    try:
        found = re.finditer(rf"(?<![A-Za-z0-9_-])(?:{body})(?![A-Za-z0-9_-])", text[:MOST_TEXT])
        return unique(match[0] for match in found if match[0])
    except re.error:
        return []


def by_format(name: str, text: str) -> list[str]:
    """Dates, addresses and the like, by the schema's format."""
    if name == "date":
        return unique(f"{year}-{int(month):02d}-{int(day):02d}" for year, month, day in _DATE.findall(text))
    known = _FORMATS.get(name)
    return unique(known.findall(text)) if known else []


def ids(name: str, schema: Mapping[str, Any], text: str) -> list[str]:
    """Identifiers for the property `name`: by example, by prefix (ORD-1 is an order_id), else by the words before."""
    tokens = [(m[0], m.start()) for m in _TOKEN.finditer(text) if not (m[0].isdigit() and _UNIT.match(text, m.end()))]
    shapes = _shapes(schema)
    shaped = [token for token, _ in tokens if any(re.fullmatch(shape, token, re.IGNORECASE) for shape in shapes)]
    known = shaped or [token for token, _ in tokens if _is_prefix_of(token, name)]
    if known:
        return unique(known)
    wanted, near = set(concepts(snake(name).replace("_", " "))), []
    for token, at in tokens:
        before = set(concepts(" ".join(text[:at].split()[-2:]))) & _THINGS
        if re.match(r"[A-Za-z]{2,}[-_]?\d", token) or (len(token) < 3 and not before & wanted):
            continue  # another thing's id; a small number that is no id
        if before & wanted or (not (before and wanted) and not shapes):
            near.append(token)
    return unique(near)


_THINGS = {"order", "product", "book", "room", "guest", "member", "person", "ticket", "file"}


def _is_prefix_of(token: str, name: str) -> bool:
    """Whether the letters a token starts with abbreviate the name: ord - order_id, bk - book_id, sku - sku."""
    letters = re.match(r"[A-Za-z]{2,}", token)
    if not letters or not re.search(r"\d", token):
        return False
    base, rest = snake(name).replace("_", ""), letters[0].lower()
    if not base.startswith(rest[0]):
        return False
    for letter in base:
        if rest and letter == rest[0]:
            rest = rest[1:]
    return not rest


def _shapes(schema: Mapping[str, Any]) -> list[str]:
    """Patterns of the schema's examples: ORD-2024-001 -> letters, digits and dashes at the same places."""
    given = schema.get("examples") or []
    samples = [sample for sample in given if isinstance(sample, str)] if isinstance(given, list) else []
    samples += [token for token in _TOKEN.findall(str(schema.get("description", ""))) if re.search("[A-Za-z]", token)]
    runs = [re.findall(r"[A-Za-z]+|\d+|[-_]", sample) for sample in samples if re.search(r"\d", sample)]
    return ["".join(r"\d+" if run.isdigit() else re.escape(run) for run in sample) for sample in runs]


def sums(text: str, *, cents: bool) -> list[float]:
    """Amounts of money: 18,000원, 3만 원, $29.90. With `cents`, dollars are told in cents."""
    found = []
    for match in _SUM.finditer(text):
        value = float((match["first"] or match["last"]).replace(",", ""))
        value *= {"만": 10_000, "천": 1_000}.get(match["thousands"] or "", 1)
        dollars = match["before"] == "$" or (match["after"] or "").lower() in ("달러", "dollar", "dollars", "usd")
        found.append(float(round(value * 100)) if cents and dollars else value)
    return found


def numbers(name: str, description: str, text: str, *, own: bool = False) -> list[float]:
    """Numbers for the property, those with a unit or beside a word of its own first; with `own`, only those. For a sum
    of money, those that are one come first.
    """
    if _OF_MONEY.search(name) and _CURRENCY.search(description):
        found = sums(text, cents=bool(_CENTS.search(f"{name} {description}")))
        if found or own:
            return found
    wanted = {stem(word) for word in words(f"{name} {description}")} | set(concepts(f"{snake(name)} {description}"))
    ranked: list[tuple[int, float]] = []
    id_places = {match.start() for match in _TOKEN.finditer(text) if not match[0].isdigit()}
    for match in _NUMBER.finditer(text):
        if match.start() in id_places:
            continue
        around = text[max(0, match.start() - 12) : match.end() + 10]
        near = {stem(word) for word in words(around)} | set(concepts(around))
        rank = 2 * bool(near & wanted) + bool(_UNIT.match(text, match.end()))
        if rank or (not own and len(match[0].lstrip("-")) < 4):
            ranked.append((-rank, float(match[0].replace(",", ""))))
    return [value for _, value in sorted(ranked, key=lambda pair: pair[0])]


def quoted(text: str) -> list[str]:
    """Words in quotation marks."""
    return unique(match.strip() for match in _QUOTED.findall(text))


def capitalised(text: str) -> list[str]:
    """Runs of capitalised English words that do not open a sentence: names of places and people."""
    return unique(re.findall(r"(?<=[a-z,] )[A-Z][a-z]+(?: [A-Z][a-z]+)*", text))


def places(text: str) -> list[str]:
    """Where to or where: words with a particle or preposition of place."""
    found = re.findall(r"([가-힣]{2,})(?:까지|으로|로|에서|에)(?![가-힣])", text)
    return unique(
        [*found, *re.findall(r"\b(?:to|in|at) (?:the )?([A-Za-z]+(?: (?:[A-Z][a-z]+|airport|station))*)", text)]
    )


def in_results(name: str, results: list[Any]) -> list[Any]:
    """Values that earlier tool results hold under the same name."""
    wanted = snake(name)
    return [value for result in results for key, value in pairs(result) if snake(key) == wanted]


def pairs(value: Any, depth: int = 6) -> Iterator[tuple[str, Any]]:
    """Every (key, plain value) inside a JSON value."""
    if depth and isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, dict | list):
                yield from pairs(inner, depth - 1)
            else:
                yield key, inner
    elif depth and isinstance(value, list):
        for inner in value:
            yield from pairs(inner, depth - 1)


def unique(values: Iterator[str] | list[str]) -> list[str]:
    """Without repeats, in order."""
    return list(dict.fromkeys(values))
