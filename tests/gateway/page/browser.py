"""A browser of the gateway's page, as far as cookies go."""

from __future__ import annotations

import json
import re
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlencode

from tornado.httpclient import AsyncHTTPClient, HTTPRequest

from tests.gateway.client import PATIENCE, Answer

FORM = "/sharedkernel/page/sign-in"


def xsrf_of(form: str) -> str:
    """Return the field of a form against forged requests."""
    found = re.search(r'name="_xsrf" value="([^"]+)"', form)
    assert found is not None, form
    return found[1]


class Browser:
    """Keeps the cookies of the gateway at *url*."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.cookies: dict[str, str] = {}
        #: attributes of the cookies that were set last
        self.flags = SimpleCookie()

    async def request(
        self, method: str, path: str, body: Any = None, *, xsrf: bool = True, form: bool = False, **headers: str
    ) -> Answer:
        """Ask for *path*; *body* is a form's fields or JSON, and *xsrf* says whether the page's own script asks."""
        sent = {"Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items()), **headers}
        if xsrf and method != "GET" and not form:
            sent["X-XSRFToken"] = self.cookies.get("_xsrf", "")
        data = None
        if method in ("POST", "PUT"):
            data = urlencode(body or {}) if form else json.dumps(body or {})
        request = HTTPRequest(
            self.url + path, method=method, headers=sent, body=data, request_timeout=PATIENCE, follow_redirects=False
        )
        response = await AsyncHTTPClient().fetch(request, raise_error=False)
        for line in response.headers.get_list("Set-Cookie"):
            self.flags.load(line)
            for name, morsel in SimpleCookie(line).items():
                self.cookies[name] = morsel.value
        text = response.body.decode()
        is_json = "json" in response.headers.get("Content-Type", "") and text
        return Answer(response.code, json.loads(text) if is_json else text, response.headers)

    async def sign_in(self, token: str) -> Answer:
        """Fill in the form, as it is shown, and send it."""
        form = await self.request("GET", FORM)
        return await self.request("POST", FORM, {"token": token, "_xsrf": xsrf_of(form.body)}, form=True)
