"""The Helm chart: linted and rendered by Helm's own code, checked against Kubernetes' schemas and what Baton has."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml

from baton.telemetry.metrics import all_metrics
from baton.worker.options import parse_options
from gateway.__main__ import parse_args
from tests.fakes.promql import selectors

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "baton"
KUBERNETES = ("1.27", "1.31", "1.37")
CUSTOM = ("ScaledObject", "ServiceMonitor")  # of operators: no schema is at hand
Manifest = dict[str, Any]
EVERYTHING: Manifest = {
    "gateway": {"autoscaling": {"kind": "keda"}, "flags": ["--max-attempts=2"]},
    "workers": {"prefill": {"autoscaling": {"kind": "keda"}}, "decode": {"autoscaling": {"kind": "hpa"}}},
    "image": {"pullSecrets": ["registry"], "tag": "1"},
    "hostNamespaces": True,
    "secrets": ["baton-tls"],
    "collector": {"forwardTo": "otel:4317"},
    "networkPolicy": {"clients": [{"namespaceSelector": {}}], "monitoring": [{"podSelector": {}}]},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
}
MINIMAL: Manifest = {
    "redis": {"enabled": False, "url": "redis://elsewhere:6379/0"},
    "collector": {"enabled": False},
    "networkPolicy": {"enabled": False},
    "model": {"fetch": False, "volume": {"emptyDir": None, "persistentVolumeClaim": {"claimName": "weights"}}},
    "workers": {"prefill": None, "decode": {"flags": ["--aggregated"]}},
}
VALUES = pytest.mark.parametrize("values", [{}, EVERYTHING, MINIMAL], ids=["default", "everything", "minimal"])


def render(values: Manifest) -> list[Manifest]:
    with helm_python.Chart.load(str(CHART)) as chart:
        files = chart.render(values, name="b", namespace="llm")
    return [part for name, text in files.items() if name.endswith(".yaml") for part in yaml.safe_load_all(text) if part]


def find(manifests: list[Manifest], kind: str, name: str = "") -> Manifest:
    (found,) = (m for m in manifests if m["kind"] == kind and m["metadata"]["name"].endswith(name))
    return found


def container(manifests: list[Manifest], component: str) -> Manifest:
    (found,) = find(manifests, "Deployment", f"b-{component}")["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_helm_finds_nothing_to_say() -> None:
    report = helm_python.lint(str(CHART))
    assert report["errors"] == []
    assert {message["error"] for message in report["messages"]} <= {"icon is recommended"}


@VALUES
@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_takes_every_manifest(values: Manifest, version: str) -> None:
    manifests = render(values)
    assert len({(m["kind"], m["metadata"]["name"]) for m in manifests}) == len(manifests)
    for manifest in manifests:
        if manifest["kind"] not in CUSTOM:
            kubernetes_validate.validate(manifest, version, strict=True)


@VALUES
def test_flags_are_real_and_ports_agree(values: Manifest, tmp_path: Path) -> None:
    manifests = render(values)
    components = [
        m["metadata"]["labels"]["app.kubernetes.io/component"] for m in manifests if m["kind"] == "Deployment"
    ]
    for component in {"gateway", "prefill", "decode"} & set(components):
        name, *flags = container(manifests, component)["args"]
        flags = [re.sub("^--model=.*", f"--model={tmp_path}", flag) for flag in flags]
        flags = [flag.replace("=auto", "=worker:9000") for flag in flags]
        ports = {port["name"]: port["containerPort"] for port in container(manifests, component)["ports"]}
        assert name == component
        if component == "gateway":
            config = parse_args(flags)
            assert ports == {"grpc": config.port, "http": config.http_port, "metrics": config.metrics_port}
        else:
            options = parse_options(component, flags, can_aggregate=component == "decode")
            assert ports == {"grpc": options.port, "metrics": options.metrics_port}


def test_a_pod_has_time_to_drain() -> None:
    manifests = render({"workers": {"decode": {"drainTimeoutSeconds": 120}}})
    pod = find(manifests, "Deployment", "decode")["spec"]["template"]["spec"]
    hook = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert hook[:3] == ["baton", "drain", "127.0.0.1:9000"]
    assert int(hook[-1]) == 120 < pod["terminationGracePeriodSeconds"]
    assert "--drain-timeout-s=120" in pod["containers"][0]["args"]


def metrics_asked_for(manifests: list[Manifest]) -> Iterator[tuple[str, dict[str, str]]]:
    """Names, with the values that labels are to have."""
    for manifest in manifests:
        if manifest["kind"] == "ScaledObject":
            for trigger in manifest["spec"]["triggers"]:
                for selector in selectors(trigger["metadata"]["query"]):
                    yield selector.name, {label: value for label, _, value in selector.matchers}
        if manifest["kind"] == "HorizontalPodAutoscaler":
            for metric in manifest["spec"]["metrics"]:
                asked = metric["pods"]["metric"]
                yield asked["name"], asked.get("selector", {}).get("matchLabels", {})


@pytest.mark.parametrize("kind", ["hpa", "keda"])
def test_scaling_asks_for_metrics_that_baton_has(kind: str) -> None:
    scaling = {"autoscaling": {"kind": kind}}
    manifests = render({"gateway": scaling, "workers": {"prefill": scaling, "decode": scaling}})
    asked = [*metrics_asked_for(manifests)]
    assert len(asked) == 3
    for name, matchers in asked:
        declared = {label.name: label.values for label in all_metrics()[name].labels}
        for label, value in matchers.items():
            assert label == "namespace" or value in declared[label]
    targets = {
        m["spec"]["scaleTargetRef"]["name"] for m in manifests if m["kind"] in ("HorizontalPodAutoscaler", *CUSTOM)
    }
    assert targets == {"b-gateway", "b-prefill", "b-decode"}
    assert all("replicas" not in find(manifests, "Deployment", name)["spec"] for name in targets)


def test_the_monitor_finds_the_metrics_of_every_pod() -> None:
    manifests = render(EVERYTHING)
    service, monitor = find(manifests, "Service", "b-metrics"), find(manifests, "ServiceMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    for component in ("gateway", "prefill", "decode"):
        labels = find(manifests, "Deployment", component)["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()


def test_every_pod_is_confined() -> None:
    for manifest in render({}):
        if manifest["kind"] == "Deployment":
            pod = manifest["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"]
            for part in [*pod["containers"], *pod.get("initContainers", [])]:
                assert part["securityContext"]["capabilities"] == {"drop": ["ALL"]}
                assert not part["securityContext"]["allowPrivilegeEscalation"]


def test_certificates_are_mounted_where_flags_can_name_them() -> None:
    for component in ("gateway", "prefill", "decode"):
        mounts = container(render(EVERYTHING), component)["volumeMounts"]
        assert {"name": "secret-baton-tls", "mountPath": "/etc/baton/secrets/baton-tls", "readOnly": True} in mounts


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"workers": {"decode": {"replica": 1}}}, "replica"),
        ({"gateway": {"autoscaling": {"kind": "knative"}}}, "kind"),
        ({"redis": {"enabled": False}}, "redis.url: got nothing"),
        ({"collector": {"forwardTo": "http://otel"}}, "forwardTo"),
    ],
)
def test_nonsense_is_refused(values: Manifest, says: str) -> None:
    with pytest.raises(helm_python.HelmError, match=says):
        render(values)
