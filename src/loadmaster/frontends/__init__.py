"""From network files to graphs; format details stop here."""

from loadmaster.frontends.onnx_file import load

__all__ = ["load"]
