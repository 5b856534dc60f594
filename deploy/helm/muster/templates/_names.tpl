{{/* Labels of every object. Argument: the root context. */}}
{{- define "muster.labels" -}}
app.kubernetes.io/part-of: muster
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* Labels by which pods of a component are found. Arguments: name, component. */}}
{{- define "muster.selector" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Image of one of Muster's own programs. Arguments: root, program. */}}
{{- define "muster.image" -}}
{{- with .root.Values.image.registry }}{{ . }}/{{ end }}muster/{{ .program }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{/* Names of the Secrets: the user's own, or ours. Those of services carry a hash, so that a change
     restarts the services. */}}
{{- define "muster.secret.api" -}}
{{- if .Values.secrets.existing.api }}{{ .Values.secrets.existing.api }}
{{- else }}muster-api-{{ include "muster.secret.api.data" . | sha256sum | trunc 10 }}
{{- end }}
{{- end }}
{{- define "muster.secret.stores" -}}
{{- if .Values.secrets.existing.stores }}{{ .Values.secrets.existing.stores }}
{{- else }}muster-stores-{{ include "muster.secret.stores.data" . | sha256sum | trunc 10 }}
{{- end }}
{{- end }}
{{- define "muster.secret.passwords" -}}
{{- .Values.secrets.existing.storePasswords | default "muster-store-passwords" }}
{{- end }}

{{- define "muster.secret.api.data" -}}
MUSTER_API_KEY: {{ include "muster.needed" (list "secrets.apiKey" .Values.secrets.apiKey "existing.api") | quote }}
{{- end }}

{{- define "muster.secret.stores.data" -}}
{{- if .Values.stores.enabled }}
{{- $redis := include "muster.needed" (list "secrets.redisPassword" .Values.secrets.redisPassword "existing.storePasswords and existing.stores") }}
{{- $nats := include "muster.needed" (list "secrets.natsPassword" .Values.secrets.natsPassword "existing.storePasswords and existing.stores") }}
REDIS_URL: {{ include "muster.urls" (list "redis" (printf ":%s" $redis) 6 6379) }}
NATS_URL: {{ include "muster.urls" (list "nats" (printf "%s:%s" .Values.secrets.natsUser $nats) 3 4222) }}
{{- else }}
REDIS_URL: {{ include "muster.needed" (list "secrets.redisUrl" .Values.secrets.redisUrl "existing.stores") | quote }}
NATS_URL: {{ include "muster.needed" (list "secrets.natsUrl" .Values.secrets.natsUrl "existing.stores") | quote }}
{{- end }}
{{- end }}

{{/* URLs of all nodes of a store, separated by commas. Arguments: the store, credentials, nodes, port. */}}
{{- define "muster.urls" -}}
{{- $store := index . 0 }}{{ $credentials := index . 1 }}{{ $port := index . 3 -}}
{{- range $node := until (index . 2) }}{{ if $node }},{{ end }}{{ $store }}://{{ $credentials }}@{{ $store }}-{{ $node }}.{{ $store }}:{{ $port }}{{ end }}
{{- end }}

{{/* A secret that must be given. Arguments: its name, its value, the alternative. */}}
{{- define "muster.needed" -}}
{{- if not (index . 1) }}
{{- fail (printf "%s is not set. Give it with --set or a values file, or name a Secret by secrets.%s. See docs/operate/kubernetes.md." (index . 0) (index . 2)) }}
{{- end }}
{{- if regexMatch "[\\s<>]" (index . 1) }}
{{- fail (printf "%s is a placeholder or holds blanks: it cannot be used as it is." (index . 0)) }}
{{- end }}
{{- index . 1 }}
{{- end }}

{{/* Settings of all services. */}}
{{- define "muster.config" -}}
{{- $traces := dict }}
{{- with .Values.traces }}{{ if .enabled }}
{{- $traces = dict "OTEL_EXPORTER_OTLP_ENDPOINT" (printf "http://%s.%s:%v" .service .namespace .port) }}
{{- end }}{{ end }}
{{- merge (dict) .Values.config $traces | toJson }}
{{- end }}

{{/* ConfigMaps carry a hash of their content: a change restarts what reads them. */}}
{{- define "muster.configmap.config" -}}
muster-config-{{ include "muster.config" . | sha256sum | trunc 10 }}
{{- end }}
{{- define "muster.configmap.redis" -}}
redis-{{ include "muster.redis.files" . | sha256sum | trunc 10 }}
{{- end }}
{{- define "muster.configmap.healer" -}}
redis-healer-{{ include "muster.healer.files" . | sha256sum | trunc 10 }}
{{- end }}
{{- define "muster.configmap.nats" -}}
nats-{{ .Files.Get "files/nats.conf" | sha256sum | trunc 10 }}
{{- end }}
{{- define "muster.redis.files" -}}
{{ include "muster.files" (list . "redis.conf" "cluster.conf" "start.sh") }}
{{- end }}
{{- define "muster.healer.files" -}}
{{ include "muster.files" (list . "cluster.sh" "plan.awk") }}
{{- end }}

{{/* The content of files, by name. Arguments: root, names. */}}
{{- define "muster.files" -}}
{{- $root := first . }}
{{- range rest . }}
{{ . }}: {{ $root.Files.Get (printf "files/%s" .) | toJson }}
{{- end }}
{{- end }}

{{/* What Pod Security `restricted` asks of a container. */}}
{{- define "muster.locked" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Spread of a store's nodes. Argument: component. */}}
{{- define "muster.spread" -}}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: DoNotSchedule
  nodeTaintsPolicy: Honor
  labelSelector:
    matchLabels:
      {{- include "muster.selector" (dict "name" . "component" .) | nindent 6 }}
- maxSkew: 1
  topologyKey: topology.kubernetes.io/zone
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "muster.selector" (dict "name" . "component" .) | nindent 6 }}
{{- end }}

{{/* A claim called `data`. Argument: the store's values. */}}
{{- define "muster.claim" -}}
- metadata:
    name: data
    labels:
      app.kubernetes.io/part-of: muster
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .storageClass }}
    storageClassName: {{ . }}
    {{- end }}
    resources:
      requests:
        storage: {{ .storage }}
{{- end }}

{{/* A budget: one pod at a time. Arguments: root, name, component, called. */}}
{{- define "muster.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "muster.labels" .root | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "muster.selector" . | nindent 6 }}
{{- end }}
