"""``plait.explore``: a page that shows models and files in a browser.

Bottom-up: statistics of arrays; outlines, which are what a page shows of a live graph or of a file; one JSON
description; the page. The page's own code is in ``assets/``.
"""
