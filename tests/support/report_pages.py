"""What a report page carries."""

import gzip
import json
import re
from base64 import b64decode


def charts(page):
    """The data of the charts in a page."""
    found = re.search(r'id="data">([^<]+)</script>', page)
    return json.loads(gzip.decompress(b64decode(found[1])))


def models(value):
    """All Bokeh models in the data."""
    if isinstance(value, dict):
        if value.get("type") == "object":
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from models(part)


def objects(value, name):
    """The Bokeh models of one type."""
    return [model for model in models(value) if model["name"] == name]


def columns(page):
    """The data that each kind of shape of a page's charts is drawn from."""
    return [
        dict(model["attributes"]["data"]["entries"])
        for model in objects(charts(page), "ColumnDataSource")
    ]


def section(page, heading):
    """What a page says under a heading, up to the next."""
    return page.partition(f"<h2>{heading}</h2>")[2].partition("<h2>")[0]


def attributes(model, known):
    """A model's attributes, wherever in the data it is written out."""
    return known[model["id"]]["attributes"]


def left_sides(renderer, known):
    """The left sides of a renderer's rectangles, if that is what it draws."""
    data = attributes(attributes(renderer, known)["data_source"], known)["data"]
    return [column for name, column in data["entries"] if name == "left"]


def rectangles(page):
    """How many rectangles each chart of a page draws."""
    data = charts(page)
    known = {model["id"]: model for model in models(data)}
    return [
        sum(
            len(column)
            for renderer in attributes(figure, known)["renderers"]
            for column in left_sides(renderer, known)
        )
        for figure in objects(data["docs"]["plan"], "Figure")
    ]


def without_library(page):
    """The page less Bokeh's own code."""
    return re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
