"""The model behind the HTTP surface of an engine.

``tokens`` is the tokenizer, ``cache`` what is kept and what goes first, ``memory`` the sessions and hints on top of it,
``request`` what a client may ask, ``engine`` the one thread that computes, ``app`` the routes.
"""
