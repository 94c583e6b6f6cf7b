"""What `siafu init` writes: settings with every default, examples in Korean and English, and a first script."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from siafu.apps.support.examples import KnownOrder, example_requests
from siafu.apps.support.shop.catalogue import products
from siafu.apps.support.shop.orders import first_orders
from siafu.border.canonical import dumps

REQUESTS = 20

SETTINGS = """\
#:schema ./siafu.schema.json
# Settings of siafu. Everything here is optional; a line that begins with "# " and holds a setting shows its default.
# A flag wins over the environment, the environment over this file. `siafu doctor` says what counts and checks it.
# It may change while siafu runs: siafu config check says what is wrong before it does.

# home = ".siafu"                    # journals and state; keep it on a disk of this machine
# database_url = "env:SIAFU_DATABASE_URL"   # effects, conversations, tasks: PostgreSQL or SQLite; else files in home
# redis_url = "env:SIAFU_REDIS_URL"  # where processes share the limits below, and workers hear of new tasks

[endpoint]
# Any OpenAI-compatible endpoint. With neither base_url nor api_key a SIMULATED one answers, and nothing is billed.
# base_url = "https://api.openai.com/v1"
# api_key = "env:OPENAI_API_KEY"     # or "file:/run/secrets/key"; the key itself is refused here
# connect_seconds = 5.0
# idle_seconds = 60.0                # the longest silence within an answer
# total_seconds = 600.0              # the longest time for one answer

[endpoint.headers]
# x-team = "support"                 # sent with every request; "env:NAME" for secret values

[endpoint.prompt_cache]
# lead = false                       # of calls that begin alike one goes first, for the others to find the cache warm
# marks = "5m"                       # cache_control, where the endpoint wants it; also 1h, ephemeral; not set: none
# key = false                        # send prompt_cache_key
# min_tokens = 1024                  # shorter beginnings are left alone
# keep_seconds = 300.0               # how long the endpoint keeps one; docs/prompt-cache.md has more
# wait_seconds = 30.0                # no call waits longer for the first one

[models]
# One that is not set falls back on another that is.
# default = "MODEL"                  # for siafu.map
# strong = "MODEL"                   # support: sorts requests, answers delicate ones
# cheap = "MODEL"                    # support: answers most requests

[limits]
# concurrency = 100                  # items, and calls, at once
# policy = "fixed"                   # aimd, vegas and window learn a limit up to concurrency: siafu bench limits
# ramp_seconds = 0.0                 # how long the first calls take to rise to it
# interactive = 0.0                  # the part of it kept free for calls of priority 1
# rpm = 500                          # requests a minute; not set: learned from the endpoint's 429s
# tpm = 200000                       # tokens a minute; not set: taken from the endpoint's headers
# processes = 1                      # how many share the limits at least, while Redis cannot say it
# max_wait_seconds = 600.0           # a call fails rather than wait longer than this for the endpoint

[patience]
# outage_seconds = 600.0             # how long calls wait for an endpoint or tool server that fails; 0: not
# quota_seconds = 600.0              # how long a run waits for an account without credit; 0: it ends at once
# quota_probe_seconds = 30.0         # until such an account is asked again; doubled, up to ten times as long

[hedging]
# enabled = false                    # a second request for a call that is slow; the first answer is taken
# share = 0.05                       # of the calls, and of the money, that these may add

# Several endpoints instead of [endpoint]: shares, fallbacks and rules; docs/upstreams.md has all of it.
# [upstreams.seoul]
# base_url = "https://seoul.example.com/v1"
# api_keys = ["env:SEOUL_KEY_1", "env:SEOUL_KEY_2"]
# models = ["MODEL"]
# weight = 3.0                       # its share of the calls
#
# [[routes]]                         # the first that fits a call counts
# category = ["refund"]
# use = ["MODEL@seoul", "CHEAPER"]   # the first wanted, the others when it cannot answer
#
# [[reuse]]                          # whole answers used again: temperature 0, no tools; docs/prompt-cache.md
# seconds = 3600
# model = ["MODEL"]

[budgets]
# day = "20 USD"                     # for all runs of this home together, UTC; not set: no limit
# roles = { refund = "5 USD" }       # the same for the agents of each role
# keys = { "seoul#1" = "9 USD" }     # the same for calls with each key of an upstream; then another one is asked
# per_item = "0.05 USD"              # an item that would pass it fails; not set: no limit
# per_agent = "0.02 USD"             # the same for one agent of an item
# soft = 0.8                         # from this share of a budget on ...
# cheaper = { "MODEL" = "CHEAPER" }  # ... these models are asked instead

[batches]                            # of clients of siafu serve; docs/batches.md
# at_once = 4                        # batches that are worked on at a time
# keep_days = 30.0                   # how long files and ended batches are kept; 0: until they are deleted
# key_gigabytes = 10.0               # what the files of one client key may take up

# Prices in US dollars per million tokens, for models that have no list price or for you another one.
# [prices."MODEL"]
# input = "0.40"
# cached = "0.10"
# cache_write = "0.40"
# output = "1.60"
# date = 2026-01-01                  # valid from this day on

# MCP servers whose tools the support swarm uses; without any the example shop stands in.
# [mcp_servers.shop]
# command = "siafu"                  # started over stdio ...
# args = ["shop", "serve"]
# env = { SIAFU_IDENTITY_KEY = "env:SIAFU_IDENTITY_KEY" }   # nothing else of the environment is passed on
# cwd = "."
# timeout_seconds = 30.0
# identity = "siafu"                 # calls carry a signed token that proves the customer
#
# [mcp_servers.search]
# url = "https://tools.example.com/mcp"                     # ... or reached over Streamable HTTP
# headers = { Authorization = "env:SEARCH_AUTHORIZATION" }

# Who is told by siafu serve when a task has ended; docs/http.md says how to check what comes.
# [webhooks.shop]
# url = "https://shop.example.com/hooks/siafu"
# secret = "env:SHOP_WEBHOOK_SECRET"  # whsec_ and 24 to 64 bytes in Base64
# tenants = ["shop"]                 # whose tasks; leave it away for all
# allow_private = false              # true: the host may be in a private network

# Tools that act on the world, each effect once; docs/effects.md has all the rules. "server.tool", in quotes.
# [tools.effects."shop.process_refund"]
# key = ["request", "order_id"]      # what makes it the same effect, however often it is asked for
# honours_key = true                 # the tool acts once a key: asking again is safe
# approval = { argument = "amount", above = 100000 }        # a person decides: siafu approvals list
# daily_calls = 200

[tasks]
# backlog = 100000                   # tasks that may be open; then no more are accepted until some have ended
"""

FIRST = '''\
"""Many texts at once. Kill it at any moment and run it again: what is finished is neither repeated nor billed again."""

import siafu

rows = [
    {"id": "greeting", "text": "안녕하세요, 무엇을 도와드릴까요?"},
    {"id": "delivery", "text": "주문하신 상품은 내일 도착합니다."},
    {"id": "refund", "text": "환불은 영업일 기준 3일이 걸립니다."},
]
run = siafu.map("Translate into English: {text}", rows, key=lambda row: row["id"], journal=".siafu/first.db")
for result in siafu.run_sync(run):
    print(result.key, "->", result.value if result.ok else result.error)
'''

_QUESTIONS = (
    "다음 문장을 영어로 번역해 주세요: 주문하신 상품이 오늘 출고되었습니다.",
    "이 후기가 긍정인지 부정인지 한 단어로 답해 주세요: 배송이 빨라서 좋았어요.",
    "고객에게 보낼 한 문장짜리 사과문을 써 주세요. 배송이 이틀 늦었습니다.",
    "'무선 이어폰 프로'를 소개하는 문구를 한 줄로 써 주세요.",
    "환불 문의를 세 가지 유형으로 나눠 주세요.",
    "Summarise in one sentence: the parcel was left with a neighbour and found a day later.",
    "Name the sentiment of this review in one word: the zip broke after a week.",
    "Write a subject line for an e-mail about a delayed parcel.",
    "Translate into Korean: Your refund was sent today.",
    "List three questions to ask a customer who reports a damaged parcel.",
)


def request_lines() -> bytes:
    """Requests by the customers of the example shop, about the orders and products it really has."""
    goods = products()
    orders = [KnownOrder(order_id=order.order_id, customer=customer) for customer, order in first_orders(goods)]
    names = [(product.name_ko, product.name_en) for product in goods]
    return _lines(msgspec.to_builtins(each) for each in example_requests(orders, names, count=REQUESTS))


def batch_lines(model: str) -> bytes:
    """Lines in the format of OpenAI's Batch API, for `model`."""
    return _lines(
        {
            "custom_id": f"q{number:02}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": model, "messages": [{"role": "user", "content": question}], "max_tokens": 200},
        }
        for number, question in enumerate(_QUESTIONS, 1)
    )


def _lines(values: Iterator[dict[str, Any]]) -> bytes:
    told = ({name: value for name, value in line.items() if value is not None} for line in values)
    return b"".join(dumps(line) + b"\n" for line in told)
