"""Benchmarks of tapeflow beside its peers: `python -m bench`, see bench/__main__.py for the options.

What is here: `harness` (the gate on right values, interleaved rounds, ratios), `peers` (one adapter per library),
`workloads` (what is computed, with a float64 NumPy reference each), `micro` (single costs and limits), `ops` (every
function beside NumPy's; `cases` has the calls), `report` (Markdown). What holds throughout: no number without a passed
check, everybody in one process and in turn, the same number of threads for everybody, and an absent library is named,
not passed over.
"""
