"""Scripts as users write them, with the public names only; the simulated endpoint answers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith(("SIAFU_", "OPENAI_"))}
FIRST_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)

KOREAN = '''
"""주문 문의를 분류하고 재고를 확인해 답합니다."""
import siafu

def check_stock(상품: str) -> int:
    """상품의 재고 수량을 알려 줍니다."""
    return {"요가 매트": 83, "런닝화": 0}[상품]

문의들 = [
    {"번호": "가", "상품": "요가 매트", "글": "요가 매트 재고 있나요?"},
    {"번호": "나", "상품": "런닝화", "글": "런닝화는 언제 들어오나요?"},
    {"번호": "다", "상품": "모름", "글": "이건 없는 상품입니다."},
]

async def 답하기(문의, ctx):
    남은 = await ctx.tool("check_stock", {"상품": 문의["상품"]})
    if 남은.is_error:
        raise LookupError("우리 가게에 없는 상품입니다")
    답 = await ctx.model(f"재고는 {남은.text}개입니다. 고객에게 한 문장으로 답해 주세요: {문의['글']}", max_tokens=100)
    return {"재고": 남은.text, "답": 답.text}

실행 = siafu.map(답하기, 문의들, key=lambda 문의: 문의["번호"], tools=[check_stock], journal="실행.db", budget="1 USD")
for 결과 in sorted(siafu.run_sync(실행), key=lambda 결과: 결과.key):
    print(결과.key, 결과.value["재고"] if 결과.ok else 결과.error.code, "(이어서)" if 결과.restored else "")
print("끝:", 실행.summary.ok, "개")
'''

ENGLISH = """
import asyncio
import siafu

tickets = [{"id": f"t{n}", "text": text} for n, text in enumerate(["Where is my parcel?", "I want a refund."])]

async def main():
    run = siafu.map("One short, kind reply to: {text}", tickets, key=lambda t: t["id"], journal="run.db", ordered=True)
    async with run:
        async for result in run:
            print(result.key, "again" if result.restored else "new", result.ok, len(result.value) > 5)
    print(run.summary.ok, run.summary.restored, run.summary.calls)

asyncio.run(main())
"""


def run(folder: Path, script: str) -> list[str]:
    """What a script prints when run from a file, with every warning an error."""
    file = folder / "script.py"
    file.write_text(script, encoding="utf-8")
    command = [sys.executable, "-W", "error", str(file)]
    done = subprocess.run(command, cwd=folder, env=PLAIN, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "SIMULATED" in done.stderr
    return done.stdout.splitlines()


def test_a_korean_script(tmp_path: Path) -> None:
    first = run(tmp_path, KOREAN)
    assert first[0].startswith("가 83") and first[1].startswith("나 0") and first[2].startswith("다 work_failed")
    assert first[3] == "끝: 2 개"
    assert all("(이어서)" in line for line in run(tmp_path, KOREAN)[:3])


def test_an_english_script(tmp_path: Path) -> None:
    assert run(tmp_path, ENGLISH) == ["t0 new True True", "t1 new True True", "2 0 2"]
    assert run(tmp_path, ENGLISH) == ["t0 again True True", "t1 again True True", "2 2 0"]


@pytest.mark.parametrize("readme", sorted(path.name for path in ROOT.glob("README*.md")))
def test_the_first_script_of_the_readme(tmp_path: Path, readme: str) -> None:
    found = FIRST_BLOCK.search((ROOT / readme).read_text(encoding="utf-8"))
    assert found is not None
    first = run(tmp_path, found[1])
    assert len(first) >= 3 and sorted(run(tmp_path, found[1])) == sorted(first)
