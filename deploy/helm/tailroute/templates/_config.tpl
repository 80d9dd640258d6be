{{/* The configuration as the router reads it: config, and the keys that the chart sets. */}}
{{- define "tailroute.settings" -}}
{{- $all := deepCopy .Values.config }}
{{- range $section := list "server" "admin" "admission" "index" "limits" }}
{{- if not (hasKey $all $section) }}{{- $_ := set $all $section dict }}{{- end }}
{{- end }}
{{- $own := ternary .Values.bindAddress "127.0.0.1" (eq .Values.shape "standalone") }}
{{- $_ := set $all.server "listen" (printf "%s:%d" $own (int .Values.ports.data)) }}
{{- $_ := set $all.admin "listen" (printf "%s:%d" .Values.bindAddress (int .Values.ports.admin)) }}
{{- with int .Values.ports.picker }}
{{- $_ := set $all "endpoint_picker" (merge (dict "listen" (printf "%s:%d" $own .)) (default dict $all.endpoint_picker)) }}
{{- end }}
{{- $_ := set $all.admin "tokens_file" "/etc/tailroute/tokens/tokens.toml" }}
{{- $_ := set $all.admin "open_metrics" .Values.admin.openMetrics }}
{{- $_ := set $all.limits "drain_delay_s" .Values.drain.delaySeconds }}
{{- $_ := set $all.limits "drain_timeout_s" .Values.drain.timeoutSeconds }}
{{- if .Values.apiKeys.existingSecret }}
{{- $_ := set $all.admission "keys_file" "/etc/tailroute/keys/keys.toml" }}
{{- end }}
{{- if .Values.snapshot.enabled }}
{{- $_ := set $all.index "snapshot_path" "/var/lib/tailroute/snapshot" }}
{{- end }}
{{- toJson $all }}
{{- end }}

{{/* The resource that the router watches in the cluster: endpointslices, pods, or none. */}}
{{- define "tailroute.watched" -}}
{{- with dig "discovery" "kubernetes" dict .Values.config }}
{{- if not .api_url }}
{{- if .services }}endpointslices{{ else if .pods }}pods{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Whether the router needs its service account's token. */}}
{{- define "tailroute.automountToken" -}}
{{ or .Values.serviceAccount.automountToken (ne (include "tailroute.watched" .) "") }}
{{- end }}

{{/* A table as TOML: values first, then tables, sorted by name. A JSON scalar, or a list of scalars, is valid TOML too. */}}
{{- define "tailroute.toml" -}}
{{- range $key, $value := .table }}
{{- if not (or (kindIs "invalid" $value) (kindIs "map" $value) (and (kindIs "slice" $value) (kindIs "map" (first $value)))) }}
{{ $key }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- $above := .path }}
{{- range $key, $value := .table }}
{{- $path := trimPrefix "." (printf "%s.%s" $above $key) }}
{{- if and (kindIs "map" $value) $value }}

[{{ $path }}]
{{- include "tailroute.toml" (dict "path" $path "table" $value) }}
{{- else if and (kindIs "slice" $value) (kindIs "map" (first $value)) }}
{{- range $value }}

[[{{ $path }}]]
{{- include "tailroute.toml" (dict "path" $path "table" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tailroute.config" -}}
# Rendered by the chart. Change the values instead.
{{- include "tailroute.toml" (dict "path" "" "table" (include "tailroute.settings" . | fromJson)) }}
{{- end }}

{{/*
The settings that need a restart (docs/operating.md). The router reads the others while it runs, so pods are replaced only
when these change.
*/}}
{{- define "tailroute.needsRestart" -}}
{{- $all := include "tailroute.settings" . | fromJson }}
{{- $_ := set $all "routing" (pick (default dict $all.routing) "utilisation_window_s" "tokens_per_byte") }}
{{- $_ := set $all "limits" (pick $all.limits "max_connections" "max_header_bytes" "header_timeout_s" "connect_timeout_s") }}
{{- $_ := set $all "hints" (pick (default dict $all.hints) "protect_from") }}
{{- $_ := set $all "log" (pick (default dict $all.log) "format") }}
{{- $_ := set $all "admin" (omit $all.admin "open_metrics") }}
{{- toJson (omit $all "objective" "admission" "keys") | sha256sum }}
{{- end }}

{{- define "tailroute.podAnnotations" -}}
tailroute.io/needs-restart: {{ include "tailroute.needsRestart" . }}
{{- end }}
