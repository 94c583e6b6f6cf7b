"""Product search in Korean and English: words are matched as parts of names, then ranked.

Plain code over the whole (small) catalogue: SQLite's trigram index finds nothing for words of two letters, which in
Korean are most nouns.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from siafu.apps.support.shop.catalogue import Product

MAX_FOUND = 10
_WORD = re.compile(r"[^\W_]+")


def words(text: str) -> list[str]:
    """The distinct words and numbers of `text`, folded so that case, width and composition do not matter."""
    return list(dict.fromkeys(_WORD.findall(unicodedata.normalize("NFKC", text).casefold())))


def search(query: str, products: Sequence[Product]) -> list[Product]:
    """At most ten products for `query`, best first; equal ones in SKU order. A query without words finds nothing."""
    asked = words(query)
    scored = [(sum(_score(word, product) for word in asked), product) for product in products]
    scored.sort(key=lambda pair: (-pair[0], pair[1].sku))
    return [product for score, product in scored if score > 0][:MAX_FOUND]


@lru_cache(maxsize=1024)
def _known(name_ko: str, name_en: str, sku: str, more: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The words of a product: those of its name and number, and further ones."""
    return (*words(f"{name_ko} {name_en}"), sku.removeprefix("SKU-")), tuple(words(more))


def _score(word: str, product: Product) -> int:
    names, others = _known(product.name_ko, product.name_en, product.sku, f"{product.category} {product.keywords}")
    if word in names:
        return 6
    if word in others:
        return 4
    if len(word) < (3 if word.isascii() else 2):  # "or" is part of many names by chance
        return 0
    if any(word in name for name in names):
        return 3
    if any(word in other for other in others):
        return 2
    # "이어폰은" and "earphones" mean 이어폰 and earphone: Korean endings and plurals come behind the word.
    return int(any(len(known) >= 2 and word.startswith(known) for known in (*names, *others)))
