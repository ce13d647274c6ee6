"""Charts: what they show, and how they look.

`specs` loads Altair when a chart is first asked for. The modules `*_chart` and `overlays`, which import it, must be
imported by nobody else at the top of a module.
"""
