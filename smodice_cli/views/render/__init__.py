"""How views are written: to the terminal, as PNG, as HTML pages and (output) as CSV."""
