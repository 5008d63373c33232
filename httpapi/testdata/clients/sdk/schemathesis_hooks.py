"""Steers some of what is made up to where it does something."""

import schemathesis


@schemathesis.hook
def map_body(ctx, body):
    """Half of the loads name the model that the server has."""
    if ctx.operation.path == "/admin/load" and isinstance(body, dict):
        model = body.get("model")
        if isinstance(model, str) and len(model) % 2 == 0:
            body["model"] = "demo"
            body.pop("drafter", None)
    return body


KNOWN = {"/v1/models/{id}": "demo", "/admin/integrations/{id}/write": "opencode"}


@schemathesis.hook
def map_path_parameters(ctx, parameters):
    """So do half of the looks at one thing of a few."""
    known = KNOWN.get(ctx.operation.path)
    if known and parameters and len(str(parameters.get("id"))) % 2 == 0:
        parameters["id"] = known
    return parameters


@schemathesis.hook
def map_query(ctx, query):
    """And half of the questions whether a model fits."""
    if ctx.operation.path == "/admin/fit" and query and len(str(query.get("context"))) % 2 == 0:
        query["model"] = "org/m"
    return query
