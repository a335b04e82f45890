"""Where the templates, headers and shipped configs lie: in a checkout beside this package, in a wheel inside ``flashgen``."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = ROOT / "templates"
INCLUDE = TEMPLATES / "include"
CONFIGS = ROOT / "configs"
