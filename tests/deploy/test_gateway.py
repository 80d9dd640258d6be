"""A real Envoy asks the router for the worker, and carries the requests itself."""

import json
import random

import pytest

from gateway import ENVOY, documented, site, until
from rendered import run


def words(seed, count):
    dice = random.Random(seed)
    return " ".join("".join(dice.choices("abcdefghij", k=5)) for _ in range(count))


def conversation(seed):
    return [{"role": "system", "content": words(seed, 400)}]


def buffered(envoy):
    mode = envoy.processor["processing_mode"]
    mode["request_body_mode"], mode["request_trailer_mode"] = "BUFFERED", "SKIP"
    mode["response_body_mode"], mode["response_trailer_mode"] = "STREAMED", "SKIP"


def overriding(envoy):
    """The whole list is taken, and gone down when a connection fails."""
    envoy.workers.clear()
    hosts = [
        {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}}
        for port in envoy.engines
    ]
    policies = "type.googleapis.com/envoy.extensions.load_balancing_policies"
    any_host = {"name": "any", "typed_config": {"@type": f"{policies}.round_robin.v3.RoundRobin"}}
    override = {
        "@type": f"{policies}.override_host.v3.OverrideHost",
        "override_host_sources": [{"header": "x-gateway-destination-endpoint"}],
        "fallback_policy": {"policies": [{"typed_extension_config": any_host}]},
    }
    envoy.workers.update(
        name="workers",
        type="STATIC",
        connect_timeout="2s",
        load_balancing_policy={"policies": [{"typed_extension_config": {"name": "picked", "typed_config": override}}]},
        load_assignment={"cluster_name": "workers", "endpoints": [{"lb_endpoints": hosts}]},
    )
    envoy.route["retry_policy"] = {"retry_on": "connect-failure,refused-stream", "num_retries": 2}


def listing(at):
    """The gateway bounds the choice to one engine."""

    def change(envoy):
        name = "envoy.extensions.filters.http.set_metadata.v3.Config"
        listed = {"x-gateway-destination-endpoint-subset": [f"127.0.0.1:{envoy.engines[at]}"]}
        noted = {"metadata_namespace": "envoy.lb.subset_hint", "value": listed}
        config = {"@type": f"type.googleapis.com/{name}", "metadata": [noted]}
        envoy.filters.insert(0, {"name": "envoy.filters.http.set_metadata", "typed_config": config})

    return change


def test_envoy_takes_the_documented_file(tmp_path):
    file = tmp_path / "envoy.json"
    file.write_text(json.dumps(documented()))
    done = run(ENVOY, "--mode", "validate", "-c", file)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("change", [lambda envoy: None, buffered, overriding], ids=["duplex", "buffered", "list"])
def test_a_conversation_stays_with_its_engine(tmp_path, change):
    with site(tmp_path, 4, change=change) as gateway:
        homes = set()
        for seed in range(4):
            talk = conversation(seed)
            home, _ = gateway.turn(talk, words(100 + seed, 20))
            homes.add(home)
            for _ in range(2):
                engine, cached = gateway.turn(talk, "and then?")
                assert engine == home and cached >= 400
        assert len(homes) > 1
        gateway.at_rest()
        until(lambda: gateway.metric("tailroute_requests_total", 'endpoint="chat",outcome="ok"') == 12, "all have counted")
        until(lambda: gateway.metric("tailroute_picker_served_total", 'by="picked"') == 12, "all went where they were sent")


def test_a_stream_passes_while_its_engine_goes_on(tmp_path):
    with site(tmp_path, 2, more=["--tpot-ms", "20000"]) as gateway:
        body = {"model": "sim", "messages": conversation(1), "stream": True, "max_tokens": 30}
        answer = gateway.ask(body)
        assert answer.readline().startswith(b"data: {")
        assert gateway.metric("tailroute_worker_in_flight") == 1, "the rest is still to come"
        assert answer.read().endswith(b"data: [DONE]\n\n")
        gateway.at_rest()


def test_who_hangs_up_is_counted_no_longer(tmp_path):
    with site(tmp_path, 2, more=["--tpot-ms", "100000"]) as gateway:
        answer = gateway.ask({"model": "sim", "messages": conversation(1), "stream": True, "max_tokens": 1000})
        assert answer.readline().startswith(b"data: {")
        answer.close()
        answer.connection.close()
        gateway.at_rest()


def test_a_large_body_arrives_whole(tmp_path):
    with site(tmp_path, 2) as gateway:
        for count in [20_000, 100_000]:
            status, _, body = gateway.chat([{"role": "user", "content": words(count, count)}])
            assert status == 200, body
            assert json.loads(body)["usage"]["prompt_tokens"] > count


def test_a_request_without_a_body_is_carried_too(tmp_path):
    with site(tmp_path, 2) as gateway:
        answer = gateway.ask(None, "GET", "/v1/models")
        assert answer.status == 200
        assert [model["id"] for model in json.loads(answer.read())["data"]] == ["sim"]
        gateway.at_rest()


def test_another_engine_is_picked_when_one_dies_and_none_is_503(tmp_path):
    with site(tmp_path, 2) as gateway:
        talk = conversation(1)
        home, _ = gateway.turn(talk, "hi")
        gateway.kill(home)
        until(lambda: gateway.metric("tailroute_workers", 'state="ready"') == 1, "its death is noticed")
        other, _ = gateway.turn(talk, "and then?")
        assert other != home
        gateway.kill(other)
        until(lambda: gateway.metric("tailroute_workers", 'state="ready"') == 0, "its death is noticed")
        status, headers, body = gateway.chat(talk)
        assert (status, json.loads(body)["error"]["code"]) == (503, "no_worker_ready")
        assert headers["retry-after"] == "1" and headers["content-type"] == "application/json"
        gateway.at_rest()


def test_the_next_of_the_list_serves_what_the_first_cannot(tmp_path):
    # Nobody but the request finds out that the engine is gone.
    with site(tmp_path, 3, change=overriding, fallbacks=2, probes_ms=60_000) as gateway:
        talk = conversation(1)
        home, _ = gateway.turn(talk, "hi")
        gateway.kill(home)
        other, _ = gateway.turn(talk, "and then?")
        assert other != home
        again, cached = gateway.turn(talk, "and now?")
        assert again == other and cached >= 400, "it is known who really served"
        until(lambda: gateway.metric("tailroute_picker_served_total", 'by="fallback"') == 1, "one was served by the next")
        gateway.at_rest()


def test_the_gateway_may_bound_the_choice(tmp_path):
    with site(tmp_path, 3, change=listing(1)) as gateway:
        served = {gateway.turn(conversation(seed), "hi")[0] for seed in range(6)}
        assert served == {gateway.engines[1]}
        gateway.kill(gateway.engines[1])
        until(lambda: gateway.metric("tailroute_workers", 'state="ready"') == 2, "its death is noticed")
        assert gateway.chat(conversation(9))[0] == 503


def test_a_client_is_told_what_is_wrong(tmp_path):
    with site(tmp_path, 1) as gateway:
        for body, status, code in [
            ({"model": "nope", "messages": []}, 404, "model_not_found"),
            (b"{", 400, "malformed_json"),
        ]:
            answer = gateway.ask(body)
            assert answer.status == status
            assert json.loads(answer.read())["error"]["code"] == code
        # A client names no endpoint: what it says is replaced.
        answer = gateway.ask(
            {"model": "sim", "messages": conversation(1), "max_tokens": 1},
            headers={"x-gateway-destination-endpoint": "127.0.0.1:9"},
        )
        assert answer.status == 200
