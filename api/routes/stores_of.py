"""The stores of the running application, for the routes."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Request

from api.stores import Stores


async def stores_of(request: Request) -> Stores:
    """Return the stores that `create_app` was given. Async: FastAPI takes a thread for every other dependency."""
    return cast(Stores, request.app.state.stores)


StoresDep = Annotated[Stores, Depends(stores_of)]
