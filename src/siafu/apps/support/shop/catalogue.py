"""What the shop sells when it is new: products with Korean and English names. Plain data, the same on every machine."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

import msgspec

from siafu.apps.support.shop.refusal import SHOP_ZONE

FIRST_SKU = 2001
OPENED = datetime(2026, 11, 28, 18, 0, tzinfo=SHOP_ZONE)  # of a shop that is only talked about

Sku = Annotated[
    str,
    msgspec.Meta(pattern="^SKU-[0-9]{4}$", description="Product code (상품코드), for example SKU-2001."),
]


class Product(msgspec.Struct, frozen=True, kw_only=True):
    """One product. Prices are whole won and whole US cents. `restock_on`: a date, only known when stock is 0."""

    sku: Sku
    name_ko: str
    name_en: str
    category: str
    price_krw: int
    price_usd_cents: int
    stock: int
    restock_on: str | None = None
    keywords: str = ""


def opening(now: float) -> datetime:
    """When a shop that is new at `now` (seconds since 1970) opened: the evening before, in its own time. Everything in
    it is dated from then, so that it looks the same in any year.
    """
    return (datetime.fromtimestamp(now, SHOP_ZONE) - timedelta(days=1)).replace(
        hour=18, minute=0, second=0, microsecond=0
    )


def products(opened: datetime = OPENED) -> list[Product]:
    """The catalogue in SKU order, as it is when the shop opens."""
    found = []
    for number, line in enumerate(_CATALOGUE.strip().splitlines()):
        category, name_ko, name_en, krw, cents, stock, keywords = (part.strip() for part in line.split("|"))
        found.append(
            Product(
                sku=f"SKU-{FIRST_SKU + number}",
                name_ko=name_ko,
                name_en=name_en,
                category=category,
                price_krw=int(krw),
                price_usd_cents=int(cents),
                stock=int(stock),
                restock_on=None if int(stock) else f"{opened + timedelta(days=5 + number % 20):%Y-%m-%d}",
                keywords=keywords,
            )
        )
    return found


# category | Korean name | English name | won | US cents | stock | further words people search for
_CATALOGUE = """
audio | 무선 이어폰 프로 | Wireless Earphones Pro | 129000 | 9900 | 42 | 블루투스 bluetooth earbuds 노이즈캔슬링
audio | 무선 헤드폰 | Wireless Headphones | 189000 | 14500 | 17 | 블루투스 bluetooth 헤드셋 headset
audio | 휴대용 스피커 | Portable Speaker | 69000 | 5300 | 0 | 블루투스 bluetooth 방수 waterproof
audio | 사운드바 | Soundbar | 239000 | 18400 | 8 | tv 티비 스피커 speaker
audio | 탁상용 마이크 | Desktop Microphone | 88000 | 6800 | 25 | 방송 녹음 recording usb
computer | 기계식 키보드 | Mechanical Keyboard | 119000 | 9200 | 31 | 자판 게이밍 gaming
computer | 무선 마우스 | Wireless Mouse | 39000 | 2990 | 120 | 블루투스 bluetooth
computer | 27인치 모니터 | 27-inch Monitor | 329000 | 25300 | 12 | 화면 display screen 4k
computer | 노트북 거치대 | Laptop Stand | 32000 | 2490 | 64 | 맥북 받침대 aluminium
computer | USB-C 허브 | USB-C Hub | 45000 | 3490 | 0 | 어댑터 adapter hdmi 멀티포트
computer | 외장 SSD 1TB | External SSD 1TB | 139000 | 10700 | 22 | 저장장치 storage 하드 drive
computer | 웹캠 | Webcam | 59000 | 4500 | 38 | 화상회의 video camera
phone | 스마트폰 케이스 | Phone Case | 19000 | 1490 | 210 | 핸드폰 휴대폰 커버 cover
phone | 고속 충전기 65W | Fast Charger 65W | 42000 | 3290 | 77 | 어댑터 adapter 충전 charging
phone | 보조배터리 10000mAh | Power Bank 10000mAh | 36000 | 2790 | 54 | 충전 battery portable
phone | 무선 충전 패드 | Wireless Charging Pad | 29000 | 2290 | 0 | 충전기 charger qi
phone | 강화유리 필름 | Screen Protector | 12000 | 990 | 300 | 액정 보호 glass
phone | 차량용 거치대 | Car Phone Mount | 24000 | 1890 | 46 | 자동차 holder
home | 공기청정기 | Air Purifier | 259000 | 19900 | 9 | 미세먼지 hepa 필터 filter
home | 가습기 | Humidifier | 79000 | 6100 | 33 | 초음파 mist
home | LED 스탠드 | LED Desk Lamp | 48000 | 3700 | 51 | 조명 책상 light
home | 로봇청소기 | Robot Vacuum | 399000 | 30700 | 6 | 청소 cleaner
home | 극세사 담요 | Fleece Blanket | 35000 | 2690 | 88 | 이불 겨울 warm
home | 메모리폼 베개 | Memory Foam Pillow | 49000 | 3790 | 0 | 수면 숙면 sleep 쿠션
home | 암막 커튼 | Blackout Curtains | 67000 | 5190 | 27 | 창문 window
home | 디퓨저 | Reed Diffuser | 28000 | 2190 | 72 | 향 방향제 scent
kitchen | 전기 주전자 | Electric Kettle | 45000 | 3490 | 40 | 포트 물 water
kitchen | 핸드드립 세트 | Pour-over Coffee Set | 52000 | 3990 | 19 | 커피 드리퍼 dripper
kitchen | 에어프라이어 | Air Fryer | 119000 | 9190 | 14 | 튀김 오븐 oven
kitchen | 세라믹 프라이팬 | Ceramic Frying Pan | 38000 | 2890 | 58 | 후라이팬 cookware
kitchen | 스테인리스 텀블러 | Stainless Tumbler | 27000 | 2090 | 145 | 보온 컵 cup mug 물병
kitchen | 식도 세트 | Kitchen Knife Set | 84000 | 6490 | 0 | 칼 도마 cutting
kitchen | 밀폐용기 10종 | Food Containers, Set of 10 | 33000 | 2590 | 66 | 반찬통 storage box
fashion | 남성 후드티 | Men's Hoodie | 49000 | 3790 | 95 | 옷 맨투맨 sweatshirt
fashion | 여성 니트 가디건 | Women's Knit Cardigan | 59000 | 4590 | 48 | 옷 스웨터 sweater
fashion | 경량 패딩 | Light Down Jacket | 129000 | 9900 | 23 | 겨울 점퍼 coat winter
fashion | 캔버스 백팩 | Canvas Backpack | 69000 | 5290 | 36 | 가방 배낭 bag
fashion | 가죽 지갑 | Leather Wallet | 54000 | 4190 | 41 | 카드지갑 card
fashion | 런닝화 | Running Shoes | 99000 | 7690 | 0 | 운동화 신발 sneakers
fashion | 울 머플러 | Wool Scarf | 39000 | 2990 | 80 | 목도리 겨울 winter
fashion | 우산 | Folding Umbrella | 18000 | 1390 | 160 | 비 rain
beauty | 수분 크림 | Moisturising Cream | 32000 | 2490 | 110 | 화장품 보습 skin
beauty | 선크림 SPF50 | Sunscreen SPF50 | 22000 | 1690 | 134 | 자외선 차단제 sun
beauty | 저자극 샴푸 | Gentle Shampoo | 19000 | 1490 | 97 | 두피 hair 머리
beauty | 핸드크림 세트 | Hand Cream Set | 24000 | 1890 | 75 | 선물 gift
beauty | 헤어드라이어 | Hair Dryer | 69000 | 5290 | 29 | 드라이기 머리
beauty | 전동칫솔 | Electric Toothbrush | 58000 | 4490 | 0 | 구강 dental
sports | 요가 매트 | Yoga Mat | 34000 | 2590 | 83 | 운동 pilates 필라테스
sports | 조절식 덤벨 | Adjustable Dumbbell | 149000 | 11500 | 11 | 아령 헬스 weights
sports | 등산 스틱 | Trekking Poles | 62000 | 4790 | 26 | 산 hiking
sports | 캠핑 의자 | Camping Chair | 44000 | 3390 | 39 | 야외 outdoor
sports | 2인용 텐트 | Two-person Tent | 169000 | 12990 | 7 | 캠핑 camping
sports | 자전거 헬멧 | Bicycle Helmet | 57000 | 4390 | 32 | 안전모 bike
food | 원두커피 1kg | Coffee Beans 1kg | 29000 | 2290 | 140 | 아라비카 arabica 커피
food | 제주 감귤 5kg | Jeju Tangerines 5kg | 26000 | 1990 | 60 | 귤 과일 fruit
food | 홍삼 스틱 30포 | Red Ginseng Sticks, 30 | 59000 | 4590 | 45 | 건강 health 선물 gift
food | 그래놀라 | Granola | 13000 | 990 | 118 | 시리얼 cereal 아침
kids | 나무 블록 | Wooden Blocks | 37000 | 2890 | 52 | 장난감 toy 아기
kids | 어린이 퍼즐 100조각 | Kids' Puzzle, 100 Pieces | 16000 | 1290 | 90 | 장난감 toy
kids | 아기 물티슈 10팩 | Baby Wipes, 10 Packs | 21000 | 1690 | 0 | 유아 baby
kids | 공룡 인형 | Dinosaur Plush | 25000 | 1990 | 68 | 장난감 toy 선물 gift
stationery | 만년필 | Fountain Pen | 48000 | 3690 | 34 | 필기구 ink 잉크
stationery | 양장 노트 | Hardcover Notebook | 15000 | 1190 | 175 | 다이어리 diary planner
stationery | 색연필 48색 | Colour Pencils, 48 | 31000 | 2390 | 57 | 그림 drawing 미술
pets | 강아지 사료 5kg | Dog Food 5kg | 46000 | 3590 | 44 | 반려견 애견 puppy
pets | 고양이 스크래처 | Cat Scratcher | 23000 | 1790 | 37 | 반려묘 kitten
"""
