{{- define "tailroute.securityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/*
The pod's, in a sidecar: the app's own. A claim is root's, and the router is nobody, so it needs a group that may write there;
any will do, since every container of the pod is in it. A folder of the node's (emptyDir) may be written by everybody.
*/}}
{{- define "tailroute.sidecarSecurityContext" -}}
{{- $group := ternary (dict "fsGroup" 65532) dict (and .Values.snapshot.enabled (ne .Values.snapshot.existingClaim "")) }}
{{- mergeOverwrite $group (deepCopy .Values.app.podSecurityContext) | toJson }}
{{- end }}

{{/* Folders, never single files: a file that is mounted by itself does not follow its ConfigMap or Secret. */}}
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
{{- end }}

{{/* The router, alike in all three shapes but for `restartPolicy: Always`, which makes an init container a native sidecar. */}}
{{- define "tailroute.container" -}}
- name: tailroute
  image: {{ include "tailroute.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  {{- if eq .Values.shape "native-sidecar" }}
  restartPolicy: Always
  {{- end }}
  args: [serve, --config, /etc/tailroute/config/tailroute.toml]
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
  # Alive, not ready: an app must start, and a router live on, while no worker is well.
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
  # No preStop: the router itself goes on taking connections for limits.drain_delay_s, and tells those it has that they end.
  resources:
    {{- toYaml .Values.resources | nindent 4 }}
  securityContext:
    {{- include "tailroute.securityContext" . | nindent 4 }}
  volumeMounts:
    {{- include "tailroute.configMounts" . | nindent 4 }}
    - name: tailroute-state
      mountPath: /var/lib/tailroute
{{- end }}

{{/*
Long enough for all of a stop: being forgotten, draining, and 15 s for what follows it (what is cut is told so, traces, the
snapshot). A native sidecar is told to stop when the app is gone, so the app's time comes on top; a plain one at the same time.
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
