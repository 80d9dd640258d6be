"""One tenant against another on a real vLLM: what the one asked is not cached for the other, whatever it says."""

import pytest
from processes import BLOCK, Router
from talk import complete, ids

PROMPT = 1024


@pytest.mark.parametrize(
    ("session", "more"),
    [("own", {}), ("of-the-victim", {}), ("own", {"cache_salt": "victim"})],
)
def test_no_tenant_finds_cached_what_another_has_asked(fresh, session, more):
    asked = ids(970, PROMPT)
    with Router("tenants", [fresh], tenants=("victim", "thief")) as router:
        assert complete(router.url, asked, "of-the-victim", tenant="victim").cached == 0
        assert complete(router.url, asked + ids(971, 8), session, tenant="thief", **more).cached == 0
        # It was there all the while.
        found = complete(router.url, asked + ids(972, 8), "of-the-victim", tenant="victim").cached
        assert found >= PROMPT - BLOCK
