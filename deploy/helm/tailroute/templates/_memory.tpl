{{/*
The memory limit: the sum that `tailroute check` prints for the same configuration, with discoveredWorkers, in MiB. The constants
are the router's own and its defaults (router/src/budget.rs); tests/deploy compares both.
*/}}
{{- define "tailroute.memoryMiB" -}}
{{- $config := .Values.config }}
{{- $limits := default dict $config.limits }}
{{- $mib := 1048576.0 }}
{{- $connectionKiB := ternary 88 40 (dig "tls" "cert_file" "" $config | empty | not) }}
{{- /* The router itself, the admin port, responses that are parsed, tables, recent turns, logs. */}}
{{- $sum := addf 96 114 256 128 24 }}
{{- $sum = addf $sum (divf (mulf (dig "max_connections" 10000 $limits) $connectionKiB) 1024) }}
{{- $sum = addf $sum (divf (mulf (dig "max_in_flight" 4096 $limits) 288) 1024) }}
{{- $unread := max (dig "max_unread_bytes" 1073741824 $limits) (dig "max_body_bytes" 0 $limits) }}
{{- $sum = addf $sum (divf $unread $mib) }}
{{- $sum = addf $sum (divf (dig "index" "max_bytes" 268435456 $config) $mib) }}
{{- $sum = addf $sum (divf (dig "explain" "max_bytes" 16777216 $config) $mib) }}
{{- if .Values.ports.picker }}
{{- $sum = addf $sum (divf (mulf (dig "endpoint_picker" "max_connections" 256 $config) $connectionKiB) 1024) }}
{{- end }}
{{- if $config.fleet }}{{ $sum = addf $sum 208 }}{{ end }}
{{- if dig "discovery" "kubernetes" false $config }}{{ $sum = addf $sum 256 }}{{ end }}
{{- /* A worker that publishes cache events: its blocks, and its messages at their worst. */}}
{{- $events := addf 440 (divf (mulf 2.5 (dig "max_kv_message_bytes" 67108864 $limits)) $mib) }}
{{- /* A mirror has 128 bytes per block; a worker of unknown capacity may report the largest one. */}}
{{- $largest := 8000000 }}
{{- range $worker := $config.workers }}
{{- $mirror := divf (mulf 128 (divf (default $largest $worker.capacity_tokens) (default 16 $worker.block_size_tokens))) $mib }}
{{- $one := ternary $mirror (addf $mirror $events) (eq "off" (default "auto" $worker.kv_events)) }}
{{- $sum = addf $sum (mulf $one (default 1 $worker.ranks)) }}
{{- end }}
{{- if $config.discovery }}
{{- $sum = addf $sum (mulf .Values.discoveredWorkers (addf $events (divf (mulf 8 $largest) $mib))) }}
{{- end }}
{{- ceil $sum | int }}
{{- end }}

{{/* The router's resources, with the computed memory limit unless another one is set. */}}
{{- define "tailroute.resources" -}}
{{- $resources := deepCopy .Values.resources }}
{{- if and $resources.limits (hasKey $resources.limits "memory") (not $resources.limits.memory) }}
{{- $_ := set $resources.limits "memory" (printf "%sMi" (include "tailroute.memoryMiB" .)) }}
{{- end }}
{{- toYaml $resources }}
{{- end }}
