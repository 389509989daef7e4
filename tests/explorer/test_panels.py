"""Every panel used as a person would, in a real browser; the numbers are the library's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import limelight as ll
from explorer.conftest import SENTENCE, Server
from limelight.seeing.recording.recording import Recording

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Opened = Callable[..., "Page"]

OTHER = "The animal didn't cross the street because it was too wide."


@pytest.fixture(scope="module")
def rec() -> Recording:
    return ll.look(SENTENCE)


def drawn(page: Page, panel: str) -> None:
    page.locator(f"#stage > .{panel}[data-drawn]").wait_for()


def until(page: Page, expression: str) -> None:
    """Wait for it, asked from outside: the page's policy evaluates no strings."""
    for _ in range(600):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(100)
    pytest.fail(f"not within a minute: {expression}")


def three(value: torch.Tensor | float) -> str:
    return f"{float(value):.3f}"


def signed(value: float) -> str:
    return f"{value:.3f}".replace("-", "−")


def test_typing_shows_the_tokens_and_the_strongest_links(opened: Opened) -> None:
    page = opened()
    assert page.locator(".story").first.inner_text().startswith("it looks at animal 0.677")
    page.fill(".type", "I love apple phones")
    page.locator(".sentence .token", has_text="phones").wait_for()
    labels = page.locator(".sentence .token").all_inner_texts()
    assert labels == ["[CLS]", "I", "love", "apple", "phones", "[SEP]"]
    # the head follows the text until a person chooses one; then it stays
    chosen = page.locator("select[aria-label=Head]")
    page.fill(".type", SENTENCE)
    until(page, "document.querySelector('.story').innerText.startsWith('it looks at animal 0.677')")
    page.get_by_role("button", name="Layer 0, head 2", exact=True).click()
    page.fill(".type", SENTENCE + " So it slept.")
    page.locator(".sentence .token", has_text="slept").wait_for()
    assert chosen.input_value() == "2"
    page.get_by_role("button", name="bank").click()
    page.locator(".sentence .token", has_text="river").wait_for()
    # the text is dropped as a file, too
    page.set_input_files(
        "#file", {"name": "a.txt", "mimeType": "text/plain", "buffer": b"A dropped text."}
    )
    page.locator(".sentence .token", has_text="dropped").wait_for()


def test_a_late_answer_is_never_drawn(opened: Opened) -> None:
    page = opened()
    held: list[object] = []

    def hold(route: object) -> None:
        if "slow text" in (route.request.post_data or ""):  # pyright: ignore
            held.append(route)
        else:
            route.continue_()  # pyright: ignore

    page.route("**/api/look", hold)
    page.fill(".type", "slow text")
    page.wait_for_timeout(400)
    page.fill(".type", "quick text")
    page.locator(".sentence .token", has_text="quick").wait_for()
    for route in held:
        route.abort()  # pyright: ignore
    page.wait_for_timeout(300)
    assert page.locator(".sentence .token", has_text="slow").count() == 0


def test_attention_rows_heads_search_and_overlay(opened: Opened, rec: Recording) -> None:
    page = opened()
    drawn(page, "attention")
    page.locator(".sentence .token", has_text="tired").hover()
    page.locator(".sentence .token", has_text="because").click()
    told = page.locator(".story").first.inner_text()
    row = rec.row(3, 1, "because")
    row[[0, 4, 14, 15]] = 0  # background tokens are hidden
    assert f"{rec.tokens[int(row.argmax())].text} {three(row.max())}" in told
    # two tokens held: their rows added up
    page.locator(".sentence .token", has_text="tired").click(modifiers=["Shift"])
    both = rec.row(3, 1, ["because", "tired"])
    both[[0, 4, 14, 15]] = 0
    told = page.locator(".story").first.inner_text()
    assert told.startswith("because + tired look at ")
    assert f"{rec.tokens[int(both.argmax())].text} {three(both.max())}" in told
    page.locator(".sentence .token", has_text="tired").click(modifiers=["Shift"])
    # another head by the grid
    page.get_by_role("button", name="Layer 2, head 1", exact=True).click()
    until(page, "document.querySelector('select[aria-label=Layer]').value === '2'")
    # which heads look from it to animal?
    page.fill(".find", "it → animal")
    page.locator(".cells.ranked").wait_for()
    best = page.locator(".cells .cell").first.get_attribute("aria-label")
    weights = torch.stack([seen.dense()[0, :, 10, 2] for seen in rec.layers])
    layer, head = divmod(int(weights.argmax()), weights.shape[1])
    assert best == f"Layer {layer}, head {head}: {three(weights.max())}"
    page.fill(".find", "")
    page.locator("div.cells:not(.ranked)").wait_for()
    # two heads over one another, then their mean
    page.get_by_role("button", name="Layer 3, head 1", exact=True).click()
    page.get_by_role("button", name="Layer 2, head 1", exact=True).click(modifiers=["Shift"])
    page.locator(".attention.coloured .overlay path").first.wait_for()
    page.get_by_role("button", name="Colours → mean").click()
    page.locator(".attention:not(.coloured)").wait_for()
    mean = (rec.weights(3, 1) + rec.weights(2, 1)) / 2
    mean[:, [0, 4, 14, 15]] = 0
    best = three(mean[rec.find("because")[0]].max())
    until(page, f"document.querySelector('.story').innerText.includes('{best}')")


@pytest.mark.parametrize("width", [1440, 390])
def test_who_asks_and_who_answers_are_both_in_view(opened: Opened, width: int) -> None:
    page = opened(viewport={"width": width, "height": 844})
    middle = "They walked along the quiet river and spoke of many small things that day. "
    page.fill(".type", f"Mary met the tall man. {middle * 8} Then Mary left.")
    page.locator(".sentence .token.asks", has_text="Mary").wait_for()
    assert page.locator(".story").first.inner_text().startswith("Mary128 looks at Mary1 0.9")
    hidden = page.evaluate(
        """() => ["asks", "answers"].filter((side) => {
          const frame = document.querySelector(".sentence").getBoundingClientRect();
          const marys = [...document.querySelectorAll(".sentence .token")]
            .filter((token) => token.innerText === "Mary");
          const box = marys[side === "asks" ? marys.length - 1 : 0].getBoundingClientRect();
          return box.top < frame.top || box.bottom > frame.bottom;
        })"""
    )
    assert hidden == []
    links = page.locator(".card.arcs .scrolls")
    assert links.evaluate("(frame) => frame.scrollHeight <= frame.clientHeight + 1")


def test_heads_are_sorted_by_what_they_do(opened: Opened) -> None:
    page = opened()
    drawn(page, "attention")
    labels = ll.head_labels("minilm")
    cell = page.get_by_role("button", name="Layer 0, head 2", exact=True)
    assert labels["0.2"][0] == "previous"
    assert cell.locator(".role").inner_text() == "prev"
    page.select_option("select[aria-label='Sort heads']", "role")
    order = page.locator("div.cells > *").evaluate_all(
        "all => all.map(e => e.dataset.role ?? e.getAttribute('aria-label'))"
    )
    first = [head for head, roles in labels.items() if roles[0] == "previous"]
    assert order[0] == "previous"
    assert order[1 : 1 + len(first)] == [f"Layer {head.replace('.', ', head ')}" for head in first]
    assert sum(name.startswith("Layer") for name in order) == 72


def test_value_weights_words_background_and_scale(opened: Opened, rec: Recording) -> None:
    page = opened()
    drawn(page, "attention")
    norms = rec.steps(3, 1)["V"].value.norm(dim=-1)
    carried = float(rec.weights(3, 1)[10, 2] * norms[2])
    page.get_by_role("button", name="Value-weighted").click()
    until(page, f"document.querySelector('.story').innerText.includes('{three(carried)}')")
    page.get_by_role("button", name="Value-weighted").click()
    page.get_by_role("button", name="Words").click()
    page.locator(".sentence .token", has_text="didn't").wait_for()
    page.get_by_role("button", name="Background").click()
    page.get_by_role("button", name="Log scale").click()
    page.locator(".sentence .token", has_text="[CLS]").hover()
    assert page.locator(".story").first.inner_text().startswith("[CLS] looks at [CLS] 0.99")


def test_compare_says_what_changed_for_a_token(opened: Opened, rec: Recording) -> None:
    page = opened("#panel=compare")
    drawn(page, "compare")
    other = ll.look(OTHER).weights(3, 1)[10, 2]
    first = rec.weights(3, 1)[10, 2]
    told = page.locator(".compare .story").inner_text()
    assert told.startswith(f"For it: animal {three(first)} → {three(other)}")
    assert f"−{three(first - other)}" in page.locator("[aria-label=Difference]").inner_text()
    # two heads
    page.select_option("[aria-label='Layer of the second']", "2")
    until(
        page, "document.querySelector('[aria-label=Second]').innerText.includes('layer 2 head 1')"
    )
    assert page.locator(".compare .movers .chip").count() == 12


def test_step_by_step_with_temperature_mask_and_the_worked_example(
    opened: Opened, rec: Recording
) -> None:
    page = opened("#panel=steps")
    drawn(page, "steps-panel")
    assert page.locator("[data-weight]").inner_text() == three(rec.weights(3, 1)[10, 2])
    cells = page.locator(".flow figure[data-step=weights] canvas")
    box = cells.bounding_box()
    assert box is not None
    across = 58 + (box["width"] - 58) * 2.5 / 16
    cells.hover(position={"x": across, "y": box["height"] * 10.5 / 16})
    told = page.locator(".story.numbers").inner_text()
    assert told.startswith(f"weights[it, animal] = {float(rec.weights(3, 1)[10, 2]):.4f}")
    page.mouse.move(0, 0)
    # twice as hot, and no look ahead
    scores = rec.steps(3, 1)["scaled"].value / 10**0.3
    page.fill("#temperature", "0.3")
    hot = scores.softmax(-1)[10]
    until(page, f"document.querySelector('[data-weight]').innerText === '{three(hot.max())}'")
    page.select_option("[aria-label=Mask]", "causal")
    seen = scores[10, :11].softmax(-1)
    until(page, f"document.querySelector('[data-weight]').innerText === '{three(seen.max())}'")
    # the worked example: one number changed, everything after it follows
    page.locator(".worked [data-step=output]").wait_for()
    assert "15 numbers" in page.locator(".slips").inner_text()
    page.fill("[aria-label='X, row 1, column 1']", "2")
    until(
        page, "document.querySelector('.worked [data-step=query] tbody td').innerText !== '1.200'"
    )


def test_the_parts_of_a_score_are_the_library_s(opened: Opened, rec: Recording) -> None:
    page = opened("#panel=why")
    drawn(page, "why-panel")
    split = ll.why(rec, 3, 1, 10, 2)
    assert page.locator(".why-panel .answer").inner_text() == "animal"
    assert page.locator("[data-score]").inner_text() == signed(split.score)
    assert "normalises after each layer" in page.locator(".reach").inner_text()
    shown = [
        tuple(row.locator("td:not(.bar-cell)").all_inner_texts())
        for row in page.locator(".parts tbody tr").all()
    ]
    assert shown == [(*pair, signed(part)) for *pair, part in split.strongest(12)]
    # every cell is a part, reached by keys as by the pointer
    first, second, part = split.strongest(1)[0]
    cell = page.locator(f".part[aria-label='{first} with {second}: {signed(part)}']")
    cell.hover()
    assert page.locator("[data-part]").inner_text() == signed(part)
    page.locator(".why-frame").focus()
    page.keyboard.press("ArrowUp")
    assert page.locator("[data-part]").count() == 1
    # another key, and the lines of Python that say the same
    page.locator(".link-choice .sentence").last.get_by_text("street").click()
    until(page, "document.querySelector('.why-panel .answer').innerText === 'street'")
    street = ll.why(rec, 3, 1, "it", "street")
    assert page.locator("[data-score]").inner_text() == signed(street.score)
    found: dict[str, Any] = {}
    exec(page.locator(".why-panel .code").text_content() or "", found)
    assert found["why"].score == pytest.approx(street.score, abs=1e-9)
    # exact where norms come first: a decoder, whose later tokens cannot be chosen
    page = opened("#panel=why&model=smollm2&text=The+cat+sat+on+the+mat&head=2.0&token=4&to=1")
    drawn(page, "why-panel")
    split = ll.why(ll.look("The cat sat on the mat", model="smollm2"), 2, 0, 4, 1)
    assert page.locator("[data-score]").inner_text() == signed(split.score)
    assert "Every source stands by itself" in page.locator(".reach").inner_text()
    assert page.locator(".link-choice .token[disabled]").count() == 1


def test_the_way_of_a_word_is_the_library_s(opened: Opened) -> None:
    page = opened("#panel=meaning&text=I+love+apple+phones")
    drawn(page, "meaning")
    sentences = ["I love apple phones", "I love apple pie"]
    groups = {"fruit": ["banana", "pear", "mango"], "tech": ["laptop", "computer", "phone"]}

    def shown() -> list[list[list[str]]]:
        return [
            [
                row.locator("td").all_inner_texts()
                for row in card.locator(".nearness tbody tr").all()
            ]
            for card in page.locator(".meaning [data-sentence]").all()
        ]

    def expected(way: ll.Shift) -> list[list[list[str]]]:
        return [
            [
                [signed(float(s[0, g])), signed(float(s[-1, g])), change(float(s[-1, g] - s[0, g]))]
                for g in range(s.shape[1])
            ]
            for s in way.similarity
        ]

    def change(value: float) -> str:
        return ("+" if value >= 0 else "") + signed(value)

    way = ll.shift("apple", sentences, groups)
    assert page.locator("[data-nearest]").all_inner_texts() == ["tech", "fruit"]
    assert shown() == expected(way)
    cells = page.locator(".all-layers tbody td")
    flat = way.similarity.transpose(0, 1).flatten().tolist()
    assert cells.all_text_contents() == [signed(value) for value in flat]
    found: dict[str, Any] = {}
    exec(page.locator(".meaning .code").text_content() or "", found)
    torch.testing.assert_close(found["way"].similarity, way.similarity)
    # another group, another sentence: all numbers follow
    groups["colour"] = ["red", "green"]
    page.fill(
        "[aria-label^='Groups']", "\n".join(f"{k} = {', '.join(v)}" for k, v in groups.items())
    )
    page.fill("[aria-label='The second sentence']", "The apple is ripe.")
    until(page, "document.querySelectorAll('.meaning [data-group=colour]').length === 2")
    until(page, "document.querySelector('.meaning .code').textContent.includes('ripe')")
    assert shown() == expected(ll.shift("apple", [sentences[0], "The apple is ripe."], groups))
    until(page, "location.hash.includes('colour')")
    # the words of a group in another sentence
    page.fill("[aria-label^='The sentence that the words']", "We saw the {} there.")
    until(page, "document.querySelector('.meaning .code').textContent.includes('We saw')")
    template = "We saw the {} there."
    way = ll.shift("apple", [sentences[0], "The apple is ripe."], groups, template=template)
    assert shown() == expected(way)
    # a sentence without the word is left out, and marked
    page.fill("[aria-label='The second sentence']", "Pears are ripe.")
    until(page, "document.querySelectorAll('.meaning [data-sentence]').length === 1")
    field = page.locator("[aria-label='The second sentence']")
    assert field.get_attribute("aria-invalid") == "true"


def test_a_cut_link_changes_what_the_library_says(opened: Opened, rec: Recording) -> None:
    page = opened("#panel=cause")
    page.locator(".cause[data-drawn]").wait_for()
    found = ll.cause("minilm", SENTENCE, 10, controls=2, progress=False)
    change = found.forbid.change[3, 1]
    shown = {
        row.locator("th").inner_text(): row.locator("td.strong").inner_text()
        for row in page.locator(".effects tbody tr").all()
    }
    for place, token in enumerate(rec.tokens):
        if token.text in shown and float(change[place]) >= 0.001:
            assert shown[token.text] == f"{float(change[place]):.4f}", token
    page.get_by_role("button", name="Cut the link to animal").click()
    page.locator("[data-sentence]").wait_for()
    page.get_by_role("button", name="Restore all links").click()
    assert page.locator("[data-sentence]").count() == 0


def test_a_long_text_is_a_map_with_exact_tiles(opened: Opened) -> None:
    words = Path(__file__).parent.parent.parent.joinpath("DESIGN.md").read_text(encoding="utf-8")
    text = words[:1500]
    page = opened()
    page.fill(".type", text)
    page.get_by_role("tab", name="Long text").click()
    drawn(page, "long")
    rec = ll.look(text)
    count = f"{len(rec.tokens)} tokens"
    until(page, f"document.querySelector('.message').innerText.startsWith('{count}')")
    page.locator(".jump-link").first.wait_for()
    page.locator(".jump-link").first.click()
    page.locator("[data-exact], .map-tip .number").first.wait_for()
    box = page.locator("canvas.map").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.locator("[data-exact]").wait_for()
    query, key = (int(n) for n in page.locator(".map-tip sub").all_inner_texts())
    layer, head = (
        int(page.locator(f"select[aria-label={name}]").input_value()) for name in ("Layer", "Head")
    )
    exact = rec.weights(layer, head)[query, key]
    assert page.locator("[data-exact]").inner_text() == three(exact)
    page.fill("[aria-label^='Search a word']", "attention")
    page.keyboard.press("Enter")
    page.locator("[data-found=attention] .jump-link").first.wait_for()
    # the small map beside it is that of the head, too
    picture = "document.querySelector('canvas.minimap').toDataURL()"
    before = page.evaluate(picture)
    other = (head + 1) % 12
    page.select_option("select[aria-label=Head]", str(other))
    until(page, f"document.querySelector('.long').dataset.drawn === '{layer}.{other}'")
    until(page, f"{picture} !== '{before}'")


@pytest.mark.soak
def test_a_document_is_read_layer_by_layer_and_searched_in_all_heads(opened: Opened) -> None:
    words = Path(__file__).parent.parent.parent.joinpath("DESIGN.md").read_text(encoding="utf-8")
    text = words[:5600]
    page = opened("#model=smollm2")
    page.fill(".type", text)
    page.locator(".reading progress[value]").wait_for()
    page.get_by_role("button", name="Cancel").click()
    until(page, "document.querySelector('.message').innerText.startsWith('Cancelled')")
    page.fill(".type", text + " ")
    drawn(page, "long")
    rec = ll.look(text + " ", model="smollm2")
    assert len(rec.tokens) > 1024
    page.locator("[data-drawn] .cell").first.wait_for()
    page.fill(".heads-grid .find", "kernel → attention")
    page.locator(".cells.ranked").wait_for()
    queries, keys = (
        [k for k, token in enumerate(rec.tokens) if token.text.strip() == word]
        for word in ("kernel", "attention")
    )
    found = torch.stack([s.rows(queries)[0][..., keys].sum(-1).mean(-1) for s in rec.layers])
    layer, head = divmod(int(found.argmax()), found.shape[1])
    best = page.locator(".cells .cell").first
    assert best.get_attribute("aria-label") == f"Layer {layer}, head {head}: {three(found.max())}"
    best.click()
    until(page, f"document.querySelector('.long').dataset.drawn === '{layer}.{head}'")
    page.fill("[aria-label^='Search a word']", "attention")
    page.keyboard.press("Enter")
    chip = page.locator("[data-found=attention] .jump-link").first
    chip.wait_for()
    query = int(chip.locator("sub").first.inner_text())
    weight = rec.weights(layer, head)[query, keys].sum()
    assert chip.locator(".number").inner_text() == three(weight)


def test_a_decoder_writes_and_another_token_can_be_taken(opened: Opened) -> None:
    page = opened("#panel=generation&model=smollm2&text=The+capital+of+France+is")
    page.get_by_role("button", name="Continue").click()
    page.locator(".generation[data-drawn='24']").wait_for()
    expected = ll.generate(ll.load("smollm2"), "The capital of France is", max_tokens=24)
    shown = page.locator(".token.new").all_inner_texts()
    assert len(shown) == len(expected.ids)
    assert shown[0].strip() == "Paris"
    page.locator(".token.new").first.click()
    page.locator(".candidate", has_text="the").first.click()
    until(page, "document.querySelectorAll('.token.new').length > 3")
    assert page.locator(".token.new").first.inner_text().strip() == "the"
    stop = page.get_by_role("button", name="Stop")
    if stop.is_visible():
        stop.click()
    assert page.locator(".generation .small-table tr").count() > 3


@pytest.mark.soak
def test_roles_of_heads_are_measured_and_lead_to_the_heads(opened: Opened) -> None:
    page = opened("#panel=heads")
    page.get_by_role("button", name="Measure").click()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Measure").click()
    previous = page.locator("[data-role=previous] .chip")
    previous.first.wait_for(timeout=300_000)
    expected = ll.heads("minilm", progress=False).top("previous", 1)[0]
    assert previous.first.inner_text().startswith(f"{expected[0]}.{expected[1]}")
    previous.first.click()
    drawn(page, "attention")
    assert page.locator("select[aria-label=Head]").input_value() == str(expected[1])


def test_what_is_shared_makes_the_same_picture(
    opened: Opened, server: Server, rec: Recording, tmp_path: Path
) -> None:
    page = opened("#head=2.1&token=10&show=log")
    drawn(page, "attention")
    assert page.locator("select[aria-label=Layer]").input_value() == "2"
    until(page, "location.hash.includes('head=2.1')")
    assert "log" in page.evaluate("location.hash")
    page.get_by_role("button", name="Share").click()
    page.locator(".code", has_text="import limelight").wait_for()
    code = page.locator(".code").inner_text()
    found: dict[str, object] = {}
    (tmp_path / "here").mkdir()
    import os

    before = Path.cwd()
    os.chdir(tmp_path / "here")
    try:
        exec(code, found)
    finally:
        os.chdir(before)
    torch.testing.assert_close(found["weights"], rec.weights(2, 1))
    assert (tmp_path / "here" / "attention.png").stat().st_size > 5000
    with page.expect_download() as waiting:
        page.get_by_role("button", name="JSON").click()
    saved = json.loads(Path(waiting.value.path()).read_text())
    assert saved["weights"] == rec.weights(2, 1).tolist()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="HTML").click()
    exported = Path(waiting.value.path()).read_text()
    assert exported.startswith("<!doctype html>")
    page.get_by_role("button", name="Close").click()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save heat map as PNG").click()
    assert Path(waiting.value.path()).read_bytes().startswith(b"\x89PNG")


def test_a_picture_is_read_by_a_vision_model(browser: Browser, tmp_path: Path) -> None:
    from PIL import Image
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    model = ViTModel(
        ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                  image_size=64, patch_size=16)
    )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5 if parameter.ndim > 1 else 1)  # far from uniform
    model.save_pretrained(tmp_path / "vit")
    across = torch.arange(64).expand(64, 64)
    pixels = torch.stack([4 * across, 4 * across.T, 255 - across], dim=-1).to(torch.uint8).numpy()
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    rec = ll.look(pixels, model=str(tmp_path / "vit"))
    server = Server("--port", "0", "--no-open", "--model", str(tmp_path / "vit"), "minilm")
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.set_default_timeout(60_000)
    try:
        page.goto(server.url)
        notice = page.locator(".notice").first
        page.locator(".notice", has_text="reads pictures").wait_for()
        page.set_input_files("#file", tmp_path / "picture.png")
        page.locator(".picture-card .patch").nth(15).wait_for()
        assert notice.is_hidden()
        page.locator("select[aria-label=Layer]").select_option("1")
        page.locator("select[aria-label=Head]").select_option("0")
        page.locator(".picture-card .patch").nth(5).click()
        weights = rec.weights(1, 0)[6]
        best = int(weights[1:].argmax())
        expected = f"1,1 looks at {best // 4},{best % 4} {three(weights[1 + best])}"
        until(
            page,
            f"document.querySelector('.picture-card .caption').innerText.startsWith('{expected}')",
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.get_by_role("tab", name="Cause").click()
        page.locator(".notice", has_text="of texts").wait_for()
        page.locator("select.models").select_option("minilm")
        page.locator(".notice", has_text="minilm reads texts").wait_for()
    finally:
        page.close()
        server.stop()


def test_every_colour_that_the_style_sheet_names_is_set(opened: Opened) -> None:
    page = opened()
    page.locator(".cell").first.wait_for()
    unset = page.evaluate(
        """() => {
          const rules = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]);
          const used = /--[a-z]+(?=\\))/g;
          const names = new Set(rules.flatMap((rule) => rule.cssText.match(used) ?? []));
          const drawn = getComputedStyle(document.querySelector(".cell"));
          return [...names].filter((name) => !drawn.getPropertyValue(name));
        }"""
    )
    assert unset == []


def test_errors_are_readable_and_the_page_goes_on(opened: Opened) -> None:
    page = opened("#model=unknown")
    page.locator(".notice", has_text="not here").wait_for()
    page.fill(".type", "a new text")
    page.locator(".sentence .token", has_text="new").wait_for()
    assert page.locator(".notice").first.is_hidden()


@pytest.mark.parametrize(
    "panel",
    ["attention", "compare", "steps", "why", "meaning", "cause", "heads", "long", "generation"],
)
def test_every_panel_is_accessible_and_fits_a_narrow_screen(opened: Opened, panel: str) -> None:
    axe = Path(__file__).parent.parent.parent / "node_modules/axe-core/axe.min.js"
    page = opened(f"#panel={panel}", viewport={"width": 390, "height": 844})
    until(page, f"document.getElementById('app').dataset.panel === '{panel}'")
    page.wait_for_timeout(800)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert axe.exists(), "axe-core is not installed: make setup"
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_timeout(300)
        # as a function's body: the page's policy lets no script in
        page.evaluate(axe.read_text(encoding="utf-8"))
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        bad = [
            (each["id"], [node["html"][:120] for node in each["nodes"]][:3])
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
        ]
        assert bad == [], (scheme, bad)
