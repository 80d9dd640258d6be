{{/*
The security context of a sidecar's pod is the app's. A claim belongs to root, so the pod needs a group that may write to it, and
all its containers are in that group. Everyone may write to an emptyDir.
*/}}
{{- define "tailroute.sidecarSecurityContext" -}}
{{- $group := dict }}
{{- if and .Values.snapshot.enabled .Values.snapshot.existingClaim (hasKey .Values.securityContext "runAsGroup") }}
{{- $_ := set $group "fsGroup" .Values.securityContext.runAsGroup }}
{{- end }}
{{- mergeOverwrite $group (deepCopy .Values.app.podSecurityContext) | toJson }}
{{- end }}

{{/* Folders, never single files: a single mounted file does not follow its ConfigMap or Secret. */}}
{{- define "tailroute.configMounts" -}}
- name: tailroute-config
  mountPath: /etc/tailroute/config
  readOnly: true
- name: tailroute-tokens
  mountPath: /etc/tailroute/tokens
  readOnly: true
{{- if .Values.apiKeys.existingSecret }}
- name: tailroute-keys
  mountPath: /etc/tailroute/keys
  readOnly: true
{{- end }}
{{- range $name, $_ := .Values.mounts }}
- name: tailroute-mount-{{ $name }}
  mountPath: /etc/tailroute/{{ $name }}
  readOnly: true
{{- end }}
{{- end }}

{{- define "tailroute.configVolumes" -}}
- name: tailroute-config
  configMap:
    name: {{ include "tailroute.fullname" . }}
- name: tailroute-tokens
  secret:
    secretName: {{ include "tailroute.tokensSecret" . }}
{{- with .Values.apiKeys.existingSecret }}
- name: tailroute-keys
  secret:
    secretName: {{ . }}
{{- end }}
{{- range $name, $from := .Values.mounts }}
- name: tailroute-mount-{{ $name }}
  {{- if $from.secret }}
  secret:
    secretName: {{ $from.secret }}
  {{- else }}
  configMap:
    name: {{ $from.configMap }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "tailroute.volumes" -}}
{{ include "tailroute.configVolumes" . }}
- name: tailroute-state
  {{- if .Values.snapshot.existingClaim }}
  persistentVolumeClaim:
    claimName: {{ .Values.snapshot.existingClaim }}
  {{- else }}
  emptyDir:
    sizeLimit: {{ .Values.stateSizeLimit }}
  {{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The router's container, equal in all three shapes except for `restartPolicy: Always`, which makes an init container a native sidecar. */}}
{{- define "tailroute.container" -}}
- name: tailroute
  image: {{ include "tailroute.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  {{- if eq .Values.shape "native-sidecar" }}
  restartPolicy: Always
  {{- end }}
  args: [serve, --config, /etc/tailroute/config/tailroute.toml]
  {{- with .Values.extraEnv }}
  env:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  ports:
    {{- if include "tailroute.standalone" . }}
    - name: http
      containerPort: {{ .Values.ports.data }}
      protocol: TCP
    {{- end }}
    - name: admin
      containerPort: {{ .Values.ports.admin }}
      protocol: TCP
    {{- if and .Values.ports.picker (include "tailroute.standalone" .) }}
    - name: picker
      containerPort: {{ .Values.ports.picker }}
      protocol: TCP
    {{- end }}
  # Liveness, not readiness: the app must start, and the router must keep running, while no worker is ready.
  startupProbe:
    httpGet:
      path: /livez
      port: admin
    periodSeconds: 1
    timeoutSeconds: 5
    failureThreshold: {{ .Values.probes.startupSeconds }}
  livenessProbe:
    httpGet:
      path: /livez
      port: admin
    periodSeconds: {{ .Values.probes.livenessPeriodSeconds }}
    timeoutSeconds: 5
    failureThreshold: 6
  readinessProbe:
    httpGet:
      path: /readyz
      port: admin
    periodSeconds: {{ .Values.probes.readinessPeriodSeconds }}
    timeoutSeconds: 5
    failureThreshold: 2
  # No preStop: the router keeps accepting connections for limits.drain_delay_s, and announces the end on open ones.
  resources:
    {{- include "tailroute.resources" . | nindent 4 }}
  {{- with .Values.securityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  volumeMounts:
    {{- include "tailroute.configMounts" . | nindent 4 }}
    - name: tailroute-state
      mountPath: /var/lib/tailroute
    {{- with .Values.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/*
The time of a whole stop: the delay, the drain, and 15 s for the rest (errors to streams that are cut, traces, the snapshot). A
native sidecar stops after the app, so the app's time is added; a plain sidecar stops at the same time.
*/}}
{{- define "tailroute.graceSeconds" -}}
{{- $own := add .Values.drain.delaySeconds (ceil .Values.drain.timeoutSeconds) 15 }}
{{- if eq .Values.shape "native-sidecar" }}
{{- add $own .Values.app.terminationSeconds }}
{{- else if eq .Values.shape "plain-sidecar" }}
{{- max $own .Values.app.terminationSeconds }}
{{- else }}
{{- $own }}
{{- end }}
{{- end }}
