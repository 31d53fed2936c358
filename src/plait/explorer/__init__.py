"""``plait.explore``: a page to look at models and files in a browser.

Statistics of arrays, then outlines (what a page shows of a live graph, or of a file), then one JSON description, then
the page. The page's own code is in ``assets/``.
"""
