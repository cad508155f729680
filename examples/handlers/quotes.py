from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request

from headrace.client import NoReply, RemoteError, Rpc


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with Rpc() as rpc:
        app.state.rpc = rpc
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/quotes/{item}")
async def quote(item: str, request: Request) -> dict[str, float]:
    rpc: Rpc = request.app.state.rpc
    try:
        return await rpc.call("pricing", {"item": item}, reply=dict[str, float], timeout=5.0)
    except RemoteError as error:
        raise HTTPException(404, f"no price: {error.message}") from error
    except NoReply as error:
        raise HTTPException(504, error.message) from error
