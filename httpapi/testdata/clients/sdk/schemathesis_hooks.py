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


@schemathesis.hook
def map_path_parameters(ctx, parameters):
    """So do half of the looks at one model."""
    if ctx.operation.path == "/v1/models/{id}" and parameters and len(str(parameters.get("id"))) % 2 == 0:
        parameters["id"] = "demo"
    return parameters
