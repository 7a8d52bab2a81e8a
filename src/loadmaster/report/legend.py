"""The legend of the page's charts: a button for each network, above the charts."""

from __future__ import annotations

from collections.abc import Mapping

from loadmaster.report.text import Html, clipped, to_html

_LONGEST = 40


def legend_name(number: int) -> str:
    """Return the name of the shapes that the button of a network hides."""
    return f"network {number}"


def legend(colours: Mapping[str, str]) -> Html:
    """Make a button for each network in its colour; the page's script has it hide the network's
    shapes."""
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-shapes="{legend_name(number)}"'
        f' title="{to_html(name)}"><i class=swatch'
        f' style="background:{colour}"></i>{to_html(clipped(name, _LONGEST))}</button>'
        for number, (name, colour) in enumerate(colours.items())
    )
    return Html(
        f'<div class=legend role=group aria-label="Networks that are shown">{buttons}</div>'
    )
