"""HTTP without Kafka: operations declared once, from which requests are checked, answered and documented.

What another package needs to serve routes of its own:

    class Greeting(Struct):
        text: str

    class Name(Struct, frozen=True):
        name: Annotated[str, Meta(pattern=r"^[a-z]+\\Z", examples=["ada"])]

    class Times(Struct, frozen=True, forbid_unknown_fields=True):
        times: Annotated[int, Meta(ge=1, le=9, description="How often.")] = 1

    routes = Routes(tag="Greetings", about="Saying hello.")

    @routes.get("/hello/{name}", "Say hello.", path=Name, query=Times, answers={200: Reply("The greeting.", Greeting)})
    async def hello(request: Request, path: Name, query: Times) -> Answer:
        return json_answer(Greeting(f"hello {path.name} " * query.times))

    application = Application([routes])      # an ASGI application; `serve` runs it

Starlette finds the route, msgspec checks what comes in. A handler gets what its operation declares (`path`, `query`,
`headers`, `body`) as structs; it returns an `Answer` or a `Stream`, or raises a `Problem`. A package brings its part as
`Mounted(routes, life)`; `cli/gateway.py` hands all of them to `run_gateway`. `Routes(render=…)` chooses how problems
look there.
"""
