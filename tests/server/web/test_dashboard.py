"""The dashboard in headless Chromium: it loads, moves, opens, is quiet on its console, and axe finds nothing serious.

``SESSILE_SCREENSHOTS=1`` writes what it looks like to build/dashboard.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from dashboard_stage import MadeUpMorning
from served import served

from sessile.server.web import dashboard_routes
from sessile.server.web.application import create_app

playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SCREENSHOTS = bool(os.environ.get("SESSILE_SCREENSHOTS"))
IMAGES = Path(__file__).resolve().parents[3] / "build" / "dashboard"
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium (Debian's package chromium) is not installed"),
    pytest.mark.asyncio(loop_scope="module"),
]


@dataclass
class Page:
    """A page of the dashboard, what its console said, and the morning that it shows."""

    page: playwright.Page
    morning: MadeUpMorning
    said: list[str] = field(default_factory=list)

    async def text(self, selector: str) -> str:
        return (await self.page.text_content(selector) or "").strip()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[playwright.Browser]:
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        await browser.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(web_parts_of) -> AsyncIterator[tuple[str, MadeUpMorning]]:
    morning = MadeUpMorning()
    morning.play(120)
    morning.broken("ses_planner")
    app = create_app(web_parts_of(morning.engine, morning.observatory))
    async with served(app) as (host, port):
        yield f"http://{host}:{port}/", morning
    morning.observatory.close()


@pytest_asyncio.fixture(loop_scope="module")
async def dashboard(browser, url, request) -> AsyncIterator[Page]:
    address, morning = url
    options = getattr(request, "param", {"viewport": {"width": 1280, "height": 900}})
    context = await browser.new_context(**options)
    shown = Page(await context.new_page(), morning)
    shown.page.on("console", lambda message: shown.said.append(f"{message.type}: {message.text}"))
    shown.page.on("pageerror", lambda error: shown.said.append(f"error: {error}"))
    await shown.page.goto(address)
    await shown.page.wait_for_selector(".live")
    await shown.page.wait_for_selector(".row")
    yield shown
    assert shown.said == []
    await context.close()


async def open_busiest(shown: Page) -> str:
    """Open the session with the most branches."""
    lines = shown.morning.observatory.timelines.lines.latest(1000)
    parents = [line.parent for _, line in lines]
    name = max((name for name, _ in lines), key=parents.count)
    await shown.page.fill("#find", name)
    await shown.page.click(f'.row[data-session="{name}"]')
    await shown.page.wait_for_selector("#timeline rect")
    return name


async def test_it_shows_what_the_server_knows(dashboard: Page, record_property) -> None:
    timing = await dashboard.page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    record_property("load_ms", timing)
    counts = dashboard.morning.observatory.reuse.total.since_start
    await dashboard.page.check('input[value="start"]', force=True)
    shown = float((await dashboard.text("#hit")).rstrip("%"))
    assert abs(shown - 100 * counts.cached_tokens / counts.prompt_tokens) < 0.1
    assert "possible" in await dashboard.text("#hit-of")
    said = await dashboard.text("#misses")
    assert [rule for rule in ("PL803", "PL101", "PL201") if rule not in said] == [], said
    assert "messages[0].content at 31 · token" in said
    assert await dashboard.page.locator("#tree rect").count() > 10
    assert (await dashboard.text("#spec")).startswith("×")
    assert await dashboard.page.locator(".tierline").count() == 3


async def test_it_moves_while_turns_run(dashboard: Page) -> None:
    before = await dashboard.text("#sessions-count"), await dashboard.text("#spec-sub")
    dashboard.morning.names.append("ses_that_came_later")
    dashboard.morning.turn("ses_that_came_later")
    await dashboard.page.wait_for_selector('.row[data-session="ses_that_came_later"]')
    assert (await dashboard.text("#sessions-count"), await dashboard.text("#spec-sub")) != before


async def test_a_sessions_timeline_opens_and_closes(dashboard: Page) -> None:
    name = await open_busiest(dashboard)
    line = dashboard.morning.observatory.timelines.lines.get(name)
    assert await dashboard.text("#detail-title") == name
    assert await dashboard.page.locator("#turn-rows tr").count() == len(line.turns)
    assert await dashboard.page.locator("#timeline .branch").count() > 0
    await dashboard.page.click("#branches button >> nth=0")
    await playwright.expect(dashboard.page.locator("#detail-title")).not_to_have_text(name)
    assert name in await dashboard.text("#detail-sub")
    await dashboard.page.keyboard.press("Escape")
    assert await dashboard.page.is_hidden("#detail")


async def test_a_miss_leads_to_its_session_and_keeps_the_focus(dashboard: Page) -> None:
    link = dashboard.page.locator('#misses button[data-session="ses_planner"]')
    await link.focus()
    for _ in range(2):  # the page asks once a second
        async with dashboard.page.expect_response("**/dashboard/state*"):
            pass
    assert await dashboard.page.evaluate("document.activeElement.dataset.session") == "ses_planner"
    await dashboard.page.keyboard.press("Enter")
    await playwright.expect(dashboard.page.locator("#detail-title")).to_have_text("ses_planner")
    await dashboard.page.keyboard.press("Escape")


async def test_the_keyboard_is_enough(dashboard: Page) -> None:
    await dashboard.page.focus("#session-list")
    for _ in range(12):
        await dashboard.page.keyboard.press("ArrowDown")
    chosen = await dashboard.page.get_attribute('.row[aria-selected="true"]', "data-session")
    await dashboard.page.keyboard.press("Enter")
    await dashboard.page.wait_for_selector("#detail:not([hidden])")
    assert await dashboard.text("#detail-title") == chosen
    await dashboard.page.keyboard.press("Escape")
    assert await dashboard.page.evaluate("document.activeElement.id") == "session-list"


async def test_a_late_answer_about_another_session_is_not_drawn(dashboard: Page) -> None:
    page = dashboard.page
    first, second = [await row.get_attribute("data-session") for row in (await page.query_selector_all(".row"))[:2]]
    release = asyncio.Event()

    async def hold(route: Any) -> None:
        await release.wait()
        await route.continue_()

    await page.route(lambda url: url.endswith(f"name={first}"), hold)
    await page.click(f'.row[data-session="{first}"]')
    assert await dashboard.text("#detail-title") == first
    await page.click(f'.row[data-session="{second}"]')
    await page.wait_for_selector("#timeline rect")
    async with page.expect_response(lambda answer: answer.url.endswith(f"name={first}")) as late:
        release.set()
    await (await late.value).finished()
    await page.evaluate("new Promise((done) => setTimeout(done))")
    assert await dashboard.text("#detail-title") == second


LOOKS = {
    "light": {"viewport": {"width": 1280, "height": 900}},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2},
}


@pytest.mark.parametrize(("look", "dashboard"), LOOKS.items(), indirect=["dashboard"], ids=list(LOOKS))
async def test_axe_finds_nothing_serious(dashboard: Page, look: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.async_playwright", reason="axe-playwright-python is not installed")
    await open_busiest(dashboard)
    await dashboard.page.fill("#find", "")
    wide = await dashboard.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide == 0, "the page is wider than the window"
    if SCREENSHOTS:
        IMAGES.mkdir(parents=True, exist_ok=True)
        await dashboard.page.screenshot(path=IMAGES / f"dashboard-{look}.png", full_page=look != "phone")
    found = await axe.Axe().run(dashboard.page)
    serious = [v for v in found.response["violations"] if v["impact"] in ("serious", "critical")]
    assert [(v["id"], [n["target"] for n in v["nodes"]][:3]) for v in serious] == []


async def test_a_thousand_sessions_are_a_few_rows(dashboard: Page) -> None:
    for number in range(1000):
        dashboard.morning.turn(f"many-{number}")
    await playwright.expect(dashboard.page.locator("#sessions-count")).to_contain_text("1000 of", timeout=30_000)
    assert await dashboard.page.locator(".row").count() < 40
    await dashboard.page.focus("#session-list")
    await dashboard.page.keyboard.press("End")
    assert await dashboard.page.locator(".row").count() < 40
    assert await dashboard.page.get_attribute('.row[aria-selected="true"]', "aria-posinset") == "1000"


async def test_the_page_names_no_other_host(url) -> None:
    folder = Path(dashboard_routes.__file__).parent / "dashboard"
    for file in folder.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[a-z0-9-]+\.[a-z]", text), file.name
        assert "style=" not in text, "the policy allows no inline styles"
    listed = set(dashboard_routes._KINDS)
    assert {file.name for file in folder.iterdir()} == listed
