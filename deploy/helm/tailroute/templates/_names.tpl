{{- define "tailroute.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* The release's name, if it contains the chart's. 48 characters leave room for suffixes. */}}
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
The labels that select a pod with a router. The pod of another chart (app.existing) keeps its own labels, so it gets one more.
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

{{/* The pod of another chart (app.existing) has that chart's service account. */}}
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
{{- $repository := required "image.repository: missing; there is no public image: build deploy/Dockerfile, push it, and name it here" .Values.image.repository }}
{{- if .Values.image.digest }}
{{- printf "%s@%s" $repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{- define "tailroute.standalone" -}}
{{- if eq .Values.shape "standalone" }}yes{{ end }}
{{- end }}

{{/* Names of values in other charts, and ours. The schema lets them pass, so that the error names the right one. */}}
{{- define "tailroute.otherNames" -}}
{{- $others := dict "replicaCount" "replicas" "env" "extraEnv" "envVars" "extraEnv" "volumes" "extraVolumes" "volumeMounts" "extraVolumeMounts" "sidecars" "extraContainers" "gateway" "httpRoute" "hpa" "autoscaling" "pdb" "podDisruptionBudget" "topologySpreadConstraints" "topologySpread" "deploymentAnnotations" "annotations" "metrics" "monitoring" "serviceMonitor" "monitoring" "configuration" "config" "settings" "config" "persistence" "snapshot" "apiKey" "apiKeys" }}
{{- range $name, $ours := $others }}
{{- if hasKey $.Values $name }}
{{- fail (printf "%s: not a value of this chart; did you mean %s?" $name $ours) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Combinations of values that the schema cannot refuse. */}}
{{- define "tailroute.refuse" -}}
{{- include "tailroute.otherNames" . }}
{{- if not (or .Values.config.workers .Values.config.discovery) }}
{{- fail "config.workers: missing; list the workers, or set config.discovery" }}
{{- end }}
{{- if include "tailroute.standalone" . }}
{{- if or .Values.app.containers .Values.app.initContainers .Values.app.existing }}
{{- fail "app: only where shape is native-sidecar or plain-sidecar; a standalone router has no app" }}
{{- end }}
{{- else }}
{{- range $section := list "ingress" "httpRoute" "autoscaling" "networkPolicy" }}
{{- if (index $.Values $section).enabled }}
{{- fail (printf "%s.enabled: only where shape is standalone; a sidecar serves its own pod" $section) }}
{{- end }}
{{- end }}
{{- if .Values.extraContainers }}
{{- fail "extraContainers: only where shape is standalone; a sidecar's pod takes app.containers" }}
{{- end }}
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
{{- end }}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) }}
{{- fail "ingress.hosts: missing; list the hosts and their paths" }}
{{- end }}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) }}
{{- fail "httpRoute.parentRefs: missing; name the Gateway" }}
{{- end }}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) }}
{{- fail "autoscaling.minReplicas: above autoscaling.maxReplicas" }}
{{- end }}
{{- if eq (int .Values.ports.data) (int .Values.ports.admin) }}
{{- fail (printf "ports.admin: %d is the data port; set another port" (int .Values.ports.admin)) }}
{{- end }}
{{- if .Values.ports.picker }}
{{- if has (int .Values.ports.picker) (list (int .Values.ports.data) (int .Values.ports.admin)) }}
{{- fail (printf "ports.picker: %d is the data port or the admin port; set another port" (int .Values.ports.picker)) }}
{{- end }}
{{- else if .Values.config.endpoint_picker }}
{{- fail "ports.picker: missing; config.endpoint_picker needs a port" }}
{{- end }}
{{- range $name := list "config" "tokens" "keys" }}
{{- if hasKey $.Values.mounts $name }}
{{- fail (printf "mounts.%s: the chart mounts a folder of that name itself; use another name" $name) }}
{{- end }}
{{- end }}
{{- if and .Values.admin.tokens .Values.admin.existingSecret }}
{{- fail "admin.tokens: the tokens already come from admin.existingSecret; remove one of the two" }}
{{- end }}
{{- if and .Values.snapshot.existingClaim (or .Values.autoscaling.enabled (gt (int .Values.replicas) 1)) }}
{{- fail "snapshot.existingClaim: one claim for several replicas, which would overwrite each other's snapshot; set replicas to 1 without autoscaling, or remove the claim" }}
{{- end }}
{{- if and (ne .Values.monitoring.kind "none") (not .Values.admin.openMetrics) (not .Values.monitoring.tokenSecret) }}
{{- fail "monitoring.tokenSecret: missing; with admin.openMetrics off /metrics needs a token" }}
{{- end }}
{{- end }}
