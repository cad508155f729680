"""HTTP without Kafka: routes declared once, from which requests are checked, answered and documented.

What another package needs to serve routes of its own:

    routes = Routes(tag="Greetings", about="Saying hello.")

    @routes.get("/hello/{name}", "Say hello.", answers={200: Reply("The greeting.", Object({"text": Text()}))},
                params={"name": Text(pattern="[a-z]+")}, query={"times": Query(Integer(1, 9), 1, "How often.")})
    async def hello(request: Request) -> Answer:
        return json_answer({"text": f"hello {request.params['name']} " * request.query["times"]})

    application = Application([routes])      # an ASGI application; `serve` runs it

A package brings its part as `Mounted(routes, life)`; `cli/gateway.py` hands all of them to `run_gateway`.
A handler returns an `Answer` or a `Stream`, or raises a `Problem`. `Routes(render=…)` chooses how problems look there.
"""
