"""Models, health, readiness, metrics, hit rate and the OpenAPI document."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

CHAT = "/v1/chat/completions"


async def test_models(client):
    (card,) = (await client.get("/v1/models")).json()["data"]
    assert (card["id"], card["object"], card["context_length"]) == ("tiny", "model", 512)
    assert card["aliases"] == ["default", "m"]
    assert (await client.get("/v1/models/tiny")).json() == card
    assert (await client.get("/v1/models/m")).json() == card
    assert (await client.get("/v1/models/other/model")).status_code == 404


async def test_health_and_readiness(client):
    health = await client.get("/health")
    assert (health.status_code, health.json()["status"], health.json()["version"]) == (200, "ok", "1.2.3")
    ready = await client.get("/ready")
    assert (ready.status_code, ready.json()["ready"]) == (200, True)


async def test_probes_may_ask_without_a_body(client):
    for path in ("/health", "/ready", "/v1/models"):
        assert (await client.head(path)).status_code == 200, path


async def test_metrics_count_turns_and_errors(client, stage, chat_body):
    await client.post(CHAT, json=chat_body)
    await client.post(CHAT, json=chat_body | {"stream": True})
    await client.post(CHAT, json=chat_body | {"temperature": -1})
    families = list(text_string_to_metric_families((await client.get("/metrics")).text))
    assert all(family.name.startswith("sessile_") for family in families)
    assert all(family.documentation for family in families)
    samples = {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}
    assert samples["sessile_http_turns_total", "chat", "stop"] == 2
    assert samples["sessile_http_errors_total", "invalid_request"] == 1
    assert samples["sessile_http_turns_in_flight",] == 0
    assert samples["sessile_http_time_to_first_token_seconds_count",] == 2
    assert samples["sessile_generated_tokens_total",] == 77
    sources = {key[1]: value for key, value in samples.items() if key[0] == "sessile_prompt_tokens_by_source_total"}
    assert sum(sources.values()) == 40
    assert sources["computed"] == 10


async def test_applications_share_no_counters(client, stage, chat_body):
    from sessile.server.web.application import create_app

    create_app(stage.parts())
    create_app(stage.parts())


async def test_the_openapi_document_is_complete(client):
    document = (await client.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    for reference in _references(document):
        assert reference.removeprefix("#/components/schemas/") in schemas
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation.get("description"), path
            assert operation["responses"]["200"]["content"], path
    body = document["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/ChatBody"}
    assert "messages" in schemas["ChatBody"]["required"]
    assert document["paths"][CHAT]["post"]["parameters"][0]["name"] == "x-sessile-tenant"


def _references(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [reference for item in value.values() for reference in _references(item)]
    if isinstance(value, list):
        return [reference for item in value for reference in _references(item)]
    return []
