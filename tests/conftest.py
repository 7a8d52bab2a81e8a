"""Makes the helpers in this folder importable from every test, and keeps the tests out of the user's folder for caches."""

import os

os.environ["LOADMASTER_CACHE"] = ""
