"""Runs the cells of first-plan.ipynb and stores what they show: python docs/notebooks/run.py"""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).with_name("first-plan.ipynb")


def main() -> None:
    """Store the outputs in the notebook."""
    NOTEBOOK.write_text(json.dumps(executed(), indent=1, ensure_ascii=False) + "\n", "utf-8")


def executed() -> dict[str, Any]:
    """Return the notebook with the outputs of today, run in one namespace as a kernel would."""
    notebook: dict[str, Any] = json.loads(NOTEBOOK.read_text("utf-8"))
    names: dict[str, Any] = {}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, 1):
        body = ast.parse("".join(cell["source"])).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        printed, value = io.StringIO(), None
        with contextlib.redirect_stdout(printed):
            exec(compile(ast.Module(body, []), cell["id"], "exec"), names)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), cell["id"], "eval"), names)
        cell |= {"execution_count": number, "outputs": []}
        if printed.getvalue():
            text = printed.getvalue().splitlines(keepends=True)
            cell["outputs"].append({"name": "stdout", "output_type": "stream", "text": text})
        if value is not None:
            shown = {"text/html": value._repr_html_(), "text/plain": repr(value)}
            cell["outputs"].append(
                {
                    "data": {kind: text.splitlines(keepends=True) for kind, text in shown.items()},
                    "execution_count": number,
                    "metadata": {},
                    "output_type": "execute_result",
                }
            )
    return notebook


if __name__ == "__main__":
    main()
