"""A small Korean and English glossary of general words: which words mean the same thing, and what a thing suggests.

It knows shops, hotels, libraries, offices and code in general, and no prompt, category or tool of anybody. Words it
does not know still count when they occur on both sides (words.py).

A line: concept, strength, English words, Korean words. Strength: what a person wants done (WISH) says more than what
it is about (TOPIC), and that more than the thing everything there revolves around (THING). `_` stands for a space; `^`
before a Korean word: the whole word, so that ^책 is not found in 정책.
"""

from __future__ import annotations

WISH, TOPIC, THING = 1.6, 1.0, 0.6

GLOSSARY: tuple[tuple[str, float, str, str], ...] = (
    # what people want
    ("refund", WISH, "refund reimburse reimbursement money_back chargeback", "환불 돌려받 돈을_돌려 돈_돌려 환급"),
    ("cancel", WISH, "cancel cancellation cancelled revoke", "취소 철회"),
    ("exchange", WISH, "exchange swap replace replacement", "교환 바꿔주 바꿔_주 교체"),
    ("return", WISH, "return give_back bring_back", "반품 반납 회수"),
    ("complaint", 1.5, "complain complaint angry anger terrible awful worst unacceptable disappointed disappointing "
     "disgusting furious rude ridiculous horrible upset grievance",
     "불만 화가 화나 최악 실망 짜증 불친절 어이없 항의 책임자 무책임 너무하"),
    ("recommend", TOPIC, "recommend recommendation suggest suggestion something_like looking_for", "추천 찾고_있 권해"),
    ("search", TOPIC, "search find look_up lookup browse looking seek do_you_have is_there are_there have_any",
     "검색 찾아 찾기 찾고 찾는 조회 있나요 있어요 있습니까 있을까요"),
    ("reserve", WISH, "reserve reservation booking book_a appointment", "예약 예매 부킹"),
    ("borrow", WISH, "borrow loan lend checkout_book", "대출 빌리 빌려 대여"),
    ("extend", WISH, "extend extension renew renewal prolong", "연장 갱신"),
    ("change", TOPIC, "change modify update edit alter reschedule", "변경 수정 바꾸 고쳐"),
    ("send", TOPIC, "send email mail notify", "보내 전송 발송 메일 알림"),
    ("translate", WISH, "translate translation", "번역 통역"),
    ("summary", WISH, "summarise summarize summary tldr recap", "요약 간추"),
    ("calculate", WISH, "calculate compute sum total add multiply average", "계산 합계 더하 평균"),
    ("convert", WISH, "convert conversion exchange_rate", "환산 변환 환율"),
    ("create", TOPIC, "create make register", "만들 생성 등록 신규"),
    ("delete", WISH, "delete remove erase", "삭제 지워 제거"),
    ("clean", WISH, "clean cleaning housekeeping", "청소 정리"),
    ("towel", TOPIC, "towel", "수건 타월"),
    ("wake", WISH, "wake wakeup alarm", "모닝콜 깨워 알람"),
    ("list", THING, "list show", "목록 모두 전부"),
    # what it is about
    ("delivery", 1.4, "ship shipping shipment deliver delivery track tracking parcel package courier carrier "
     "dispatch", "배송 택배 송장 운송 배달 발송"),
    ("whereabouts", TOPIC, "where when arrive arrival eta how_long", "어디 언제 도착 언제쯤"),
    ("status", TOPIC, "status state progress process processed processing condition",
     "상태 현황 진행 상황 처리 준비_중"),
    ("stock", 1.5, "stock inventory available availability left sold_out quantity", "재고 남아 남은 품절 입고 수량"),
    ("price", TOPIC, "price cost cheap expensive fee rate how_much charge", "가격 얼마 비용 요금 값이 비싸"),
    ("payment", TOPIC, "pay payment paid card billing bill invoice receipt bank",
     "결제 지불 카드 청구 영수증 계산서 입금"),
    ("discount", TOPIC, "discount coupon voucher promotion sale", "할인 쿠폰 세일 프로모션"),
    ("damage", TOPIC, "damage broken defect defective faulty crack torn leak scratched",
     "파손 깨진 깨져 고장 불량 망가 찢어"),
    ("late", TOPIC, "late delay overdue slow still_not not_arrived", "늦어 늦게 늦네 지연 연체 아직도 안_와"),
    ("wrong", TOPIC, "wrong incorrect mistake different_from missing", "잘못 다른_게 오배송 누락 빠졌"),
    ("account", TOPIC, "account login password signin signup profile", "계정 로그인 비밀번호 회원가입"),
    ("address", TOPIC, "address street zip", "주소 배송지"),
    ("warranty", TOPIC, "warranty guarantee", "보증 무상"),
    ("policy", TOPIC, "policy rule terms regulation", "정책 규정 약관 방침"),
    ("size", TOPIC, "size large fit", "사이즈 크기"),
    ("question", THING, "question ask qa faq inquiry info information how what which tell",
     "질문 문의 궁금 어떻게 알려"),
    ("thanks", TOPIC, "thank thanks grateful appreciate", "감사 고마"),
    ("positive", TOPIC, "positive love great excellent perfect wonderful happy good satisfied praise",
     "긍정 좋아 훌륭 만족 최고 행복 칭찬"),
    ("negative", TOPIC, "negative bad poor hate", "부정적 나쁘 나빠 싫어 별로"),
    ("urgent", TOPIC, "urgent urgently asap immediately emergency critical hurry",
     "급해 급하 급합 긴급 당장 빨리 지금_바로 오늘_안"),
    ("weather", TOPIC, "weather forecast temperature rain snow", "날씨 기온 예보 비가_"),
    ("time", TOPIC, "time hour schedule opening", "시간 몇_시 영업"),
    ("menu", TOPIC, "menu breakfast dinner lunch meal food restaurant", "메뉴 조식 아침식사 저녁식사 식사 식당 음식"),
    ("parking", TOPIC, "parking park car", "주차 자동차"),
    ("bug", TOPIC, "bug error exception crash fail failure broken_build traceback", "버그 오류 에러 예외 크래시"),
    ("security", TOPIC, "security vulnerability injection xss secret leak unsafe exploit", "보안 취약 유출 주입"),
    ("performance", TOPIC, "performance slow latency optimise optimize memory speed", "성능 느리 느려 최적화 메모리"),
    ("test", TOPIC, "test testing coverage assert pytest", "테스트 시험 검증"),
    ("style", TOPIC, "style naming format lint readability typo", "스타일 가독성 오타 이름짓"),
    ("docs", TOPIC, "docs documentation readme docstring", "문서화 설명서"),
    ("deploy", TOPIC, "deploy deployment release rollout", "배포 릴리스 출시"),
    ("meeting", TOPIC, "meeting calendar conference", "회의 미팅 일정"),
    ("travel", TOPIC, "flight train airline trip taxi airport transport transportation",
     "항공 비행기 기차 여행 택시 공항 교통"),
    # the things themselves
    ("order", THING, "order purchase bought buy", "주문 구매 샀는데 구입"),
    ("product", THING, "product item goods catalog catalogue sku", "제품 상품 물건 품목"),
    ("book", THING, "book books novel isbn author", "도서 ^책 소설 저자 작가 책_"),
    ("room", THING, "room suite", "객실 ^방 호실 룸서비스"),
    ("single", THING, "single", "싱글 1인실"),
    ("double", THING, "double", "더블 2인실"),
    ("guest", THING, "guest customer client visitor", "손님 고객 투숙"),
    ("member", THING, "member user patron reader", "회원 사용자 이용자"),
    ("person", THING, "staff agent human manager employee", "직원 상담원 사람 담당자"),
    ("city", THING, "city town location place region country", "도시 지역 장소 위치 나라"),
    ("date", THING, "date day night week", "날짜 며칠 박_"),
    ("file", THING, "file document folder", "파일 문서"),
    ("code", THING, "code function class repository branch commit merge pull", "코드 함수 저장소 커밋"),
    ("ticket", THING, "ticket issue", "티켓 이슈"),
    ("other", THING, "other general misc miscellaneous else unknown none neutral", "기타 일반 없음 중립"),
)  # fmt: skip

# what a concept suggests besides itself, and how strongly
SUGGESTS: dict[str, dict[str, float]] = {
    "whereabouts": {"status": 0.7, "delivery": 0.7},
    "cancel": {"refund": 0.6, "order": 0.25},
    "refund": {"order": 0.25},
    "delivery": {"order": 0.25},
    "return": {"refund": 0.4},
    "exchange": {"refund": 0.3},
    "damage": {"complaint": 0.7, "order": 0.25},
    "late": {"complaint": 0.4, "delivery": 0.4, "order": 0.25},
    "complaint": {"negative": 0.8},
    "wrong": {"complaint": 0.4},
    "thanks": {"positive": 0.8},
    "recommend": {"search": 1.0, "product": 0.6, "question": 0.3},
    "stock": {"product": 0.6, "question": 0.3},
    "price": {"product": 0.5, "question": 0.3},
    "size": {"product": 0.5, "question": 0.3},
    "warranty": {"product": 0.5},
    "address": {"delivery": 0.5},
    "borrow": {"book": 0.5},
}


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# words that say nothing about the subject
STOP_ENGLISH = frozenset(
    _words(
        "a an the and or but if then than so as of to in on at by for with from into about over out up down is are was "
        "were be been being am do does did done have has had having i me my mine we us our you your he she it its they "
        "them their this that these those there here who whom whose why can could will would shall should may might "
        "must not no yes please hi hello dear hey want need like get got give let just also too very really more most "
        "some any much many im ive id dont cant wont isnt didnt what which how when where still already ever say said "
        "know see something anything"
    )
)
STOP_KOREAN = frozenset(
    _words(
        "안녕 안녕하세요 제가 저는 제 좀 그 이 저 것 거 건 수 등 및 또 또는 그리고 하고 정말 진짜 "
        "너무 지금 혹시 이거 그거 저기 여기 부탁 주세요 관련 대해 대한 위해 에서 꼭 다시 한번 한 "
        "번 제발 바로 그런데 근데 그래서 우리 저희 관한 관해 대하여"
    )
)
# endings of Korean words that are predicates or politeness, not subjects
PREDICATE_ENDINGS = _words(
    "세요 어요 아요 에요 예요 나요 가요 까요 니다 네요 는데 지요 죠 줘 줘요 해요 해 싶은데 싶어 래요 "
    "군요 하는 있는 없는 같은 하고 싶고 알고 보고 있고 어서 아서 해서 하면 으면 려고 지만 한데 은데 "
    "된 할 수 있을"
)
# what is glued to the end of Korean nouns, longest first
PARTICLES = _words(
    "에서는 으로는 입니다 이에요 이라는 에서 에게 한테 으로 까지 부터 라는 이랑 처럼 보다 예요 이요 "
    "은 는 이 가 을 를 에 의 로 와 과 도 만 랑 번 건 좀"
)
