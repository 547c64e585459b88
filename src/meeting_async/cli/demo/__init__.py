"""``meeting-async demo``: the library at work against an embedded server, over real HTTP.

``stage`` is what happens and what is said of it; ``documents`` makes the documents.
"""
