{{- define "tailroute.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* The release's own name where it names the chart already. 57 characters leave room for what is added. */}}
{{- define "tailroute.fullname" -}}
{{- $name := include "tailroute.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 48 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 48 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 48 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "tailroute.selector" -}}
app.kubernetes.io/name: {{ include "tailroute.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/*
What a pod with the router in it is found by. The pod of another chart (app.existing) goes by labels of its own, so there it
is one that nobody else has.
*/}}
{{- define "tailroute.podLabels" -}}
{{- if .Values.app.existing -}}
tailroute.io/router: {{ include "tailroute.fullname" . }}
{{- else -}}
{{ include "tailroute.selector" . }}
app.kubernetes.io/component: router
{{- end }}
{{- end }}

{{- define "tailroute.labels" -}}
{{ include "tailroute.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Whose service account the pod has: another chart's pod (app.existing) has that chart's. */}}
{{- define "tailroute.createsServiceAccount" -}}
{{- if and .Values.serviceAccount.create (not .Values.app.existing) }}yes{{ end }}
{{- end }}

{{- define "tailroute.serviceAccount" -}}
{{- if include "tailroute.createsServiceAccount" . }}
{{- default (include "tailroute.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "tailroute.tokensSecret" -}}
{{- default (printf "%s-tokens" (include "tailroute.fullname" .)) .Values.admin.existingSecret }}
{{- end }}

{{- define "tailroute.image" -}}
{{- $repository := required "image.repository: missing; nobody publishes an image: build deploy/Dockerfile, push it, and name it here" .Values.image.repository }}
{{- if .Values.image.digest }}
{{- printf "%s@%s" $repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{- define "tailroute.standalone" -}}
{{- if eq .Values.shape "standalone" }}yes{{ end }}
{{- end }}

{{/* What the schema cannot say: values that do not go together. */}}
{{- define "tailroute.refuse" -}}
{{- if include "tailroute.standalone" . }}
{{- if or .Values.app.containers .Values.app.initContainers .Values.app.existing }}
{{- fail "app: only where shape is native-sidecar or plain-sidecar; a standalone router has no other container" }}
{{- end }}
{{- else }}
{{- if .Values.app.existing }}
{{- if .Values.app.containers }}
{{- fail "app.containers: with app.existing the Deployment is another chart's, and so are its containers" }}
{{- end }}
{{- if and .Values.rbac.create (include "tailroute.watched" .) (not .Values.serviceAccount.name) }}
{{- fail "serviceAccount.name: missing; with app.existing the pod has another chart's service account, which config.discovery.kubernetes needs a Role for: name it, or set rbac.create to false" }}
{{- end }}
{{- else if not .Values.app.containers }}
{{- fail (printf "app.containers: missing; shape %s puts the router beside your app, so give its containers" .Values.shape) }}
{{- end }}
{{- if .Values.networkPolicy.enabled }}
{{- fail "networkPolicy.enabled: only where shape is standalone; in a sidecar it would bind your app's pod" }}
{{- end }}
{{- end }}
{{- if eq (int .Values.ports.data) (int .Values.ports.admin) }}
{{- fail (printf "ports.admin: %d is the data port; the admin port is another one" (int .Values.ports.admin)) }}
{{- end }}
{{- if .Values.ports.picker }}
{{- if has (int .Values.ports.picker) (list (int .Values.ports.data) (int .Values.ports.admin)) }}
{{- fail (printf "ports.picker: %d is the data port or the admin port; gateways ask at another one" (int .Values.ports.picker)) }}
{{- end }}
{{- else if .Values.config.endpoint_picker }}
{{- fail "ports.picker: missing; config.endpoint_picker has no port to be about" }}
{{- end }}
{{- range $name := list "config" "tokens" "keys" }}
{{- if hasKey $.Values.mounts $name }}
{{- fail (printf "mounts.%s: the chart mounts a folder of that name itself; take another one" $name) }}
{{- end }}
{{- end }}
{{- if and .Values.admin.tokens .Values.admin.existingSecret }}
{{- fail "admin.tokens: the tokens already come from admin.existingSecret; remove one of the two" }}
{{- end }}
{{- if and .Values.snapshot.existingClaim (gt (int .Values.replicas) 1) }}
{{- fail "snapshot.existingClaim: one claim for several replicas, which would overwrite each other's snapshot; set replicas to 1, or leave it out" }}
{{- end }}
{{- if and (ne .Values.monitoring.kind "none") (not .Values.admin.openMetrics) (not .Values.monitoring.tokenSecret) }}
{{- fail "monitoring.tokenSecret: missing; with admin.openMetrics off /metrics needs a token" }}
{{- end }}
{{- end }}
