"""The legend of the page's charts: buttons above them, as many as there are networks, which take no room from any chart."""

from __future__ import annotations

from collections.abc import Mapping

from loadmaster.report.text import Html, clipped, to_html

_LONGEST = 40


def legend_name(number: int) -> str:
    """Name of the shapes that the button of a network hides."""
    return f"network {number}"


def legend(colours: Mapping[str, str]) -> Html:
    """A button for each network in its colour; the page's script lets it hide the network's shapes."""
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-shapes="{legend_name(number)}" title="{to_html(name)}">'
        f'<i class=swatch style="background:{colour}"></i>{to_html(clipped(name, _LONGEST))}</button>'
        for number, (name, colour) in enumerate(colours.items())
    )
    return Html(f'<div class=legend role=group aria-label="Networks that are shown">{buttons}</div>')
