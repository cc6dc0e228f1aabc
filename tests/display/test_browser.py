"""Pages in a real browser, without a network: no error, nothing overflows, tables sort and filter, print is whole."""

import pytest

from tests.display import browser as browsers
from tests.display.runs import HOSTILE, compare, whole

pytestmark = pytest.mark.slow

OPERATORS = "Operators, in the order in which they run"
GRADIENTS = "Gradients by layer"
ERRORS = "Errors by layer"
OVERFLOWS = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
WIDTHS = (360, 480, 640, 834, 959, 960, 1100, 1440)
LINEAR = "const linear = c => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4 };"


# Of JupyterLab 4.6's own style sheet, what is about the elements of a fragment (packages/rendermime, packages/outputarea).
JUPYTERLAB = """
.jp-RenderedHTMLCommon ul:not(.list-inline) { padding-left: 2em; }
.jp-RenderedHTMLCommon ul { list-style: disc; margin-bottom: 1em; }
.jp-RenderedHTMLCommon table { border-collapse: collapse; border: none; color: red; font-size: 13px; table-layout: fixed; margin-left: auto; margin-bottom: 1em; margin-right: auto; }
.jp-RenderedHTMLCommon td, .jp-RenderedHTMLCommon th, .jp-RenderedHTMLCommon tr { vertical-align: middle; padding: 0.5em; line-height: normal; white-space: normal; max-width: none; border: none; }
:not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon td, :not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon th, :not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon tr { text-align: right; }
.jp-RenderedHTMLCommon th { font-weight: bold; }
.jp-RenderedHTMLCommon p { text-align: left; margin: 0; margin-bottom: 1em; }
.jp-RenderedHTMLCommon svg { max-width: 100%; height: auto; }
.jp-OutputArea-output dl, .jp-OutputArea-output dt, .jp-OutputArea-output dd { display: block; }
.jp-OutputArea-output dl { width: 100%; overflow: hidden; padding: 0; margin: 0; }
.jp-OutputArea-output dt { font-weight: bold; float: left; width: 20%; padding: 0; margin: 0; }
.jp-OutputArea-output dd { float: left; width: 80%; padding: 0; margin: 0; }
"""


@pytest.fixture(scope="module")
def chromium():
    with browsers.started() as browser:
        yield browser


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "run.html"
    path.write_text(whole(f"A run {HOSTILE}").to_html(), encoding="utf-8")
    return path


@pytest.fixture
def opened(chromium, file):
    return chromium.open(file)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "notebook.html"
    cells = compare()._repr_html_() * 2
    path.write_text(f"<!DOCTYPE html><meta charset='utf-8'><h1>Mine</h1><table><tr><td>mine</table>{cells}")
    return path


def test_a_page_opens_without_a_console_error_and_loads_nothing(chromium, file):
    chromium.requested()
    chromium.open(file)
    assert chromium.console() == [] and chromium.requested() == [file.as_uri()]


def test_hostile_names_are_text(opened):
    assert opened.run("return window.broken === undefined && document.images.length === 0")
    assert opened.run("return document.scripts.length") == 1 and opened.one("h1").text == f"A run {HOSTILE}"
    assert HOSTILE in opened.column(OPERATORS, 0)


def test_nothing_overflows_at_any_width(opened):
    for width in WIDTHS:
        opened.resize(width)
        assert opened.run("return innerWidth") == width
        assert opened.run(OVERFLOWS) <= 0, width


def test_no_word_or_number_is_broken_on_a_phone(chromium, file):
    """A word's boxes are one where it stands in one line."""
    chromium.open(file, 390)
    code = """
        const found = new Set(), walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) {
          const text = walker.currentNode, range = document.createRange();
          if (text.parentElement.closest("script, style, svg, caption")) continue;
          for (const word of text.data.matchAll(/[\\w.,]+(\\u00a0\\w+)?/g)) {
            range.setStart(text, word.index);
            range.setEnd(text, word.index + word[0].length);
            if (range.getClientRects().length > 1) found.add(word[0]);
          }
        }
        return [...found];
    """
    assert chromium.run(code) == []
    chromium.resize(80)
    assert "operators" in chromium.run(code)  # it would be seen


def test_texts_of_a_chart_touch_nothing_at_any_width(opened):
    """Labels of an axis keep off each other, and off caption, legend and the page's edge."""
    code = """
        const box = e => e.getBoundingClientRect();
        const touch = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
        const found = [];
        for (const chart of document.querySelectorAll(".chart")) {
          const texts = [...chart.querySelectorAll("figcaption, .legend, .up span, .along span, .axis")];
          texts.forEach((a, i) => texts.slice(i + 1).forEach(b => {
            if (touch(box(a), box(b))) found.push([a.textContent, b.textContent]);
          }));
          for (const e of texts) if (box(e).left < 0 || box(e).right > innerWidth) found.push(e.textContent);
        }
        return found;
    """
    for width in WIDTHS:
        opened.resize(width)
        assert opened.run(code) == [], width


def test_a_table_that_is_cut_at_the_right_says_so_until_it_is_scrolled(chromium, file):
    chromium.open(file, 360)
    more = "return document.querySelector('#operators .scroll').classList.contains('more')"
    assert chromium.run(more)
    first = "return document.querySelector('#operators tbody th').getBoundingClientRect().left"
    at = chromium.run(first)
    chromium.wait("document.querySelector('#operators .scroll').scrollLeft = 9999", f"!({more[7:]})")
    assert chromium.run(first) == at  # the name of the row stays
    chromium.resize(1440)
    assert chromium.run("return document.querySelectorAll('#steps .table .more').length") == 0


def test_a_header_sorts_and_sorts_the_other_way(opened):
    original = opened.column(GRADIENTS, 0)
    opened.header(GRADIENTS, "values").click()
    sizes = [int(text.replace(",", "")) for text in opened.column(GRADIENTS, 1)]
    assert sizes == sorted(sizes, reverse=True) != sorted(sizes)
    assert opened.all("th[aria-sort=descending]")[0].text.startswith("values")
    opened.header(GRADIENTS, "values").click()
    assert [int(text.replace(",", "")) for text in opened.column(GRADIENTS, 1)] == sorted(sizes)
    assert [each.text[:6] for each in opened.all("th[aria-sort=ascending]")] == ["values"]
    assert sorted(opened.column(GRADIENTS, 0)) == sorted(original)


def test_values_that_are_not_known_come_last_either_way_and_inf_is_largest(opened):
    for _ in range(2):
        opened.header(ERRORS, "gradient local error").click()
        assert opened.column(ERRORS, 6)[-1] == "–"
    opened.header(ERRORS, "accumulated error").click()
    assert opened.column(ERRORS, 4)[0] == "∞"


def test_a_filter_shows_the_rows_that_have_all_words(opened):
    box = opened.one("#operators input")
    assert box.get_attribute("aria-label") == "Filter operators by text"
    box.send_keys("BLOCK1 elemwise")
    assert opened.column(OPERATORS, 0) == ["block1_add", "block10_add", "block11_add"]
    assert opened.one("#operators output").text == "3 of 39 operators"
    box.clear()
    box.send_keys(" ")
    assert len(opened.column(OPERATORS, 0)) == 39


def test_a_box_of_the_picture_says_what_is_in_it(opened):
    opened.all(".network .box")[0].click()
    assert opened.one(".network .details").text.startswith("stem (Convolution): float16, allow; casts data to")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_has_enough_contrast(chromium, file, dark):
    """WCAG's AA asks for 4.5 to 1, whatever the size."""
    chromium.open(file, dark=dark)
    code = (
        LINEAR
        + """
        const rgb = s => s.match(/[\\d.]+/g).map(Number);
        const light = s => { const [r, g, b] = rgb(s).map(linear); return .2126 * r + .7152 * g + .0722 * b };
        const behind = e => { for (; e; e = e.parentElement) {
          const c = getComputedStyle(e).backgroundColor; if (rgb(c)[3] !== 0) return c; } return "rgb(255, 255, 255)" };
        const found = {};
        const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) {
          const e = walker.currentNode.parentElement;
          if (!walker.currentNode.data.trim() || e.closest("script, style, svg")) continue;
          const a = light(getComputedStyle(e).color), b = light(behind(e));
          const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
          if (ratio < 4.5) found[e.tagName + "." + e.className] = ratio;
        }
        return found;
    """
    )
    assert chromium.run(code) == {}
    paper = chromium.run("return getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") != dark


def test_print_has_no_controls_and_whole_tables(opened, file):
    hidden = "return [...document.querySelectorAll('.controls, nav')].every(e => e.offsetParent === null)"
    cut = "return [...document.querySelectorAll('.scroll')].some(e => e.scrollHeight > e.clientHeight + 1)"
    assert not opened.run(hidden) and opened.run(cut)
    opened.open(file, width=700, media="print", dark=True)
    assert opened.run(hidden) and not opened.run(cut)
    assert opened.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert opened.run(OVERFLOWS) <= 0


def test_a_fragment_works_in_a_notebook_and_styles_nothing_else(chromium, notebook):
    chromium.open(notebook)
    assert chromium.console() == []
    assert chromium.run("return document.querySelectorAll('.mxmp table').length") == 2
    assert chromium.run("return document.querySelectorAll('.mxmp .controls').length") == 2  # made once for each
    before = "return getComputedStyle(document.querySelector('h1')).fontFamily"
    assert "system-ui" not in chromium.run(before)
    assert not chromium.run("return document.querySelector('table').closest('.mxmp')")
    assert chromium.run("return getComputedStyle(document.querySelector('td')).borderBottomWidth") == "0px"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_fragment_has_jupyterlabs_theme_whatever_the_systems_is(chromium, notebook, dark):
    chromium.open(notebook, dark=not dark)
    chromium.run("document.body.dataset.jpThemeLight = arguments[0]", str(not dark).lower())
    colors = chromium.run("const s = getComputedStyle(document.querySelector('.mxmp')); return [s.backgroundColor, s.colorScheme]")
    assert colors == (["rgb(20, 23, 27)", "dark"] if dark else ["rgb(255, 255, 255)", "light"])


def test_jupyterlabs_style_sheet_changes_nothing(chromium, tmp_path):
    """Every element of a fragment looks as it does without it: left-aligned cells, labels in one piece, wide pictures."""
    cell = f'<div class="jp-RenderedHTMLCommon jp-RenderedHTML jp-OutputArea-output">{whole()._repr_html_()}</div>'
    names = ["alone", "jupyter"]
    for name, style in zip(names, ["", JUPYTERLAB]):
        (tmp_path / f"{name}.html").write_text(f"<!DOCTYPE html><meta charset='utf-8'><style>{style}</style>{cell}")
    code = """
        return [...document.querySelectorAll(".mxmp *:not(title)")].map(e => {
          const s = getComputedStyle(e), r = e.getBoundingClientRect();
          return [e.tagName + "." + e.classList, s.textAlign.replace("start", "left"), s.fontWeight, s.color, Math.round(r.width), Math.round(r.height)].join(" ");
        });
    """
    alone, jupyter = (chromium.open(tmp_path / f"{name}.html", 1000).run(code) for name in names)
    assert len(alone) > 500 and [pair for pair in zip(alone, jupyter) if pair[0] != pair[1]] == []
