"""Faults that must be found: each changes rendered objects in one way, and says which check must object
and in which words. A new check comes with its fault here.
"""

import re
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, Tuple

from .findings import Finding
from .objects import Object, Objects

Plant = Callable[[Objects], None]


class UnknownFault(Exception):
    """There is no fault of this name."""


@dataclass(frozen=True)
class Fault:
    """One mistake, the check that must find it, and a regular expression for the reason."""

    name: str
    plant: Plant
    check: str
    expect: str
    variant: str = "everything"

    def found(self, findings: Iterable[Finding]) -> bool:
        """Whether the right check objects, for the right reason."""
        return any(each.check == self.check and re.search(self.expect, str(each)) for each in findings)


def obj(objects: Objects, kind: str, stem: str) -> Object:
    """The object of this kind with this name, hash suffixes aside."""
    exact = objects.get(kind, stem)
    found = [exact] if exact else [each for each in objects.of(kind) if each["metadata"]["name"].rpartition("-")[0] == stem]
    if len(found) != 1:
        raise LookupError(f"{len(found)} objects are {kind}/{stem}")
    return found[0]


def spec(kind: str, stem: str, **fields: Any) -> Plant:
    """Sets fields of an object's spec; None removes the field."""

    def plant(objects: Objects) -> None:
        target = obj(objects, kind, stem)["spec"]
        for field, value in fields.items():
            target.pop(field, None) if value is None else target.__setitem__(field, value)

    return plant


def pod(stem: str, kind: str = "Deployment", **fields: Any) -> Plant:
    """Sets fields of a workload's pod; None removes the field."""

    def plant(objects: Objects) -> None:
        target = obj(objects, kind, stem)["spec"]["template"]["spec"]
        for field, value in fields.items():
            target.pop(field, None) if value is None else target.__setitem__(field, value)

    return plant


def container(change: Callable[[Dict[str, Any]], Any], stem: str = "gateway", kind: str = "Deployment") -> Plant:
    """Changes the first container of a workload."""
    return lambda objects: change(obj(objects, kind, stem)["spec"]["template"]["spec"]["containers"][0])


def whole(kind: str, stem: str, change: Callable[[Object], Any]) -> Plant:
    """Changes an object in any way."""
    return lambda objects: change(obj(objects, kind, stem))


# What a real API server refuses: the red controls of gate 27.
REFUSED: Tuple[Fault, ...] = (
    Fault("unknown field", pod("gateway", terminationGracePeriod=30), "schema", "terminationGracePeriod"),
    Fault("replicas as a string", spec("StatefulSet", "redis", replicas="6"), "schema", "replicas.*'6' is not of type 'integer'"),
    Fault("env value as a number", container(lambda c: c["env"].append({"name": "NATS_REPLICAS", "value": 3})),
          "schema", "env.*3 is not of type 'string'"),
    Fault("selector that does not match", spec("Deployment", "gateway", selector={"matchLabels": {"app": "other"}}),
          "selectors", "Deployment/gateway: its selector does not match the labels of its own pods"),
    Fault("PDB with both fields", spec("PodDisruptionBudget", "redis", minAvailable=4),
          "disruption", "PodDisruptionBudget/redis: has both minAvailable and maxUnavailable"),
    Fault("HPA min above max", spec("HorizontalPodAutoscaler", "gateway", minReplicas=9),
          "autoscalers", "HorizontalPodAutoscaler/gateway: minReplicas 9 is above maxReplicas 6"),
    Fault("port name over 15 letters", container(lambda c: c["ports"].append({"name": "a-port-with-a-long-name", "containerPort": 7000})),
          "names", "port name 'a-port-with-a-long-name' is not valid"),
    Fault("probe period -1", container(lambda c: c["livenessProbe"].update(periodSeconds=-1)),
          "probes", "livenessProbe has periodSeconds -1"),
    Fault("request above limit", container(lambda c: c["resources"]["requests"].update(memory="2Gi")),
          "requests", "requests 2Gi of memory, above its limit 512Mi"),
    Fault("quantity 64mb", container(lambda c: c["resources"]["requests"].update(memory="64mb")),
          "quantities", "'64mb', which is not a quantity"),
    Fault("mount without volume", container(lambda c: c.setdefault("volumeMounts", []).append({"name": "cache", "mountPath": "/cache"})),
          "mounts", "mounts the volume 'cache', which does not exist"),
    Fault("name Gw", whole("Deployment", "gateway", lambda o: o["metadata"].update(name="Gw")), "names", "the name 'Gw' is not valid"),
    Fault("bad spread enum", pod("gateway", topologySpreadConstraints=[
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "Never",
         "labelSelector": {"matchLabels": {"app.kubernetes.io/component": "gateway"}}}]),
          "spread", "whenUnsatisfiable 'Never' is not valid"),
    Fault("claim without access mode", whole("StatefulSet", "redis", lambda o: o["spec"]["volumeClaimTemplates"][0]["spec"].pop("accessModes")),
          "claims", "the claim 'data' has no access mode"),
    Fault("preStop longer than the grace", container(lambda c: c["lifecycle"]["preStop"]["sleep"].update(seconds=40)),
          "stopping", r"terminationGracePeriodSeconds 30 is not longer than preStop \(40 s\)"),
    Fault("policy/v1beta1", whole("PodDisruptionBudget", "gateway", lambda o: o.update(apiVersion="policy/v1beta1")),
          "api-versions", "apiVersion policy/v1beta1 is not current: policy/v1"),
    Fault("duplicate env", container(lambda c: c["env"].append({"name": "REDIS_URL", "value": "redis://elsewhere"})),
          "environment", "the variable REDIS_URL is set twice"),
    Fault("no securityContext", container(lambda c: c.pop("securityContext")), "restricted", "Deployment/gateway: muster: has no securityContext"),
    Fault("root user", pod("gateway", securityContext={"runAsNonRoot": True, "runAsUser": 0, "seccompProfile": {"type": "RuntimeDefault"}}),
          "restricted", r"Deployment/gateway: muster: runs as root"),
    Fault("probe on a port that does not exist", container(lambda c: c["readinessProbe"]["httpGet"].update(port="health")),
          "probes", "readinessProbe asks the port 'health', which the pod does not have"),
)
# What an API server accepts, and what then does not work.
ACCEPTED: Tuple[Fault, ...] = (
    Fault("Service port that leads nowhere", whole("Service", "gateway", lambda o: o["spec"]["ports"][0].update(targetPort="web")),
          "services", "Service/gateway: its port http leads to 'web'"),
    Fault("Service without pods", spec("Service", "gateway", selector={"app": "gone"}), "selectors", "Service/gateway: its selector matches the pods of 0"),
    Fault("two workloads with one selector", spec("Deployment", "scheduler", selector={"matchLabels": {"app.kubernetes.io/name": "muster"}}),
          "selectors", "matches the pods of Deployment/gateway too"),
    Fault("ConfigMap that does not exist", container(lambda c: c["envFrom"][0]["configMapRef"].update(name="muster-settings")),
          "configuration", "needs the ConfigMap 'muster-settings', which does not exist"),
    Fault("key that the Secret does not have", container(lambda c: c["env"][1]["valueFrom"]["secretKeyRef"].update(key="URL")),
          "configuration", "needs the key 'URL' of the Secret"),
    Fault("claim that does not exist", pod("redis-healer", volumes=[
        {"name": "config", "persistentVolumeClaim": {"claimName": "gone"}}]),
          "configuration", "needs the PersistentVolumeClaim 'gone'"),
    Fault("image latest", container(lambda c: c.update(image="muster/gateway:latest")), "images", "'muster/gateway:latest' is not pinned"),
    Fault("image without tag", container(lambda c: c.update(image="registry:5000/muster/gateway")), "images", "is not pinned"),
    Fault("budget that blocks every drain", spec("PodDisruptionBudget", "nats", maxUnavailable=None, minAvailable=3),
          "disruption", "PodDisruptionBudget/nats: leaves no eviction"),
    Fault("budget for a primary and its replica", spec("PodDisruptionBudget", "redis", maxUnavailable=None, minAvailable=4),
          "disruption", "must have maxUnavailable: 1"),
    Fault("no budget", lambda objects: objects.all.remove(obj(objects, "PodDisruptionBudget", "scheduler")),
          "disruption", "Deployment/scheduler: has no PodDisruptionBudget"),
    Fault("replicas beside an autoscaler", spec("Deployment", "gateway", replicas=2), "autoscalers", "Deployment/gateway: fixes `replicas`"),
    Fault("autoscaler without target", whole("HorizontalPodAutoscaler", "gateway", lambda o: o["spec"]["scaleTargetRef"].update(name="gone")),
          "autoscalers", "scales Deployment/gone, which does not exist"),
    Fault("object twice", lambda objects: objects.all.append(obj(objects, "Service", "gateway")), "unique", "Service/gateway: exists twice"),
    Fault("container port twice", container(lambda c: c["ports"].append({"name": "again", "containerPort": 8081})), "unique", "port 8081 exists twice"),
    Fault("Job that keeps its name", container(lambda c: c.update(command=["true"]), "redis-cluster-create", "Job"),
          "jobs-by-content", "its name must end with the hash of its content"),
    Fault("no limit", container(lambda c: c["resources"].pop("limits")), "requests", "no request or no limit of cpu"),
    Fault("no probe", container(lambda c: c.pop("readinessProbe")), "probes", "Deployment/gateway: has no readinessProbe"),
    Fault("healer that nobody can wait for", container(lambda c: c.pop("readinessProbe"), "redis-healer"),
          "probes", "Deployment/redis-healer: has no readinessProbe"),
    Fault("no preStop", container(lambda c: c.pop("lifecycle")), "stopping", "has no preStop sleep"),
    Fault("spread over other pods", whole("StatefulSet", "nats", lambda o: o["spec"]["template"]["spec"]["topologySpreadConstraints"][0].update(
        labelSelector={"matchLabels": {"app": "other"}})), "spread", "does not select the workload's own pods"),
    Fault("spread by one label twice", whole("Deployment", "gateway", lambda o: o["spec"]["template"]["spec"]["topologySpreadConstraints"][0].update(
        matchLabelKeys=["app.kubernetes.io/name"])), "spread", "in labelSelector and in matchLabelKeys"),
    Fault("service links", pod("scheduler", enableServiceLinks=True), "restricted", "enableServiceLinks is not false"),
    Fault("capabilities", container(lambda c: c["securityContext"].pop("capabilities")), "restricted", "does not drop all capabilities"),
    Fault("namespace without Pod Security", whole("Namespace", "muster", lambda o: o["metadata"]["labels"].clear()),
          "namespace", "enforce is None, not 'restricted'"),
    Fault("variable that refers to a later one", whole("StatefulSet", "nats", lambda o: (
        lambda env: env.append(env.pop(1)))(o["spec"]["template"]["spec"]["containers"][0]["env"])),
          "environment", r"NATS_ROUTES refers to \$\(NATS_USER\), which does not stand above it"),
    Fault("one name for all replicas", container(lambda c: c["env"].__setitem__(0, {"name": "MUSTER_INSTANCE_ID", "value": "gateway"})),
          "environment", "MUSTER_INSTANCE_ID does not come from metadata.name"),
    Fault("unknown setting", container(lambda c: c["env"].append({"name": "MUSTER_LOGS", "value": "debug"})),
          "known", "MUSTER_LOGS is not a setting of muster-gateway"),
    Fault("unknown setting in the ConfigMap", whole("ConfigMap", "muster-config", lambda o: o["data"].update(NATS_REPLICA="3")),
          "known", "NATS_REPLICA is not a setting of muster-scheduler"),
    Fault("policy for no pod", spec("NetworkPolicy", "redis-operators", podSelector={"matchLabels": {"app": "gone"}}),
          "policies", "NetworkPolicy/redis-operators: its podSelector matches no pod"),
    Fault("policy for a port that nobody has", whole("NetworkPolicy", "gateway", lambda o: o["spec"]["ingress"][0]["ports"][0].update(port="web")),
          "policies", "NetworkPolicy/gateway: ingress: no pod has the port 'web'"),
    Fault("nothing denied by default", lambda objects: objects.all.remove(obj(objects, "NetworkPolicy", "default-deny")),
          "policies", "no NetworkPolicy denies everything"),
    Fault("no way to Redis", lambda objects: objects.all.remove(obj(objects, "NetworkPolicy", "store-clients")),
          "flows", "Deployment/gateway: no NetworkPolicy lets it out to StatefulSet/redis"),
    Fault("no way into NATS", whole("NetworkPolicy", "nats", lambda o: o["spec"]["ingress"].pop(0)),
          "flows", "StatefulSet/nats: no NetworkPolicy lets Deployment/scheduler in, port client"),
    Fault("no way to the collector of traces", lambda objects: objects.all.remove(obj(objects, "NetworkPolicy", "traces")),
          "flows", "Deployment/scheduler: no NetworkPolicy lets it out to the collector of traces, port 4318"),
    Fault("no name resolution", lambda objects: objects.all.remove(obj(objects, "NetworkPolicy", "allow-dns")), "flows", "ask for names"),
    Fault("scraped port that does not exist", whole("ServiceMonitor", "muster", lambda o: o["spec"]["endpoints"][0].update(port="metrics")),
          "service-monitors", "scrapes the port 'metrics', which Service/gateway-admin does not have"),
    Fault("label pod lost", whole("ServiceMonitor", "muster", lambda o: o["spec"]["endpoints"][0].pop("honorLabels")),
          "service-monitors", "honorLabels is not true"),
    Fault("nodes one after the other", spec("StatefulSet", "redis", podManagementPolicy="OrderedReady"),
          "stateful", "podManagementPolicy is not Parallel"),
    Fault("nodes hidden until they are ready", spec("Service", "nats", publishNotReadyAddresses=None), "stateful", "publishNotReadyAddresses"),
    Fault("Redis may use all its memory", container(lambda c: c["env"][1].update(value="2gb"), "redis", "StatefulSet"),
          "capacity", "REDIS_MAXMEMORY 2gb leaves no room"),
    Fault("NATS may fill its disk", whole("StatefulSet", "nats", lambda o: o["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"].update(
        storage="8Gi")), "capacity", "max_file_store 8GB is not below"),
    Fault("healer that misses a node", spec("StatefulSet", "redis", replicas=7), "stateful", "REDIS_NODES is"),
)

FAULTS = (*REFUSED, *ACCEPTED)


def by_name(name: str) -> Fault:
    """The fault of this name."""
    for fault in FAULTS:
        if fault.name == name:
            return fault
    raise UnknownFault(f"unknown fault {name!r}; `manifests faults` lists them")
