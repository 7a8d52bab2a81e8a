"""The page in a real browser: it draws, asks for nothing, complains about nothing, and runs nothing
that a name says."""

from dataclasses import replace
from functools import partial

import pytest
from tests.support.browser import (
    CHARTS,
    charts_drawn,
    console_errors,
    in_shadow,
    of_charts,
    open_page,
    outside_requests,
    wait_for,
)
from tests.support.drawn_plan import drawn_plan, rename

import loadmaster as lm
from loadmaster.planning.sweep.design_space import Sweep, SweptNetwork
from loadmaster.planning.sweep.points import DesignPoint
from loadmaster.report.page import render
from loadmaster.report.plan import plan_page
from loadmaster.report.sweep import sweep_page

pytestmark = pytest.mark.slow

HOSTILE = (
    "$$x^2$$<img src=x onerror='window.hacked = 1'><script>window.hacked ="
    " 1</script></script>\x1b[31m@name{safe}&amp;"
)


def test_time_axes_line_up_and_move_together(driver, plan, tmp_path):
    """All charts have the same frame and the same range; the wheel zooms all with Ctrl and scrolls
    without."""
    from selenium.webdriver import ActionChains, Keys
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

    open_page(driver, tmp_path, render(plan_page(plan)))
    frames = of_charts(driver, "[v.frame.bbox.left, v.frame.bbox.right]")
    assert len({tuple(frame) for frame in frames}) == 1
    ends = partial(of_charts, driver, "v.model.x_range.end")
    before = ends()
    chart = driver.find_element("id", "chart0")
    wheel = ScrollOrigin.from_element(chart)
    ActionChains(driver).scroll_from_origin(wheel, 0, -100).perform()
    assert ends() == before
    ActionChains(driver).key_down(Keys.CONTROL).scroll_from_origin(wheel, 0, -100).key_up(
        Keys.CONTROL
    ).perform()
    after = ends()
    assert after[0] < before[0]
    assert len(set(after)) == 1
    driver.execute_script(in_shadow("return all('[title=Reset]')[1]")).click()
    assert ends() == before


@pytest.mark.parametrize("width", [900, 1400])
def test_many_networks_take_no_room_from_the_schedule(driver, tmp_path, width):
    """A lane is as high with 50 networks as with one, and the page is no wider than the window."""
    heights = []
    for count in (1, 50):
        driver.set_window_size(width, 1000)
        plan = drawn_plan({f"a_network_with_a_long_name_{i}": 1 for i in range(count)}, 1)
        open_page(driver, tmp_path, render(plan_page(plan)))
        heights.append(of_charts(driver, "v.frame.bbox.height")[0])
        assert driver.execute_script(
            "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        )
    driver.set_window_size(1400, 1000)
    assert heights[0] == heights[1] > 4 * 30


def test_what_the_page_asks_for_is_told_from_what_the_browser_opens(driver, plan, tmp_path):
    """The browser's own page before, and in a window beside; an image from outside, in a page that
    no policy guards, is noticed."""
    driver.get("chrome://version")
    open_page(driver, tmp_path, render(plan_page(plan)))
    mine = driver.current_window_handle
    driver.switch_to.new_window("tab")
    driver.get("chrome://credits")
    driver.close()
    driver.switch_to.window(mine)
    assert outside_requests(driver) == []
    asking = tmp_path / "asking.html"
    asking.write_text("<img src='http://elsewhere.invalid/picture.png'>")
    driver.get(asking.as_uri())
    assert outside_requests(driver) == ["http://elsewhere.invalid/picture.png"]


def check_unharmed(driver):
    """Fail if a name was run, or anything complained about or asked for."""
    assert driver.execute_script("return window.hacked") is None
    assert console_errors(driver) == []
    assert outside_requests(driver) == []


def test_hostile_names_stay_text(driver, plan, tmp_path):
    """Markup in names is shown, not run, in tables, titles, ticks, legends and tooltips, and
    nothing is fetched for it."""
    renamed = rename(plan, HOSTILE, HOSTILE + "tensor")
    spare = replace(plan.target.cores[0], name=HOSTILE)
    target = replace(plan.target.with_memory(0, name=HOSTILE), cores=(*plan.target.cores, spare))
    open_page(driver, tmp_path, render(plan_page(replace(renamed, target=target))))
    for chart in (0, 4):
        hover_first(driver, chart)
    shown = driver.execute_script(
        in_shadow(
            "return all('.bk-Tooltip').map(e => e.shadowRoot ? e.shadowRoot.textContent :"
            " e.textContent)"
        )
    )
    assert any("<script>window.hacked" in text for text in shown)
    assert driver.execute_script(in_shadow("return all('img[src=x]').length")) == 0
    check_unharmed(driver)


def test_the_page_of_a_sweep_draws_its_charts_and_asks_for_nothing(driver, tmp_path):
    """Points with a plan and without one, one that is missing, and names that would like to be
    markup."""
    axes = lm.parse_axes(["scratchpad=0,1MiB", "bandwidth=1GB/s,2GB/s"])
    at = [
        {"scratchpad": size, "bandwidth": rate} for size, rate in ((0, 1e9), (2**20, 1e9), (0, 2e9))
    ]
    slow = 2e-3, 1e-3, 1e12, 500.0, 10**6, 2**19, 1e-3, 1e-4, 1.0
    fast = 1e-3, 1e-3, 2e12, 1000.0, 10**6, 0, 1e-3, 1e-4, 0.0
    points = (
        DesignPoint(at[0], 0, 1e9, 1.0, "no plan", reason=HOSTILE),
        DesignPoint(at[1], 2**20, 1e9, 2.0, "feasible", *slow),
        DesignPoint(at[2], 0, 2e9, 1.0, "optimal", *fast),
    )
    target = replace(lm.target("edge-npu"), name=HOSTILE, description=HOSTILE)
    swept = Sweep(
        (SweptNetwork(HOSTILE, "int8", 1, 1, 1),),
        target,
        axes,
        points,
        ("bandwidth",),
        lm.Limits(makespan=2e-3),
    )
    open_page(driver, tmp_path, render(sweep_page(swept)))
    assert charts_drawn(driver) >= 2
    # A line of each front, bars and points of both plans, and the limit.
    drawn = of_charts(driver, "v.model.renderers.map(r => r.data_source.data.x.length)")
    assert drawn == [[2, 2, 2, 2, 1], [2, 2]]
    check_unharmed(driver)


def hover_first(driver, chart):
    """Move the mouse over the first rectangle of a chart's first network."""
    from selenium.webdriver import ActionChains

    element = driver.find_element("id", f"chart{chart}")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    x, y = driver.execute_script(
        CHARTS
        + """
        const v = charts[arguments[0]], d = v.model.renderers[0].data_source.data
        const f = v.frame, x = f.x_scale.compute((d.left[0] + d.right[0]) / 2)
        const y = f.y_scale.compute((d.top[0] + d.bottom[0]) / 2)
        const box = v.el.getBoundingClientRect(), outer = arguments[1].getBoundingClientRect()
        return [
          x + box.left - outer.left - outer.width / 2, y + box.top - outer.top - outer.height / 2
        ]
        """,
        chart,
        element,
    )
    ActionChains(driver).move_to_element_with_offset(element, round(x), round(y)).perform()
    text = "e => (e.shadowRoot ? e.shadowRoot : e).textContent.includes(name)"
    name = f"const name = charts[{chart}].model.renderers[0].data_source.data.name[0];"
    wait_for(driver, in_shadow(f"{CHARTS} {name} return all('.bk-Tooltip').some({text})"))
