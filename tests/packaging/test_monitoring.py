"""Prometheus and Grafana: what they ask for is what the gateway has."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sharedkernel.gateway.http.health import DeviceMetrics
from sharedkernel.local_stack import LocalStack
from sharedkernel.status.document import DeviceStatus, StatusDocument
from tests.packaging.test_containers import COMPOSE, compose
from tests.warm_stack import WarmStack

DASHBOARD = Path(__file__).parents[2] / "packaging/grafana/sharedkernel.json"
#: how PromQL's functions of one name and Grafana's variables end up beside names of metrics
_METRIC = re.compile(r"\bsharedkernel_\w+")
_LABELS = re.compile(r"(\w+)=~?\"|by \(([\w, ]+)\)")


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    with WarmStack(users=["prometheus"], capacity="1GiB") as stack:
        yield stack


def metrics_of(stack: LocalStack, scheme: str) -> str:
    """Return what `/metrics` answers to a token."""
    headers = {"Authorization": f"{scheme} {stack.token('prometheus')}"}
    with urllib.request.urlopen(urllib.request.Request(f"{stack.gateway_url}/metrics", headers=headers)) as answer:
        return str(answer.read().decode())


def samples(text: str) -> set[str]:
    """Return the names of all samples that there may be, also of counters that have counted nothing yet."""
    endings = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}
    return {
        f"{family.name.removesuffix('_total')}{ending}"
        for family in text_string_to_metric_families(text)
        for ending in endings.get(family.type, [])
    }


def queries() -> list[str]:
    """Return all queries of the dashboard."""
    document = json.loads(DASHBOARD.read_text())
    found = [target["expr"] for panel in document["panels"] for target in panel["targets"]]
    return [*found, *(variable["query"]["query"] for variable in document["templating"]["list"][1:])]


def test_each_query_names_metrics_that_the_gateway_has(stack: LocalStack) -> None:
    """Those of a GPU's sensors, which the host device has not, are those that a GPU's status gives."""
    gpu = DeviceStatus(name="g", utilisation=0.5, temperature_celsius=1.0, power_watts=1.0, power_limit_watts=1.0)
    sensors = generate_latest(DeviceMetrics({"g": StatusDocument(device=gpu)}, {}, ["g"]).registry).decode()
    real = samples(metrics_of(stack, "token"))
    assert "sharedkernel_grants_total" in real
    known = real | {name for name in samples(sensors) if name.startswith("sharedkernel_device_")}
    asked = {name for query in queries() for name in _METRIC.findall(query)}
    assert len(asked) > 15
    assert asked <= known, sorted(asked - known)


def test_each_query_names_labels_that_its_metrics_have() -> None:
    """The device, the user, the kind of memory, the state, the reason, and the bounds of histograms."""
    labels = {
        label.strip()
        for query in queries()
        for one, several in _LABELS.findall(query)
        for label in (one or several).split(",")
    }
    assert labels <= {"device", "user", "kind", "state", "reason", "le"}
    assert any("sharedkernel_refusals_total" in query and "reason" in query for query in queries())


def test_the_dashboard_is_one_that_grafana_reads() -> None:
    """Panels have places that do not overlap, their own ids, and the data source that is chosen above them."""
    document = json.loads(DASHBOARD.read_text())
    panels = document["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        columns, rows = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        cells = {(x, y) for x in columns for y in rows}
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert [variable["name"] for variable in document["templating"]["list"]] == ["datasource", "device"]


def test_prometheus_is_let_in(stack: LocalStack) -> None:
    """With a token in the header that it sends, at the address that the compose file gives the gateway."""
    assert "sharedkernel_device_up" in metrics_of(stack, "Bearer")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{stack.gateway_url}/metrics")
    document: dict[str, Any] = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())
    [job] = document["scrape_configs"]
    services = compose()["services"]
    assert job["metrics_path"] == "/metrics"
    assert job["static_configs"][0]["targets"] == [f"{services['gateway']['hostname']}:8585"]
    assert "credentials_file" in job["authorization"]
    assert job["authorization"]["credentials_file"] == f"/run/secrets/{services['prometheus']['secrets'][0]}"
    assert "./prometheus.yml:/etc/prometheus/prometheus.yml:ro" in services["prometheus"]["volumes"]


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    """By what is mounted where its provisioning looks."""
    services = compose()["services"]
    mounts = dict(volume.split(":")[:2] for volume in services["grafana"]["volumes"])
    [source] = yaml.safe_load((COMPOSE / "grafana/datasources/prometheus.yaml").read_text())["datasources"]
    assert re.fullmatch(r"http://(\w+):9090", source["url"])[1] in services  # type: ignore[index]
    [provider] = yaml.safe_load((COMPOSE / "grafana/dashboards/sharedkernel.yaml").read_text())["providers"]
    [folder] = [here for here, there in mounts.items() if there == provider["options"]["path"]]
    assert (COMPOSE / folder / DASHBOARD.name).samefile(DASHBOARD)
    assert mounts["./grafana"] == "/etc/grafana/provisioning"
